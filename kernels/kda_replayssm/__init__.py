"""ReplaySSM decode of Kimi Delta Attention."""
