"""The scatter without its guard, with the scratch on the other GPU."""

from __future__ import annotations

import torch

from helpers import topology
from helpers.experiments._raw import scatter_unguarded

if topology.exists(topology.OTHER):
    peers = torch.cuda.can_device_access_peer(0, 1)
    print(f"can_device_access_peer(0, 1) says {peers}")
    dst = torch.zeros(2, 6, 8, device=topology.HOME)
    src = torch.ones(2, 4, 3, 8, device=topology.OTHER)
    slots, steps = (torch.tensor([value], device=topology.HOME) for value in (2, 0))
    scatter_unguarded(dst, src, slots, steps)
    right = "right" if bool((dst[:, 2] == 1).all()) else "wrong"
    told = f"the scratch on cuda:1 was accepted, and the result is {right}"
else:
    missing = "this needs two GPUs, and there are fewer here"
