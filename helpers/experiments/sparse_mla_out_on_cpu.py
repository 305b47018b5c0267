"""The prefill without its guard, with out left on the CPU."""

from __future__ import annotations

from helpers import topology
from helpers.calls import relative_error
from helpers.experiments._prefill import prefill_unguarded, valid_call

call = valid_call()
expected = call.spec.expected(call.args)["out"]
call.move("out", topology.CPU)
prefill_unguarded(call.args)

right = "right" if relative_error(call["out"], expected) < call.spec.tolerance else "wrong"
told = f"an out on the CPU was accepted, and the result is {right}"
if topology.runnable() == topology.CPU:
    told += ". There is no GPU here: to Triton's interpreter all memory is host memory, so nothing could go wrong"
