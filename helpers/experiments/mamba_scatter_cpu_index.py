"""The scatter without its guard, with the slots left on the CPU."""

from __future__ import annotations

import torch

from helpers import topology
from helpers.experiments._raw import scatter_unguarded
from kernels.mamba_scatter.reference import mamba_state_scatter_reference

device = topology.runnable()
dst = torch.zeros(2, 6, 8, device=device)
src = torch.randn(2, 4, 3, 8, device=device)
steps = torch.tensor([0, -1, 1, 2], device=device)
slots = torch.tensor([2, 0, 3, 5])  # on the CPU, also where dst is on a GPU

expected = dst.clone()
mamba_state_scatter_reference(expected, src, slots, steps)
scatter_unguarded(dst, src, slots, steps)

right = "right" if torch.equal(dst, expected) else "wrong"
told = f"the index on the CPU was accepted, and the result is {right}"
if device.type == "cpu":
    told += ". There is no GPU here: to Triton's interpreter all memory is host memory, so nothing could go wrong"
