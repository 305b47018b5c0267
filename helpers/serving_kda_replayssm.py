"""ReplaySSM decode at serving size: its arguments, the bytes that it must move, and which kernel does it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from kernels.kda_replayssm import api
from kernels.known_calls import forget_known_calls


def serving_step(
    batch: int,
    cursor: int,
    device: torch.device,
    *,
    heads: int = 32,
    size: int = 128,
    length: int = 16,
    state: torch.dtype = torch.float32,
) -> dict[str, Any]:
    """Arguments of a step in which every row has a slot of its own and as many ring entries in use.

    Args:
        batch: rows.
        cursor: ``write_pos`` of all rows; ``length - 1`` makes them flush.
        device: of every tensor.
        heads: query, key and value heads.
        size: key channels of a head, and value channels.
        length: of the ring.
        state: dtype of the checkpoint.
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
        "initial_state": (normal(batch, heads, size, size) / 10).to(state),
        "d_cache": normal(batch, heads, length, size).bfloat16(),
        "k_cache": torch.nn.functional.normalize(normal(batch, heads, length, size), dim=-1).bfloat16(),
        "g_cache": -normal(batch, heads, length, size).abs() / 10,
        "out": torch.full((batch, 1, heads, size), torch.nan, dtype=torch.bfloat16, device=device),
        "ssm_state_indices": torch.randperm(batch, device=device),
        "write_pos": torch.full((batch,), cursor, dtype=torch.int32, device=device),
        "use_qk_l2norm_in_kernel": True,
    }


def step_bytes(args: Mapping[str, Any]) -> int:
    """The least a step must move: what it needs read once, what it changes written once.

    Args:
        args: of a call in which every slot and every ``write_pos`` exists and nothing is forced. Values are read.
    """
    rows, length = args["out"].shape[0], args["d_cache"].shape[2]
    state = args["initial_state"][0].nbytes
    entry = sum(args[ring][0, :, 0].nbytes for ring in ("d_cache", "k_cache", "g_cache"))
    small = ("mixed_qkv", "a", "b", "A_log", "dt_bias", "out", "ssm_state_indices", "write_pos")
    used = args["write_pos"].tolist()
    flushed = sum(cursor == length - 1 for cursor in used)
    written = flushed * state + (rows - flushed) * entry
    return rows * state + sum(used) * entry + written + sum(args[name].nbytes for name in small)


@contextmanager
def plain_kernel() -> Iterator[None]:
    """Within this context every decode runs on the plain Triton kernel, also on GPUs that have a faster one."""
    forget_known_calls()
    with mock.patch.object(api, "tensor_core", None):
        yield
    forget_known_calls()
