"""Sparse multi-head latent attention over an FP8 cache, for prefill."""
