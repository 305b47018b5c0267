"""One way to solve each exercise of the fused Mamba state scatter."""

from __future__ import annotations

import torch


def misplaced(tensors: dict[str, torch.Tensor]) -> list[str]:
    """Names of the tensors that are on another device than tensors["dst"]."""
    return [name for name, tensor in tensors.items() if tensor.device != tensors["dst"].device]


def check_indices(dst: torch.Tensor, dst_indices_raw: torch.Tensor) -> None:
    """Refuse indices that a kernel on dst's device could not use."""
    if dst_indices_raw.device != dst.device:
        raise ValueError(f"dst_indices_raw must be on dst's device {dst.device}, got {dst_indices_raw.device}")
    dtype = dst_indices_raw.dtype
    if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        raise ValueError(f"dst_indices_raw must have an integer dtype, got {dtype}")


predictions: dict[str, str] = {
    "A": "dst and src must be on the same device.",
    "B": "fused_mamba_state_scatter_with_mask only supports CUDA tensors.",
    "C": "src tensor must be contiguous",
    "D": "",
    "E": "step_indices_raw must be on dst's device cuda:0, got cpu",
}


def allocate_scratch(pool: torch.Tensor, requests: int, steps: int) -> torch.Tensor:
    """Scratch [layers, requests, steps, *state] for a pool [layers, slots, *state]."""
    layers, _, *state = pool.shape
    return torch.empty(layers, requests, steps, *state, dtype=pool.dtype, device=pool.device)
