"""The ReplaySSM decode without its guard, with the three caches left on the CPU."""

from __future__ import annotations

from helpers import topology
from helpers.atlas import spec
from helpers.calls import Call, relative_error
from helpers.experiments._kda_replayssm_raw import RINGS, guards_off

call = Call.valid(spec("helion_fused_recurrent_kda_replayssm_decode"), on=topology.runnable())
expected = call.spec.expected(call.args)
for ring in RINGS:
    call.move(ring, topology.CPU)
with guards_off():
    call.run()

error = relative_error(call["out"], expected["out"])
right = "right" if error < call.spec.tolerance else "wrong"
told = f"the rings on the CPU were accepted, and the result is {right}"
if topology.runnable() == topology.CPU:
    told += ". There is no GPU here: to Triton's interpreter all memory is host memory, so nothing could go wrong"
