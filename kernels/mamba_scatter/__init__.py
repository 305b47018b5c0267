"""The fused Mamba state scatter and its companions."""
