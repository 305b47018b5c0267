"""The ReplaySSM decode with its checks taken out, and calls large enough to be measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from kernels.guards import interpreter
from kernels.kda_replayssm import checks

RINGS = ("d_cache", "k_cache", "g_cache")


@contextmanager
def guards_off() -> Iterator[None]:
    """Within this context nobody looks at the tensors of a decode before it is launched."""
    with mock.patch.object(checks, "check_decode"), interpreter():
        yield


def large_step(batch: int, heads: int, size: int, length: int, device: torch.device) -> dict[str, Any]:
    """Arguments of a step in which every row appends to the last entry but one of its ring.

    Args:
        batch: rows, each with a slot of its own.
        heads: query, key and value heads.
        size: key channels of a head, and value channels.
        length: of the ring.
        device: of every tensor.
    """

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device)

    return {
        "mixed_qkv": normal(batch, 3 * heads * size).bfloat16(),
        "a": normal(batch, heads * size).bfloat16(),
        "b": normal(batch, heads).bfloat16(),
        "A_log": torch.zeros(heads, device=device),
        "dt_bias": torch.zeros(heads * size, device=device),
        "scale": size**-0.5,
        "initial_state": normal(batch, heads, size, size) / 10,
        "d_cache": normal(batch, heads, length, size).bfloat16(),
        "k_cache": torch.nn.functional.normalize(normal(batch, heads, length, size), dim=-1).bfloat16(),
        "g_cache": -normal(batch, heads, length, size).abs() / 10,
        "out": torch.full((batch, 1, heads, size), torch.nan, dtype=torch.bfloat16, device=device),
        "ssm_state_indices": torch.arange(batch, device=device),
        "write_pos": torch.full((batch,), length - 2, dtype=torch.int32, device=device),
        "use_qk_l2norm_in_kernel": True,
    }
