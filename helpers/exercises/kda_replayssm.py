"""Exercises of the ReplaySSM decode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from helpers.atlas import spec
from helpers.calls import Call
from helpers.exercises.exercise import Exercise, WrongError, needs_a_gpu
from helpers.exercises.predictions import HOW, judge_predictions
from helpers.topology import CPU, HOME, OTHER, stand_in, stand_ins
from kernels import GuardError
from kernels.guards import is_fake

DECODE = "helion_fused_recurrent_kda_replayssm_decode"
RINGS = ("d_cache", "k_cache", "g_cache")

Arguments = dict[str, Any]


def _message(call: Call) -> str:
    try:
        call.run()
    except GuardError as error:
        return str(error)
    return ""


def _with_stand_ins(call: Call) -> Call:
    for name, tensor in call.tensors.items():
        call[name] = stand_in(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device)
    return call


# Find the misplaced tensor among sixteen arguments.


def _arguments(place: torch.device, moved: Mapping[str, torch.device], forced: bool) -> Arguments:
    call = _with_stand_ins(Call.valid(spec(DECODE)))
    call.move_all(place)
    for name, device in moved.items():
        call.move(name, device)
    return {**call.args, "force_flush": call["force_flush"] if forced else None}


def _judge_strays(strays: Callable[[Arguments], dict[str, torch.device]]) -> str:
    situations: list[tuple[torch.device, dict[str, torch.device], bool]] = [
        (HOME, {"k_cache": OTHER}, True),
        (HOME, {}, True),
        (OTHER, {}, False),
        (HOME, dict.fromkeys(RINGS, CPU), False),
        (OTHER, {"mixed_qkv": HOME}, True),
        (HOME, {"write_pos": CPU, "initial_state": OTHER}, True),
        (HOME, {"a": OTHER, "b": OTHER, "A_log": OTHER}, True),
        (OTHER, {"dt_bias": HOME, "out": CPU, "ssm_state_indices": HOME}, False),
    ]
    for place, moved, forced in situations:
        answered = strays(_arguments(place, moved, forced))
        if answered != moved:
            where = ", ".join(f"{name} on {device}" for name, device in moved.items()) or "nothing elsewhere"
            raise WrongError(
                f"with the tensors on {place} and {where}\n  you answered {answered}\n  expected     {moved}"
            )
    return "That is the note below the message: who is away from most of the others, and where."


STRAYS = Exercise(
    id="kda_replayssm.strays",
    title="find the misplaced tensor among sixteen arguments",
    statement="The call has sixteen arguments by name: tensors, two numbers, a flag, and now and then a `None`. Return "
    "every tensor that is *not where most tensors are*, with its device: `{'k_cache': device('cuda:1')}`. Beware: "
    "`mixed_qkv`, with which the guards compare, may be the stray itself. No value may be read.",
    answer="strays",
    stub='''\
def strays(arguments: dict[str, Any]) -> dict[str, torch.device]:
    """The tensors that are away from most of the others, by name, with their devices."""
    raise NotImplementedError  # three lines
''',
    hints=(
        "Keep the devices of the tensors first: isinstance(value, torch.Tensor) leaves out numbers, flags and None.",
        "Then find the device that occurs most often; collections.Counter has most_common(1).",
        "devices = {name: value.device for ... if isinstance(...)}, then home = Counter(devices.values())"
        ".most_common(1)[0][0], and then those that differ from home.",
    ),
    judge=_judge_strays,
)


# Predict the message.


def _situation(letter: str) -> Call:
    call = Call.valid(spec(DECODE))
    if letter == "A":
        for name in RINGS:
            call.move(name, CPU)
        call["g_cache"] = call["g_cache"].to(torch.bfloat16)
    elif letter == "B":
        call.move("initial_state", OTHER)
        call.move("k_cache", OTHER)
    elif letter == "C":
        call.move("force_flush", CPU)
        call.move("write_pos", CPU)
    elif letter == "D":
        call["ssm_state_indices"] = torch.full_like(call["ssm_state_indices"], 99)
    else:
        call.move_all(CPU)
        call["write_pos"] = call["write_pos"].to(torch.int64)
    return call


_REASONS = {
    "A": "the shapes and the dtype of the rings are checked before their device",
    "B": "the device of the state is checked long before that of the rings",
    "C": "write_pos belongs to the four of the ring's sentence; force_flush has a sentence of its own, after it",
    "D": "a slot is a value, and guards read no values; the kernel answers with NaN",
    "E": "write_pos is checked before anybody asks for a GPU",
}


def _judge_predictions(predictions: Mapping[str, str]) -> str:
    judge_predictions(predictions, _REASONS, lambda letter: _message(_situation(letter)), DECODE)
    return "Inputs first, then the flags, then the rings, each with its shape before its device."


PREDICT = Exercise(
    id="kda_replayssm.predict",
    title="predict the message",
    statement="A valid call on `cuda:0`, and then something goes wrong, mostly twice. Which message comes? "
    f"{HOW}\n\n"
    "- **A**: all three caches are on the CPU, and `g_cache` is bf16.\n"
    "- **B**: `initial_state` and `k_cache` are on `cuda:1`.\n"
    "- **C**: `force_flush` and `write_pos` are on the CPU.\n"
    "- **D**: every request asks for slot 99; the pool has six.\n"
    "- **E**: everything is on the CPU, and `write_pos` is int64.",
    answer="predictions",
    stub="""\
predictions: dict[str, str] = {"A": ..., "B": ..., "C": ..., "D": ..., "E": ...}
""",
    hints=(
        "The table of the section What it refuses is in the order of the checks. The first that fails raises.",
        "One of the five is accepted. Which of them is wrong by a value alone?",
        "A is about a dtype, E too; B and C each have two strays, and the earlier check speaks.",
    ),
    judge=_judge_predictions,
)


# Repair the allocation of a rank's pools.

_SLOTS, _H, _HV, _K, _V, _L = 6, 1, 2, 16, 16, 4


def _judge_pools(allocate_pools: Callable[..., Mapping[str, torch.Tensor]]) -> str:
    for device, dtype in ((OTHER, torch.bfloat16), (HOME, torch.bfloat16), (HOME, torch.float16)):
        call = Call.valid(spec(DECODE), on=device)
        with stand_ins():
            pools = allocate_pools(stand_in((5, 64), None, dtype, device), _SLOTS, _H, _HV, _K, _V, _L)
        if not isinstance(pools, Mapping) or set(pools) != {"initial_state", *RINGS}:
            raise WrongError(f"it returned {pools!r}, not a dict of initial_state, d_cache, k_cache and g_cache")
        for name, pool in pools.items():
            call[name] = pool
        if said := _message(_with_stand_ins(call)):
            placed = ", ".join(f"{name} on {pool.device}" for name, pool in pools.items())
            raise WrongError(f"with the activations on {device}: {placed}. The kernel said\n  {said}")
        for name in ("d_cache", "k_cache"):
            if pools[name].dtype != dtype:
                raise WrongError(f"{name} is {pools[name].dtype} for activations of {dtype}: it should be as they are")
        if pools["initial_state"].dtype != torch.float32:
            raise WrongError(f"the state was float32, now it is {pools['initial_state'].dtype}")
    _judge_fresh(allocate_pools)
    return "Every pool follows the activations. On rank 7 this code is as right as on rank 0."


def _judge_fresh(allocate_pools: Callable[..., Mapping[str, torch.Tensor]]) -> None:
    """A fresh state is zero: the stand-ins could not say, real tensors can."""
    state = allocate_pools(torch.zeros(5, 64, dtype=torch.bfloat16), _SLOTS, _H, _HV, _K, _V, _L)["initial_state"]
    if is_fake(state) or bool(state.any()):
        raise WrongError("a new request begins with a state of zeros; yours holds something else")


POOLS = Exercise(
    id="kda_replayssm.pools",
    title="repair the allocation of a rank's pools",
    statement="Every rank calls this once, with its own activations. The decode refuses what it returns, and after a "
    "first repair refuses it again. Repair it, for any rank and any dtype of the activations. The shapes are right as "
    "they are.",
    answer="allocate_pools",
    stub='''\
def allocate_pools(
    mixed_qkv: torch.Tensor, slots: int, H: int, HV: int, K: int, V: int, L: int
) -> dict[str, torch.Tensor]:
    """Pools for a rank: the checkpoint in float32, rings of L entries as mixed_qkv."""
    dtype = mixed_qkv.dtype
    return {
        "initial_state": torch.zeros(slots, HV, V, K, device="cuda"),
        "d_cache": torch.zeros(slots, HV, L, V, dtype=dtype, device="cuda:0"),
        "k_cache": torch.zeros(slots, H, L, K, dtype=dtype),
        "g_cache": torch.zeros(slots, HV, L, K, dtype=dtype, device="cuda"),
    }
''',
    hints=(
        "Four lines name three different devices, and none of them asks where mixed_qkv is.",
        "device=mixed_qkv.device on every line; or mixed_qkv.new_zeros(...), which takes device and dtype from it.",
        "One dtype is wrong as well: log decays are summed over the whole ring, and the kernel insists on float32.",
    ),
    judge=_judge_pools,
)


# Advance the cursor.


def _advanced(position: int, force: int, length: int) -> int:
    return 0 if force or position == length - 1 else position + 1


def _judge_advance(advance: Callable[[torch.Tensor, torch.Tensor | None, int], torch.Tensor]) -> str:
    situations: list[tuple[list[int], list[int] | None, int]] = [
        ([0, 1, 2], None, 4),
        ([0, 3, 1], None, 4),
        ([0, 1, 3], [0, 1, 1], 4),
        ([2, 2, 15], [0, 7, 0], 16),
        ([0, 0], [0, 1], 1),
    ]
    for positions, forced, length in situations:
        write_pos = torch.tensor(positions, dtype=torch.int32)
        flags = None if forced is None else torch.tensor(forced, dtype=torch.int32)
        moved = advance(write_pos, flags, length)
        if write_pos.tolist() != positions:
            raise WrongError(f"write_pos was {positions}, afterwards it is {write_pos.tolist()}: leave it as it is")
        if not isinstance(moved, torch.Tensor) or moved.dtype != torch.int32 or moved.shape != write_pos.shape:
            raise WrongError(f"it returned {moved!r}; the next call takes an int32 tensor [B] and nothing else")
        _judge_positions(positions, forced or [0] * len(positions), length, moved.tolist())
    _judge_waiting(advance)
    return "A flush empties the ring, whatever made it happen, and the cursor moves without a word to the host."


def _judge_positions(positions: list[int], forced: list[int], length: int, moved: list[int]) -> None:
    for position, force, got in zip(positions, forced, moved, strict=True):
        want = _advanced(position, force, length)
        if got == want:
            continue
        told = f"L = {length}, write_pos {position}, force_flush {force}: you went to {got}, it should be {want}. "
        if want == 0:
            told += (
                f"There is no entry {got}, so the kernel will answer NaN"
                if got >= length
                else "The ring was folded into the checkpoint: to keep its entries is to apply them twice"
            )
        else:
            told += "An entry was appended: the next one goes behind it" if got < want else "An entry would be skipped"
        raise WrongError(told)


def _judge_waiting(advance: Callable[[torch.Tensor, torch.Tensor | None, int], torch.Tensor]) -> None:
    """With stand-ins on another GPU: nothing may be read on the host, and nothing may leave the device."""
    write_pos, flags = (stand_in((3,), None, torch.int32, OTHER) for _ in range(2))
    try:
        with stand_ins():
            moved = advance(write_pos, flags, 16)
    except Exception as error:
        if needs_a_gpu(error):
            raise
        raise WrongError(
            f"with tensors on {OTHER} it raised {type(error).__name__}: the next position must be computed where "
            "write_pos is, without reading a value on the host, or no CUDA graph could hold it"
        ) from error
    if moved.device != OTHER:
        raise WrongError(f"write_pos was on {OTHER}, the next one is on {moved.device}, where the next call refuses it")


ADVANCE = Exercise(
    id="kda_replayssm.advance",
    title="advance the cursor",
    statement="The kernel leaves `write_pos` to its caller. Write the step between two calls: behind the entry that "
    "was appended, or to 0 if the row was flushed, because its ring was full or because `force_flush` (which may be "
    "`None`) said so. Return a new int32 tensor on `write_pos`'s device and leave `write_pos` alone; the caller copies "
    "the result into it. This runs at every token, inside a CUDA graph, so no value may be read on the host: no "
    "`.item()`, no `.tolist()`, no `if` on a tensor.",
    answer="advance",
    stub='''\
def advance(write_pos: torch.Tensor, force_flush: torch.Tensor | None, length: int) -> torch.Tensor:
    """The write_pos [B] of the next step, after one with rings of this length."""
    raise NotImplementedError  # two to four lines
''',
    hints=(
        "Which rows were flushed? A bool tensor: write_pos == length - 1, and with flags also force_flush != 0.",
        "Two bool tensors are joined with |. An if on `force_flush is None` is fine: that reads no tensor's value.",
        "(write_pos + 1).masked_fill(flushed, 0) keeps dtype and device.",
    ),
    judge=_judge_advance,
)

EXERCISES = (STRAYS, PREDICT, POOLS, ADVANCE)
