"""Tensor parallelism: the heads of an attention layer are dealt out, and each rank attends with its own."""

from __future__ import annotations

from typing import Any

import torch

import kernels
from helpers.calls import same_bits
from helpers.rank_programs.rank import Rank

TOKENS, HEADS, WIDTH, ROWS, TOPK = 2, 32, 512, 48, 128


def layer() -> dict[str, torch.Tensor]:
    """Queries of all heads, the cache that they share, and which of its rows each token attends to."""
    generator = torch.Generator().manual_seed(0)
    q, kv = (torch.randn(shape, generator=generator) for shape in ((TOKENS, HEADS, WIDTH), (ROWS, 1, WIDTH)))
    return {
        "q": (q / 0.01).clamp(-448, 448).to(torch.float8_e4m3fn),
        "kv": (kv / 0.01).clamp(-448, 448).to(torch.float8_e4m3fn),
        "indices": torch.randint(-1, ROWS, (TOKENS, 1, TOPK), generator=generator, dtype=torch.int32),
        "q_scale": torch.tensor(0.01),
        "kv_scale": torch.tensor(0.01),
    }


def shard(tensors: dict[str, torch.Tensor], first: int, heads: int) -> dict[str, torch.Tensor]:
    """The same layer with some of its heads, and with heads of zeros up to the 64 that the kernel takes."""
    own = tensors["q"].narrow(1, first, heads)
    q, _ = kernels.pad_q8kv8_heads(own)
    return {**tensors, "q": q}


def allocate_bare(q: torch.Tensor) -> torch.Tensor:
    """Room for the result, wherever "cuda" happens to be."""
    return torch.empty(*q.shape[:2], 512, dtype=torch.bfloat16, device="cuda")


def allocate_beside(q: torch.Tensor) -> torch.Tensor:
    """Room for the result, where q is."""
    return torch.empty(*q.shape[:2], 512, dtype=torch.bfloat16, device=q.device)


def attend(tensors: dict[str, torch.Tensor], out: torch.Tensor, heads: int) -> torch.Tensor:
    """Attention of a rank's heads, those of zeros cut off again."""
    arguments: dict[str, Any] = {**tensors, "sm_scale": WIDTH**-0.5, "out": out}
    kernels.sparse_mla_q8kv8_prefill_fwd(**arguments)
    return out.narrow(1, 0, heads)


def main(rank: Rank, *ways: str) -> None:
    """Attend with this rank's heads, in each of these ways: "bare", "beside" or "set_device"."""
    heads = HEADS // rank.size
    own = shard(layer(), rank.index * heads, heads)
    for way in ways:
        with rank.gpus():
            if way == "set_device":
                torch.cuda.set_device(rank.device)
            placed = {name: rank.place(tensor) for name, tensor in own.items()}
            out = allocate_beside(placed["q"]) if way == "beside" else allocate_bare(placed["q"])
        rank.show(**placed, out=out)
        rank.barrier()
        with rank.gpus():
            attend(placed, out, heads)
        print(f"{way}: accepted")
    compare(rank, own, heads)


def compare(rank: Rank, own: dict[str, torch.Tensor], heads: int) -> None:
    """Put the heads of all ranks together; rank 0 compares them with those of one process that has them all."""
    parts = rank.gather(attend_here(rank, own, heads))
    if rank.index == 0:
        alone = attend_here(rank, shard(layer(), 0, HEADS), HEADS)
        print(f"{rank.size} ranks x {heads} heads equal one process x {HEADS}, bit for bit:", end=" ")
        print(same_bits(torch.cat(parts, 1), alone))


def attend_here(rank: Rank, tensors: dict[str, torch.Tensor], heads: int) -> torch.Tensor:
    """The numbers, from wherever this rank can compute."""
    moved = {name: tensor.to(rank.numbers) for name, tensor in tensors.items()}
    with kernels.interpreter(rank.numbers.type == "cpu"):
        return attend(moved, allocate_beside(moved["q"]), heads)
