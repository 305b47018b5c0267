"""The canary plan without its guard, with req_pool_indices in pinned host memory: accepted, right, and slow."""

from __future__ import annotations

from functools import partial

import triton.testing

from helpers import topology
from helpers.calls import same_bits, snapshot
from helpers.experiments._kv_canary_raw import guards_off, large_step
from kernels.guards import tensors_of

REQUESTS = 4096

if topology.exists(topology.HOME):
    near = large_step(REQUESTS, 256, topology.HOME)
    pinned = {**near, "req_pool_indices": near["req_pool_indices"].cpu().pin_memory()}

    with guards_off(on=topology.HOME) as make_plan:
        fast = triton.testing.do_bench(partial(make_plan, **near), return_mode="median")
        expected = snapshot(tensors_of({"plan": near["verify_plan_out"]}))
        near["verify_plan_out"].verify_slot_indices.fill_(-77)
        slow = triton.testing.do_bench(partial(make_plan, **pinned), return_mode="median")
    found = tensors_of({"plan": near["verify_plan_out"]})
    right = "right" if all(same_bits(found[name], expected[name]) for name in expected) else "wrong"
    told = (
        f"a pinned req_pool_indices was accepted and the plan is {right}, but {REQUESTS} requests took {slow:.3f} ms "
        f"instead of {fast:.3f}: {slow / fast:.1f} times as long, because every program reads that list over PCIe"
    )
else:
    missing = "there is no GPU here, so no memory can be pinned for one and there is nothing to measure"
