"""Exercises of the kv-canary plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from helpers.atlas import spec
from helpers.calls import Call
from helpers.exercises.exercise import Exercise, UnsolvedError, WrongError
from helpers.exercises.predictions import HOW, judge_predictions
from helpers.topology import CPU, HOME, OTHER, runnable, stand_in, stand_ins
from kernels import GuardError

PLAN = "launch_canary_plan_kernels"
DEVICE = torch.device
Scheduler = Callable[[list[tuple[int, int, int]], torch.Tensor], list[torch.Tensor]]


def _message(call: Call) -> str:
    try:
        call.run()
    except GuardError as error:
        return str(error)
    return ""


# Translate the internal names.

_INTERNAL = (
    "lut_tensor",
    "out_write_offsets",
    "out_write_seed_slot_indices",
    "out_verify_num_valid",
    "out_verify_enable",
    "out_verify_prev_slot_indices",
)


def _passed() -> dict[str, str]:
    """What the guards themselves say: every tensor of a call is moved in turn, and the refusal names it twice."""
    found: dict[str, str] = {}
    for name in Call.valid(spec(PLAN)).tensors:
        call = Call.valid(spec(PLAN))
        call.move(name, CPU)
        try:
            call.run()
        except GuardError as error:
            found.update({internal: error.argument for internal in _INTERNAL if f": {internal} " in str(error)})
    return found


def _judge_names(names: Mapping[str, str]) -> str:
    if all(names.get(internal, ...) is ... for internal in _INTERNAL):
        raise UnsolvedError
    for internal, passed in _passed().items():
        answered = names.get(internal, ...)
        if answered != passed:
            answered = "nothing" if answered is ... else repr(answered)
            raise WrongError(f"{internal}: you answered {answered}. Look at the argument called {_hint_at(passed)}")
    return "With these six in mind you can read the engine's own tracebacks, which have no notes."


def _hint_at(passed: str) -> str:
    owner, _, field = passed.partition(".")
    return f"{owner}, and at its fields: one is called {field[:6]}…" if field else f"{owner[:8]}…"


TRANSLATE = Exercise(
    id="kv_canary.names",
    title="translate the internal names",
    statement="The messages name some tensors as they are called inside. Say what the caller passed under each name, "
    'spelled as in the call: `"prefix_lens"` for an argument, `"verify_plan_out.verify_slot_indices"` for a field of a '
    "plan.",
    answer="names",
    stub="""\
names: dict[str, str] = {
    "lut_tensor": ...,
    "out_write_offsets": ...,
    "out_write_seed_slot_indices": ...,
    "out_verify_num_valid": ...,
    "out_verify_enable": ...,
    "out_verify_prev_slot_indices": ...,
}
""",
    hints=(
        "LUT stands for look-up table. Which argument is looked up, slot by slot?",
        "help(kernels.VerifyPlan) and help(kernels.WritePlan) list the fields.",
        "Provoke it: put one field on another device, and read the note that begins with name:.",
    ),
    judge=_judge_names,
)


# Find what has to be moved.


def _judge_to_mend(to_mend: Callable[[dict[str, Any]], list[str]]) -> str:
    everything = list(Call.valid(spec(PLAN)).tensors)
    plan = [name for name in everything if name.startswith("verify_plan_out.")]
    inputs = ["req_pool_indices", "prefix_lens", "extend_seq_lens", "req_to_token"]
    situations: list[tuple[DEVICE, list[str], DEVICE, list[str]]] = [
        (HOME, [], OTHER, []),
        (HOME, ["req_pool_indices"], CPU, ["req_pool_indices"]),
        (HOME, plan, OTHER, ["verify_plan_out"]),
        (OTHER, [], HOME, []),
        (OTHER, ["prefix_lens", "extend_seq_lens"], CPU, ["extend_seq_lens", "prefix_lens"]),
        (OTHER, plan, HOME, ["verify_plan_out"]),
        (HOME, ["verify_plan_out.enable", "req_to_token"], OTHER, ["req_to_token", "verify_plan_out"]),
        # Most of the arguments that are tensors themselves, but not most of the tensors.
        (HOME, inputs, OTHER, sorted(inputs)),
        (OTHER, ["write_plan_out.write_offsets"], CPU, ["write_plan_out"]),
    ]
    for home, moved, away, expected in situations:
        call = Call.valid(spec(PLAN), on=home)
        for name in moved:
            call.move(name, away)
        answered = to_mend(dict(call.args))
        if not isinstance(answered, list) or sorted(answered) != expected:
            where = f"{', '.join(moved)} on {away}" if moved else "nothing elsewhere"
            if moved == plan:
                where = f"every field of verify_plan_out on {away}"
            raise WrongError(
                f"with the call on {home} and {where}\n  you answered {answered}\n  expected     {expected}\n"
                f"  the message is {_message(call) or 'none: the call is accepted'}"
            )
    return "The message measures against one tensor, you counted all of them: a misplaced plan blames nobody else now."


TO_MEND = Exercise(
    id="kv_canary.mend",
    title="find what has to be mended",
    statement="Given the arguments of a call by name, return the names of those that have to be moved or built anew, "
    "in any order, each once. Most tensors are where they should be. A plan counts as one argument, of which one field "
    "or all of them can be astray; `dataclasses.fields(plan)` lists them. Numbers and None have no device.",
    answer="to_mend",
    stub='''\
def to_mend(arguments: dict[str, Any]) -> list[str]:
    """Arguments with a tensor that is not where most tensors of the call are."""
    raise NotImplementedError  # about six lines
''',
    hints=(
        "Do not start from the verify plan, as the guard does: start from where most of the tensors are.",
        "collections.Counter(devices).most_common(1) finds that place. Count tensors, not arguments.",
        "kernels.guards.tensors_of(arguments) gives every tensor by name, fields as verify_plan_out.enable. What "
        "stands before the dot is the argument.",
    ),
    judge=_judge_to_mend,
)


# Predict the message.


def _situation(letter: str) -> Call:
    call = Call.valid(spec(PLAN), on=CPU if letter == "D" else HOME)
    if letter == "A":
        call.move("req_pool_indices", CPU)
        call["prefix_lens"] = call["prefix_lens"].to(torch.int32)
    elif letter == "B":
        for name in [name for name in call.tensors if name.startswith("verify_plan_out.")]:
            call.move(name, OTHER)
    elif letter == "C":
        call.move("req_to_token", CPU)
        call["full_to_swa_index_mapping"] = None
    elif letter == "E":
        call.move("req_to_verify_expected_tokens", CPU)
        call["req_to_verify_expected_tokens_valid_lens"] = None
    return call


_REASONS = {
    "A": "all dtypes are looked at before any device",
    "B": "the verify plan is what the others are measured against, and req_pool_indices is the first of them",
    "C": "a window without a mapping is refused before any tensor is looked at",
    "D": "all tensors agree, and on the CPU the plan is made in plain PyTorch",
    "E": "whether the lengths are there at all is asked before anybody looks at the tokens",
}


def _judge_predictions(predictions: Mapping[str, str]) -> str:
    judge_predictions(predictions, _REASONS, lambda letter: _message(_situation(letter)), PLAN)
    return "Numbers first, then layout, dtype, shape and only then devices: that is why a wrong dtype hides a stray."


PREDICT = Exercise(
    id="kv_canary.predict",
    title="predict the message",
    statement="Everything is on `cuda:0` and the window is 5, then one or two things go wrong. Which message comes? "
    f"{HOW}\n\n"
    "- **A**: `req_pool_indices` is on the CPU, and `prefix_lens` is int32.\n"
    "- **B**: `verify_plan_out` was allocated on `cuda:1`.\n"
    "- **C**: `req_to_token` is on the CPU, and `full_to_swa_index_mapping` is None.\n"
    "- **D**: all tensors are on the CPU.\n"
    "- **E**: `req_to_verify_expected_tokens` is on the CPU, and its valid lengths are None.",
    answer="predictions",
    stub="""\
predictions: dict[str, str] = {"A": ..., "B": ..., "C": ..., "D": ..., "E": ...}
""",
    hints=(
        "The list of the checks in their order is in the section above. The first that fails raises.",
        "In B the plan is astray, and the message blames somebody else. One of the five is accepted.",
        "A is about a dtype, C and E are about something that was not passed.",
    ),
    judge=_judge_predictions,
)


# Repair the scheduler.

_STEPS: tuple[list[tuple[int, int, int]], ...] = ([(3, 7, 1), (5, 12, 4)], [(1, 0, 2)], [])
_COLUMNS = ("req_pool_indices", "prefix_lens", "extend_seq_lens")


def _judge_planning(batch_tensors: Scheduler) -> str:
    for requests in _STEPS:
        made = _made(batch_tensors, requests, torch.zeros(6, 12, dtype=torch.int32, device=runnable()))
        for place, name in enumerate(_COLUMNS):
            expected = [request[place] for request in requests]
            if made[name].tolist() != expected:
                raise WrongError(f"for the requests {requests} {name} is {made[name].tolist()}, not {expected}")
        for device in (HOME, OTHER, CPU):
            said = _refused(batch_tensors, requests, device)
            if said:
                raise WrongError(
                    f"with req_to_token on {device} and the requests {requests}, the kernel said\n  {said}"
                )
    return (
        "The lists go to the device of the table as they become tensors, and an idle step's empty lists are int64 too."
    )


def _refused(
    batch_tensors: Scheduler,
    requests: list[tuple[int, int, int]],
    device: DEVICE,
) -> str:
    """What the kernel says to the tensors that a scheduler makes for a table on a device, all of them stand-ins."""
    call = Call.valid(spec(PLAN), on=device)
    for name, tensor in call.tensors.items():
        call[name] = stand_in(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device)
    call["req_to_verify_expected_tokens"] = call["req_to_verify_expected_tokens_valid_lens"] = None
    with stand_ins():
        made = _made(batch_tensors, requests, call["req_to_token"])
    for name in _COLUMNS:
        call[name] = made[name]
    return _message(call)


def _made(
    batch_tensors: Scheduler,
    requests: list[tuple[int, int, int]],
    table: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """What a scheduler makes of a batch, by name."""
    try:
        made = batch_tensors(list(requests), table)
    except (TypeError, ValueError, IndexError) as error:
        raise WrongError(f"for the requests {requests} it raised {type(error).__name__}: {error}") from error
    if not isinstance(made, list | tuple) or [isinstance(item, torch.Tensor) for item in made] != [True] * 3:
        raise WrongError(f"for the requests {requests} it returned {made!r}, not three tensors")
    return dict(zip(_COLUMNS, made, strict=True))


SCHEDULER = Exercise(
    id="kv_canary.scheduler",
    title="repair the scheduler",
    statement="A scheduler keeps its batch as a list of (row, prefix length, new tokens), one for each request, and "
    "makes three tensors of it before each step. Repair it for a table on any device, the CPU included. A rank without "
    "requests still takes part in the step, with an empty list. Write it without scrolling up.",
    answer="batch_tensors",
    stub='''\
def batch_tensors(requests: list[tuple[int, int, int]], table: torch.Tensor) -> list[torch.Tensor]:
    """req_pool_indices, prefix_lens and extend_seq_lens of a batch, for this req_to_token."""
    rows, prefixes, extends = zip(*requests, strict=True)
    return [torch.tensor(rows), torch.tensor(prefixes), torch.tensor(extends)]
''',
    hints=(
        "torch.tensor([...]) puts its tensor on the CPU. Which argument knows where it should be?",
        "device=table.device. Then try an empty list: what does zip(*[]) give, and which dtype has torch.tensor([])?",
        "A list comprehension for each column works with an empty list too; dtype=torch.int64 says what torch.tensor "
        "cannot guess.",
    ),
    judge=_judge_planning,
)

EXERCISES = (TRANSLATE, TO_MEND, PREDICT, SCHEDULER)
