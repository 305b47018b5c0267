"""Scripts that do what the guards prevent. Run them through :func:`helpers.unguarded.experiment`, never here."""
