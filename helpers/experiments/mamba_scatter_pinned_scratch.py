"""The scatter without its guard, with the scratch in pinned host memory: accepted, right, and slow."""

from __future__ import annotations

import torch
import triton.testing

from helpers import topology
from helpers.experiments._raw import scatter_unguarded

ENTRY = 4 * 2**20  # float32 values: one state of 16 MiB

if topology.exists(topology.HOME):
    dst = torch.zeros(1, 2, ENTRY, device=topology.HOME)
    slots, steps = (torch.tensor([value], device=topology.HOME) for value in (1, 0))
    pinned = torch.randn(1, 1, 1, ENTRY).pin_memory()
    near = pinned.to(topology.HOME)

    fast = triton.testing.do_bench(lambda: scatter_unguarded(dst, near, slots, steps), return_mode="median")
    dst.zero_()
    slow = triton.testing.do_bench(lambda: scatter_unguarded(dst, pinned, slots, steps), return_mode="median")
    right = "right" if torch.equal(dst[:, 1], near[:, 0, 0]) else "wrong"
    told = (
        f"the pinned scratch was accepted and the result is {right}, but a state of 16 MiB took {slow:.3f} ms "
        f"instead of {fast:.3f}: {slow / fast:.0f} times as long, because every byte comes over PCIe"
    )
else:
    missing = "there is no GPU here, so no memory can be pinned for one and there is nothing to measure"
