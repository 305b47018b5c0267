"""Pipeline parallelism: each stage owns some of the layers, and the pool of their recurrent states.

After speculative decoding every stage keeps the state of the last accepted draft step, layer by layer. Which steps were
accepted is known to the last stage, which samples; it tells the others.
"""

from __future__ import annotations

from typing import Any

import torch

from helpers.calls import same_bits
from helpers.rank_programs.rank import Rank
from kernels import fused_mamba_state_scatter_with_mask, interpreter

LAYERS, SLOTS, REQUESTS, STEPS, STATE = 4, 5, 3, 2, 6
VERDICT = {"slots": [4, 0, 2], "steps": [1, -1, 0]}


def scratch() -> torch.Tensor:
    """States of all layers after each draft step, [layers, requests, steps, state]."""
    return torch.randn(LAYERS, REQUESTS, STEPS, STATE, generator=torch.Generator().manual_seed(0))


def pool_as_told(pool: torch.Tensor) -> dict[str, Any]:
    """What a stage tells the others about its pool, so that they make theirs alike."""
    return {"size": tuple(pool.shape), "dtype": pool.dtype, "device": pool.device}


def pool_beside(src: torch.Tensor) -> torch.Tensor:
    """A pool for the layers of a stage's scratch, where that is."""
    return src.new_zeros(src.shape[0], SLOTS, *src.shape[3:])


def keep(pool: torch.Tensor, src: torch.Tensor, verdict: dict[str, list[int]]) -> torch.Tensor:
    """The pool after the accepted states have been copied into it."""
    slots, steps = (torch.tensor(verdict[name], device=src.device) for name in ("slots", "steps"))
    fused_mamba_state_scatter_with_mask(pool, src, slots, steps)
    return pool


def main(rank: Rank, way: str) -> None:
    """Keep the accepted states in a pool made "as_told" by stage 0, or "beside" this stage's scratch."""
    layers = LAYERS // rank.size
    own = scratch().narrow(0, rank.index * layers, layers)
    verdict = rank.broadcast(VERDICT if rank.index == rank.size - 1 else None, source=rank.size - 1)
    with rank.gpus():
        src = rank.place(own)
        pool = pool_beside(src)
    told = rank.broadcast(pool_as_told(pool), source=0)
    with rank.gpus():
        if way == "as_told":
            pool = torch.zeros(**told)
    rank.show(pool=pool, src=src)
    rank.barrier()
    with rank.gpus():
        keep(pool, src, verdict)
    print(f"{way}: accepted")
    compare(rank, own, verdict)


def compare(rank: Rank, own: torch.Tensor, verdict: dict[str, list[int]]) -> None:
    """Put the pools of all stages together; rank 0 compares them with the pool of one process that has all layers."""
    parts = rank.gather(keep_here(rank, own, verdict))
    if rank.index == 0:
        alone = keep_here(rank, scratch(), verdict)
        print(f"{rank.size} stages x {own.shape[0]} layers equal one process x {LAYERS}, bit for bit:", end=" ")
        print(same_bits(torch.cat(parts), alone))


def keep_here(rank: Rank, own: torch.Tensor, verdict: dict[str, list[int]]) -> torch.Tensor:
    """The numbers, from wherever this rank can compute."""
    src = own.to(rank.numbers)
    with interpreter(rank.numbers.type == "cpu"):
        return keep(pool_beside(src), src, verdict)
