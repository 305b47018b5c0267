"""Reading tracebacks and logs: what a line says, which rank said it, and what a foreign error means. No torch here."""
