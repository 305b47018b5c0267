"""The canary plan without its guard, with the table of slots on the other GPU."""

from __future__ import annotations

import torch

from helpers import topology
from helpers.atlas import spec
from helpers.calls import Call, same_bits
from helpers.experiments._kv_canary_raw import guards_off

if topology.exists(topology.OTHER):
    call = Call.valid(spec("launch_canary_plan_kernels"), on=topology.HOME)
    expected = call.spec.expected(call.args)
    call.move("req_to_token", topology.OTHER)
    peers = torch.cuda.can_device_access_peer(topology.HOME.index, topology.OTHER.index)
    print(f"can_device_access_peer said {peers}")
    with guards_off(on=topology.HOME) as make_plan:
        make_plan(**call.args)
    torch.cuda.synchronize(topology.HOME)
    right = "right" if all(same_bits(call[name], expected[name]) for name in expected) else "wrong"
    told = f"the kernel read the table through a pointer into the other GPU, and the plan is {right} (peers: {peers})"
else:
    missing = "there are no two GPUs here, so there is no other one to read from"
