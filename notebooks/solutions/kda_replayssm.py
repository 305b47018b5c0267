"""One way to solve each exercise of the ReplaySSM decode."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch


def strays(arguments: dict[str, Any]) -> dict[str, torch.device]:
    """The tensors that are away from most of the others, by name, with their devices."""
    devices = {name: value.device for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    home = Counter(devices.values()).most_common(1)[0][0]
    return {name: device for name, device in devices.items() if device != home}


predictions: dict[str, str] = {
    "A": "`g_cache` must have dtype torch.float32.",
    "B": "All inputs must be on the same device.",
    "C": "ReplaySSM inputs must be on the same device.",
    "D": "",
    "E": "`write_pos` must be a 1D int32 tensor.",
}


def allocate_pools(
    mixed_qkv: torch.Tensor, slots: int, H: int, HV: int, K: int, V: int, L: int
) -> dict[str, torch.Tensor]:
    """Pools for a rank: the checkpoint in float32, rings of L entries as mixed_qkv."""
    return {
        "initial_state": mixed_qkv.new_zeros(slots, HV, V, K, dtype=torch.float32),
        "d_cache": mixed_qkv.new_zeros(slots, HV, L, V),
        "k_cache": mixed_qkv.new_zeros(slots, H, L, K),
        "g_cache": mixed_qkv.new_zeros(slots, HV, L, K, dtype=torch.float32),
    }


def advance(write_pos: torch.Tensor, force_flush: torch.Tensor | None, length: int) -> torch.Tensor:
    """The write_pos [B] of the next step, after one with rings of this length."""
    flushed = write_pos == length - 1
    if force_flush is not None:
        flushed |= force_flush != 0
    return (write_pos + 1).masked_fill(flushed, 0)
