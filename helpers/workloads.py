"""Calls of the four kernels at serving size, with what each must at least do.

Each workload carries the call, a plain PyTorch version of it, the bytes it must move and the floating-point operations
it must do, and a check against the float64 (or bitwise) reference. Inputs are random; outputs are poisoned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

import kernels
from helpers.calls import relative_error
from helpers.serving_kda_replayssm import serving_step, step_bytes
from kernels.kda_replayssm.reference import kda_replayssm_decode_reference
from kernels.known_calls import forget_known_calls
from kernels.mamba_scatter.reference import mamba_state_scatter_reference
from kernels.sparse_mla import api as sparse_mla
from kernels.sparse_mla.reference import sparse_mla_prefill_reference


@dataclass(frozen=True)
class Workload:
    """One call, ready to run.

    Attributes:
        kernel: folder of the kernel.
        name: what is special about this size.
        call: the kernel.
        plain: the same in plain PyTorch.
        error: runs the kernel on poisoned outputs and returns the relative error against the reference.
        bytes: every input that counts read once, every output written once.
        operations: floating-point operations of the formula, a multiply-add counted as two; 0 for copies and integers.
    """

    kernel: str
    name: str
    call: Callable[[], object]
    plain: Callable[[], object]
    error: Callable[[], float]
    bytes: int
    operations: int = 0

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.operations / self.bytes


def scatter(
    requests: int,
    device: torch.device,
    *,
    layers: int = 36,
    slots: int = 64,
    steps: int = 4,
    state: tuple[int, ...] = (32, 128, 128),
    dtype: torch.dtype = torch.float32,
) -> Workload:
    """The state scatter, three quarters of the requests with an accepted step (all, if there are fewer than four)."""
    dst = torch.empty(layers, slots, *state, dtype=dtype, device=device)
    src = torch.randn(layers, requests, steps, *state, device=device).to(dtype)
    where = torch.randperm(slots, device=device)[:requests]
    taken = torch.randint(0, steps, (requests,), device=device)
    accepted = requests - requests // 4
    taken[accepted:] = -1

    def plain() -> None:
        kept = (taken >= 0).nonzero().flatten()
        dst[:, where[kept]] = src[:, kept, taken[kept]]

    def error() -> float:
        dst.fill_(float("nan"))
        expected = dst.clone()
        mamba_state_scatter_reference(expected, src, where, taken)
        kernels.fused_mamba_state_scatter_with_mask(dst, src, where, taken)
        return relative_error(dst, expected)

    return Workload(
        "mamba_scatter",
        f"{requests} requests",
        lambda: kernels.fused_mamba_state_scatter_with_mask(dst, src, where, taken),
        plain,
        error,
        2 * layers * accepted * math.prod(state) * dtype.itemsize,
    )


def plan(requests: int, device: torch.device, *, longest: int = 2048) -> Workload:
    """The kv-canary plan over whole prefixes of random length."""
    lengths = torch.randint(1, longest + 1, (requests,), device=device)
    total = int(lengths.sum())
    table = torch.randint(1, 1 << 30, (requests + 1, longest), dtype=torch.int32, device=device)
    arguments: dict[str, Any] = {
        "req_pool_indices": torch.randperm(requests, device=device) + 1,
        "prefix_lens": lengths,
        "extend_seq_lens": torch.ones(requests, dtype=torch.int64, device=device),
        "req_to_token": table,
        "swa_window_size": 0,
        "full_to_swa_index_mapping": None,
        "verify_capacity": total,
        "req_to_verify_expected_tokens": None,
        "req_to_verify_expected_tokens_valid_lens": None,
        "kv_token_id_vs_position_offset": 0,
    }

    def plans() -> dict[str, Any]:
        verify = kernels.VerifyPlan.allocate(verify_capacity=total, device=device)
        write = kernels.WritePlan.allocate(write_req_capacity=requests, device=device)
        for tensor in (*vars(verify).values(), *vars(write).values()):
            tensor.fill_(-7)
        return {"verify_plan_out": verify, "write_plan_out": write}

    ours, reference = plans(), plans()

    def error() -> float:
        kernels.launch_canary_plan_kernels(**ours, **arguments)
        kernels.launch_canary_plan_kernels_torch_reference(**reference, **arguments)
        pairs = [(value, getattr(reference[name], field)) for name in ours for field, value in vars(ours[name]).items()]
        return 0.0 if all(torch.equal(a, b) for a, b in pairs) else math.inf

    return Workload(
        "kv_canary",
        f"{requests} requests",
        lambda: kernels.launch_canary_plan_kernels(**ours, **arguments),
        lambda: kernels.launch_canary_plan_kernels_torch_reference(**reference, **arguments),
        error,
        # An entry: its slot read, four int64 written. A request: three int64 read, an offset and a seed written.
        total * (4 + 4 * 8) + requests * (3 * 8 + 2 * 8),
    )


def replay(
    batch: int,
    device: torch.device,
    *,
    flush: bool = False,
    heads: int = 32,
    width: int = 128,
    ring: int = 16,
    state_dtype: torch.dtype = torch.float32,
) -> Workload:
    """One ReplaySSM decode step, the ring half full, or full so that it is folded into the state."""
    filled = ring - 1 if flush else ring // 2
    inputs = serving_step(batch, filled, device, heads=heads, size=width, length=ring, state=state_dtype)

    def copies() -> dict[str, Any]:
        return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}

    def error() -> float:
        ours, exact = copies(), copies()
        exact["out"] = exact["out"].double()
        kernels.fused_recurrent_kda_replayssm_decode(**ours)
        kda_replayssm_decode_reference(**exact)
        return max(relative_error(ours[name], exact[name]) for name in ("out", "initial_state"))

    return Workload(
        "kda_replayssm",
        f"batch {batch}, {'flush' if flush else 'append'}",
        lambda: kernels.fused_recurrent_kda_replayssm_decode(**inputs),
        lambda: kda_replayssm_decode_reference(**inputs, dtype=torch.float32),
        error,
        step_bytes(inputs),
        # Decay of the state, the replay's product, two products of the state with a vector, and the flush's update.
        batch * heads * width * width * (1 + 2 * filled + 4 + (3 if flush else 0)),
    )


@contextmanager
def portable_prefill() -> Iterator[None]:
    """Within this context the prefill runs on the portable Triton kernel, also on GPUs that have a faster one."""
    forget_known_calls()
    with mock.patch.object(sparse_mla, "_hopper", return_value=None):
        yield
    forget_known_calls()


def prefill(
    tokens: int, device: torch.device, *, heads: int = 64, width: int = 576, topk: int = 2048, rows: int = 8192
) -> Workload:
    """FP8 sparse attention of every token to topk random rows of the cache."""

    def fp8(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, device=device) * 80).clamp(-448, 448).to(torch.float8_e4m3fn)

    q, kv = fp8(tokens, heads, width), fp8(rows, 1, width)
    chosen = torch.rand(tokens, rows, device=device).topk(topk, dim=1).indices
    indices = chosen.to(torch.int32).unsqueeze(1).contiguous()
    scales = torch.tensor(0.01, device=device), torch.tensor(0.012, device=device)
    arguments = (q, kv, indices, 192.0**-0.5, *scales)
    outputs: dict[str, Any] = {
        "out": torch.full((tokens, heads, 512), float("nan"), dtype=torch.bfloat16, device=device),
        "max_logits": torch.full((tokens, heads), float("nan"), device=device),
        "lse": torch.full((tokens, heads), float("nan"), device=device),
    }

    def plain() -> torch.Tensor:
        keys = kv[:, 0].bfloat16()[chosen]
        scores = torch.einsum("qhd,qkd->qhk", q.bfloat16(), keys) * (scales[0] * scales[1] * 192.0**-0.5)
        return torch.einsum("qhk,qkd->qhd", scores.softmax(-1), keys[..., :512]) * scales[1]

    def error() -> float:
        kernels.sparse_mla_q8kv8_prefill_fwd(*arguments, **outputs)
        return relative_error(outputs["out"], sparse_mla_prefill_reference(*arguments)[0])

    return Workload(
        "sparse_mla",
        f"{tokens} tokens, {topk} keys",
        lambda: kernels.sparse_mla_q8kv8_prefill_fwd(*arguments, **outputs),
        plain,
        error,
        q.numel() + kv.numel() + 4 * indices.numel() + 2 * tokens * heads * 512 + 8 * tokens * heads,
        2 * tokens * topk * heads * (width + 512),
    )
