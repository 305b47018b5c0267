"""A scatter that looks at no index, with a padded request: its slot is -1."""

from __future__ import annotations

import torch

from helpers import topology
from helpers.experiments._raw import scatter_naively

LAYERS, SLOTS, SIZE = 2, 4, 8

# The pool lies inside a larger buffer, so that what is written beside it hits nobody.
buffer = torch.zeros(1 + LAYERS * SLOTS + 1, SIZE, device=topology.runnable())
pool = buffer[1:-1].view(LAYERS, SLOTS, SIZE)
scatter_naively(pool, slot=-1)

names = ["the memory before the pool"]
names += [f"slot {slot} of layer {layer}" for layer in range(LAYERS) for slot in range(SLOTS)]
names += ["the memory after the pool"]
hit = [name for name, row in zip(names, buffer.tolist(), strict=True) if any(row)]

# PyTorch's own indexing counts a negative index from the end.
pool.zero_()
pool[:, torch.tensor([-1], device=pool.device)] = 1.0
wrapped = [f"slot {slot}" for slot in range(SLOTS) if pool[:, slot].any()]

told = (
    f"the kernel overwrote {' and '.join(hit)}; dst[:, slots] = ... in PyTorch overwrites {wrapped[0]} of every layer"
)
