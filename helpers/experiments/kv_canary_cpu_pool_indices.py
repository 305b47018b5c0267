"""The canary plan without its guard, with req_pool_indices left on the CPU."""

from __future__ import annotations

from helpers import topology
from helpers.atlas import spec
from helpers.calls import Call, same_bits
from helpers.experiments._kv_canary_raw import guards_off

call = Call.valid(spec("launch_canary_plan_kernels"), on=topology.runnable())
expected = call.spec.expected(call.args)
call.move("req_pool_indices", topology.CPU)
with guards_off(on=topology.runnable()) as make_plan:
    make_plan(**call.args)

right = "right" if all(same_bits(call[name], expected[name]) for name in expected) else "wrong"
told = f"req_pool_indices on the CPU was accepted, and the plan is {right}"
if topology.runnable() == topology.CPU:
    told += ". There is no GPU here: to Triton's interpreter all memory is host memory, so nothing could go wrong"
