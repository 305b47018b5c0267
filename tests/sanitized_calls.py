"""One small call of a kernel, for a run under compute-sanitizer: ``python tests/sanitized_calls.py KERNEL``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

import kernels
from helpers import workloads
from helpers.serving_kda_replayssm import plain_kernel
from kernels.sparse_mla.hopper import barrier

DEVICE = torch.device("cuda", 0)


def scatter() -> float:
    return workloads.scatter(4, DEVICE, layers=2, slots=5, state=(3, 1000)).error()


def conv_windows() -> float:
    windows = torch.randn(2, 4, 24, 7, device=DEVICE).unfold(-1, 3, 1).permute(0, 1, 3, 2, 4)
    pool = torch.full((2, 6, 24, 3), float("nan"), device=DEVICE)
    slots, steps = torch.tensor([5, 0, 2, 3], device=DEVICE), torch.tensor([4, -1, 0, 2], device=DEVICE)
    kernels.fused_conv_window_scatter_with_mask(pool, windows, slots, steps)
    right = torch.stack([windows[:, request, steps[request]] for request in (0, 2, 3)], 1)
    return float((pool[:, slots[[0, 2, 3]]] - right).abs().max())


def plan() -> float:
    return workloads.plan(65, DEVICE, longest=64).error()


def replay() -> float:
    return max(workloads.replay(3, DEVICE, heads=2, flush=flush).error() for flush in (False, True))


def replay_plain() -> float:
    with plain_kernel():
        return replay()


def prefill() -> float:
    return workloads.prefill(3, DEVICE, topk=256, rows=300).error()


def prefill_plain() -> float:
    with workloads.portable_prefill():
        return prefill()


@gluon.jit
def _give(shared, ready, values_ptr):
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    shared.store(gl.load(values_ptr + gl.arange(0, 128, LAYOUT)))
    barrier()
    mbarrier.arrive(ready, count=1)


@gluon.jit
def _take(shared, ready, copy_ptr):
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    mbarrier.wait(ready, 0)
    gl.store(copy_ptr + gl.arange(0, 128, LAYOUT), shared.load(LAYOUT))


@gluon.jit
def hand_over(values_ptr, copy_ptr):
    shared = gl.allocate_shared_memory(gl.float32, [128], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    barrier()
    gl.warp_specialize([(_take, (shared, ready, copy_ptr)), (_give, (shared, ready, values_ptr))], [4], [64])


def handed_over() -> float:
    """A hand-over between two roles of warps by the book, to see what racecheck makes of one that is right."""
    values = torch.randn(128, device=DEVICE)
    copy = torch.full_like(values, float("nan"))
    hand_over[(1,)](values, copy)
    return 0.0 if torch.equal(copy, values) else float("inf")


@triton.jit
def write_past_the_end(pointer, length):
    tl.store(pointer + length, 1.0)


def planted() -> float:
    """What the tool has to find, or else it finds nothing anywhere."""
    write_past_the_end[(1,)](torch.zeros(128, device=DEVICE), 128)
    return 0.0


@dataclass(frozen=True)
class Sanitized:
    """A call, the part of its kernel's name to watch, and the largest relative error that it may make."""

    call: Callable[[], float]
    kernel: str
    limit: float = 0.0


CALLS = {
    "scatter": Sanitized(scatter, "state_scatter"),
    "conv_windows": Sanitized(conv_windows, "conv_window_scatter"),
    "plan": Sanitized(plan, "plan_kernel"),
    "replay": Sanitized(replay, "kda_replayssm_tensor_core", 3e-3),
    "replay_plain": Sanitized(replay_plain, "kda_replayssm_decode", 3e-3),
    "prefill": Sanitized(prefill, "sparse_mla_hopper", 2e-2),
    "prefill_plain": Sanitized(prefill_plain, "sparse_mla_prefill", 2e-2),
}
PLANTED = Sanitized(planted, "write_past_the_end")
HANDED_OVER = Sanitized(handed_over, "hand_over")

if __name__ == "__main__":
    name = sys.argv[1]
    chosen = (CALLS | {"planted": PLANTED, "handed_over": HANDED_OVER})[name]
    error = chosen.call()
    torch.cuda.synchronize()
    assert error <= chosen.limit, error
    print(f"{name}: error {error:.2g}")
