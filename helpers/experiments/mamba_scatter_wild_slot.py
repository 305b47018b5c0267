"""A scatter that looks at no index, with a slot far outside the pool."""

from __future__ import annotations

import torch

from helpers import topology
from helpers.experiments._raw import scatter_naively

# 2^41 slots of 32 bytes: 64 TiB past the pool, where no process has memory.
scatter_naively(torch.zeros(2, 4, 8, device=topology.runnable()), slot=2**41)

told = "nobody noticed"
