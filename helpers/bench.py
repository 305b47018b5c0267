"""Time calls on the GPU at hand, against ceilings measured in the same run.

Where there is no GPU, nothing is measured: Triton's interpreter is for numbers, and its times mean nothing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton.testing

from helpers import topology


@dataclass(frozen=True)
class Measurement:
    """One call, timed.

    Attributes:
        name: what was called.
        bytes: the least it must move: every input read once, every output written once.
        us: median time on the device, in microseconds.
    """

    name: str
    bytes: int
    us: float

    @property
    def gbps(self) -> float:
        """Bytes moved per second, in GB/s (10^9 bytes)."""
        return self.bytes / self.us / 1e3


def measurable() -> bool:
    """Whether this machine has a GPU to measure; says so where it has none."""
    if topology.exists(topology.HOME):
        return True
    print("No GPU here: nothing is measured. The figures in the text were measured on the machine they name.")
    return False


def measure(name: str, call: Callable[[], object], bytes_moved: int) -> Measurement:
    """Median time of a call on the device, caches cleared before each repetition.

    Args:
        name: for tables and pictures.
        call: what to time; it must be ready to run, as the first call compiles.
        bytes_moved: the floor, see :class:`Measurement`.
    """
    return Measurement(name, bytes_moved, triton.testing.do_bench(call, return_mode="median") * 1e3)


def measure_replayed(name: str, call: Callable[[], object], bytes_moved: int) -> Measurement:
    """Median time of a call inside a CUDA graph, where gaps between launches vanish. Caches are left as they are.

    Args: as :func:`measure`.
    """
    return Measurement(name, bytes_moved, triton.testing.do_bench_cudagraph(call, return_mode="median") * 1e3)


def matrix_ceiling(size: int = 8192) -> float:
    """What PyTorch's own FP8 matrix product reaches on this GPU, on random numbers, in TFLOP/s."""
    a, b = ((torch.randn(size, size, device=topology.HOME) * 80).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device=topology.HOME)

    def product() -> object:
        return torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)

    return 2 * size**3 / measure("product", product, 0).us / 1e6


def copy_ceiling(gigabytes: float = 2.0) -> float:
    """What a device-to-device copy reaches on this GPU, in GB/s read plus written."""
    source = torch.empty(int(gigabytes * 1e9), dtype=torch.uint8, device=topology.HOME).random_()
    target = torch.empty_like(source)
    return measure("copy", lambda: target.copy_(source), 2 * source.numel()).gbps


def host_cost(call: Callable[[], object], calls: int = 500, rounds: int = 3) -> float:
    """What a call costs the host, in microseconds: wall time without waiting for the device.

    Args:
        call: with tensors so small that the device keeps up.
        calls: calls per round.
        rounds: the median of this many rounds counts.
    """
    for _ in range(20):
        call()
    costs = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        costs.append((time.perf_counter() - start) / calls * 1e6)
    return statistics.median(costs)
