"""The prefill without its guard, with out on the other GPU, as a bare device="cuda" leaves it there."""

from __future__ import annotations

import torch

from helpers import topology
from helpers.calls import relative_error
from helpers.experiments._prefill import prefill_unguarded, valid_call

if topology.exists(topology.OTHER):
    call = valid_call()
    expected = call.spec.expected(call.args)["out"]
    call.move("out", topology.OTHER)
    peers = torch.cuda.can_device_access_peer(topology.HOME.index, topology.OTHER.index)
    print(f"can_device_access_peer said {peers}")
    prefill_unguarded(call.args)
    torch.cuda.synchronize(topology.HOME)
    right = "right" if relative_error(call["out"], expected) < call.spec.tolerance else "wrong"
    told = f"the kernel wrote through a pointer into the other GPU, and the result is {right} (peer access: {peers})"
else:
    missing = "there are no two GPUs here, so there is no other one to write to"
