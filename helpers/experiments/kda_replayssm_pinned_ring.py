"""The ReplaySSM decode without its guard, with the three caches in pinned host memory: accepted, right, and slow."""

from __future__ import annotations

import torch
import triton.testing

import kernels
from helpers import topology
from helpers.experiments._kda_replayssm_raw import RINGS, guards_off
from helpers.serving_kda_replayssm import serving_step

if topology.exists(topology.HOME):
    near = serving_step(32, 14, topology.HOME)
    # An append changes the entry at the cursor alone, so both calls see the same ring however often they are made.
    pinned = {**near, "out": near["out"].clone(), **{ring: near[ring].cpu().pin_memory() for ring in RINGS}}

    decode = kernels.helion_fused_recurrent_kda_replayssm_decode
    with guards_off():
        fast = triton.testing.do_bench(lambda: decode(**near), return_mode="median")
        slow = triton.testing.do_bench(lambda: decode(**pinned), return_mode="median")
    right = "right" if torch.equal(near["out"], pinned["out"]) else "wrong"
    told = (
        f"the pinned rings were accepted and the result is {right}, but a step of 32 requests took {slow:.3f} ms "
        f"instead of {fast:.3f}: {slow / fast:.0f} times as long, because every ring comes over PCIe at every step"
    )
else:
    missing = "there is no GPU here, so no memory can be pinned for one and there is nothing to measure"
