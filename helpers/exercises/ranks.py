"""Exercises about code that runs once on every rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from helpers.exercises.exercise import Exercise, UnsolvedError, WrongError
from helpers.rank_programs import expert_parallel
from helpers.topology import CPU, HOME, OTHER, stand_in, stand_ins
from kernels import GuardError, fused_mamba_state_scatter_with_mask, sparse_mla_q8kv8_prefill_fwd


def _said(function: Callable[..., object], *arguments: Any) -> str:
    """What the guards say about a call with stand-ins, or nothing."""
    try:
        with stand_ins():
            function(*arguments)
    except GuardError as error:
        return str(error)
    return ""


# Which ranks are refused?

_RANKS = 4


def _situation(letter: str, rank: int) -> tuple[int, int]:
    """The GPUs on which one rank has q and out, by the number that the process itself uses."""
    return {
        "A": (rank, 0),
        "B": (rank, rank),
        "C": (rank, 0),
        "D": (0, 0),
        "E": (rank % 2, 0),
    }[letter]


_REASONS = {
    "A": "without set_device the current device is GPU 0 in every process, and rank 0 is right by luck",
    "B": "after set_device, in the same thread, the current device is the rank's own",
    "C": "the current device belongs to a thread, and a new thread begins with GPU 0",
    "D": "a process that sees one GPU calls it cuda:0, whichever it is",
    "E": "on each machine the second rank is the one whose GPU is not cuda:0",
}


def _is_refused(q_on: int, out_on: int) -> bool:
    """Ask the kernel's own guards."""
    on, elsewhere = torch.device("cuda", q_on), torch.device("cuda", out_on)
    with stand_ins():
        q, kv = (torch.empty(2, n, 512, dtype=torch.float8_e4m3fn, device=on) for n in (64, 1))
        indices = torch.empty(2, 1, 128, dtype=torch.int32, device=on)
        scale = torch.empty((), device=on)
        out = torch.empty(2, 64, 512, dtype=torch.bfloat16, device=elsewhere)
    return bool(_said(partial(sparse_mla_q8kv8_prefill_fwd, out=out), q, kv, indices, 1.0, scale, scale))


def _judge_refused(refused: Mapping[str, list[int]]) -> str:
    if all(refused.get(letter, ...) is ... for letter in _REASONS):
        raise UnsolvedError
    for letter, reason in _REASONS.items():
        seen = [rank for rank in range(_RANKS) if _is_refused(*_situation(letter, rank))]
        answered = refused.get(letter)
        if not isinstance(answered, list) or sorted(answered) != seen:
            raise WrongError(f"{letter}: you answered {answered}, the guards refuse {seen}: {reason}")
    return 'Where "cuda" is depends on process, thread and environment; where q is depends on q.'


REFUSED = Exercise(
    id="ranks.refused",
    title="which ranks are refused?",
    statement=f"{_RANKS} ranks run the same code. Each has `q` on its own GPU and allocates "
    '`out` with `device="cuda"`. Say which ranks the guard refuses, as a list of numbers, in each of these cases:\n\n'
    "- **A**: one machine with four GPUs, `q` is on `cuda:{rank}`. Nobody calls `set_device`.\n"
    "- **B**: as A, and each rank calls `torch.cuda.set_device(rank)` first.\n"
    "- **C**: as B, but the allocation happens in a thread that each rank starts afterwards.\n"
    "- **D**: the launcher gives each process `CUDA_VISIBLE_DEVICES={rank}`, and `q` is on `cuda:0`. Nobody calls "
    "`set_device`.\n"
    "- **E**: two machines with two GPUs each; ranks 0 and 1 run on the first, 2 and 3 on the second, and `q` is on "
    "`cuda:{rank % 2}`. Nobody calls `set_device`.",
    answer="refused",
    stub="""\
refused: dict[str, list[int]] = {"A": ..., "B": ..., "C": ..., "D": ..., "E": ...}
""",
    hints=(
        '"cuda" means the current device. Ask in each case which that is at the moment of the allocation.',
        "set_device is for one thread. Numbers of GPUs are for one process.",
        "In two cases nobody is refused, in two everybody but rank 0, in one every second rank.",
    ),
    judge=_judge_refused,
)


# The batch of an idle rank.


def _as_lists(batch: Any) -> dict[str, torch.Tensor]:
    if not isinstance(batch, list | tuple) or len(batch) != 3:
        raise WrongError(f"it returned {batch!r}, not three tensors")
    return dict(zip(("req_pool_indices", "prefix_lens", "extend_seq_lens"), batch, strict=True))


def _judge_batch(batch_of: Callable[[list[tuple[int, int, int]], torch.Tensor], list[torch.Tensor]]) -> str:
    table = expert_parallel.table()
    for requests in ([(1, 3, 1), (4, 2, 2)], [(5, 4, 1)], []):
        for device in (OTHER, HOME):
            pool = stand_in(tuple(table.shape), None, table.dtype, device)
            with stand_ins():
                lists = _as_lists(batch_of(requests, pool))
            if said := _said(expert_parallel.plan, lists, pool):
                raise WrongError(f"for {len(requests)} requests and a pool on {device} the kernel said\n  {said}")
        # Stand-ins hold no values, so these are looked at on the CPU.
        answered = [tensor.tolist() for tensor in _as_lists(batch_of(requests, table)).values()]
        expected = [list(column) for column in zip(*requests, strict=True)] or [[], [], []]
        if answered != expected:
            raise WrongError(f"for the requests {requests}\n  you answered {answered}\n  expected     {expected}")
    return (
        "An empty batch has a dtype and a device like any other. A rank with nothing to do still has to say it right."
    )


BATCH = Exercise(
    id="ranks.idle",
    title="the batch of an idle rank",
    statement="Each rank turns its requests into the three lists of the kv-canary plan. A request is a tuple (row of "
    "the pool, positions in the cache, new positions). This version is refused on every rank; and on an idle rank, "
    "which has no requests, it does not even produce three lists. Repair it: three int64 tensors of one length, where "
    "`pool` is, for any number of requests.",
    answer="batch_of",
    stub='''\
def batch_of(requests: list[tuple[int, int, int]], pool: torch.Tensor) -> list[torch.Tensor]:
    """Pool rows, cached positions and new positions of some requests, [n] each."""
    return [torch.tensor(column) for column in zip(*requests, strict=True)]
''',
    hints=(
        "zip(*[]) yields nothing at all. And what is the dtype of torch.tensor([])?",
        "Say everything: torch.tensor(..., dtype=torch.int64, device=pool.device).",
        "One way: for place in range(3), a tensor of [request[place] for request in requests].",
    ),
    judge=_judge_batch,
)


# A pool for a stage.


def _judge_pool(pool_for: Callable[[dict[str, Any], torch.Tensor], torch.Tensor]) -> str:
    sizes = [(OTHER, 2, torch.float32), (HOME, 2, torch.float32), (OTHER, 3, torch.bfloat16)]
    for device, layers, dtype in sizes:
        told = {"size": (2, 5, 6), "dtype": dtype, "device": HOME}
        src = stand_in((layers, 3, 2, 6), None, torch.float32, device)
        slots, steps = (stand_in((3,), None, torch.int64, device) for _ in range(2))
        with stand_ins():
            pool = pool_for(dict(told), src)
        if not isinstance(pool, torch.Tensor):
            raise WrongError(f"it returned {pool!r}, not a tensor")
        where = f"for a scratch of {layers} layers on {device}"
        if said := _said(fused_mamba_state_scatter_with_mask, pool, src, slots, steps):
            raise WrongError(f"{where} the kernel said\n  {said}")
        if tuple(pool.shape) != (layers, 5, 6) or pool.dtype != dtype:
            raise WrongError(f"{where}, told {dtype}, the pool is {tuple(pool.shape)} of {pool.dtype}")
    example = {"size": (2, 5, 6), "dtype": torch.float32, "device": HOME}
    if pool_for(example, torch.ones(2, 3, 2, 6, device=CPU)).any():
        raise WrongError("a new pool has to begin with zeros")
    return "Slots, state and dtype come from what was told; layers and device from what this stage owns."


POOL = Exercise(
    id="ranks.stage",
    title="a pool for a stage",
    statement="Stage 0 of a pipeline tells the other stages about its pool [layers, slots, state]: `told` has its "
    "`size`, `dtype` and `device`. Every stage makes its own pool from that, and the scatter is refused on stage 1. "
    "Besides, the last stage may own more layers than the first. Repair it: as many slots, a state of that size and "
    "that dtype as told, filled with zeros; device and layers as the stage's own scratch `src` "
    "[layers, requests, steps, state].",
    answer="pool_for",
    stub='''\
def pool_for(told: dict[str, Any], src: torch.Tensor) -> torch.Tensor:
    """A stage's own pool of states, beside its scratch."""
    return torch.zeros(**told)
''',
    hints=(
        "Which of the three things told are true of every stage, and which only of stage 0?",
        'The device is src.device. The first size is src.shape[0], the others are told["size"][1:].',
        'src.new_zeros(..., dtype=told["dtype"]) takes the device from src.',
    ),
    judge=_judge_pool,
)

EXERCISES = (REFUSED, BATCH, POOL)
