"""A plain Triton launch with its tensor on cuda:1 while cuda:0 is current."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from helpers import topology


@triton.jit
def fill_kernel(x_ptr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Ones everywhere."""
    tl.store(x_ptr + tl.arange(0, SIZE), tl.full((SIZE,), 1.0, tl.float32))


if topology.exists(topology.OTHER):
    torch.cuda.set_device(topology.HOME)
    x = torch.zeros(128, device=topology.OTHER)
    fill_kernel[(1,)](x, SIZE=128)
    for device in (topology.HOME, topology.OTHER):
        torch.cuda.synchronize(device)
    right = "filled" if bool((x == 1).all()) else "not filled"
    told = f"the launch was accepted, and the tensor on cuda:1 is {right}"
else:
    missing = "this needs two GPUs, and there are fewer here"
