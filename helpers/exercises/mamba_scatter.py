"""Exercises of the fused Mamba state scatter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.atlas import spec
from helpers.atlas.changes import strided
from helpers.calls import Call
from helpers.exercises.exercise import Exercise, WrongError
from helpers.exercises.predictions import HOW, judge_predictions
from helpers.topology import CPU, HOME, OTHER, stand_in, stand_ins
from kernels import GuardError, interpreter

STATE = "fused_mamba_state_scatter_with_mask"
DEVICE = torch.device


def _tensors(**moved: DEVICE) -> dict[str, torch.Tensor]:
    """Stand-ins for a valid call on cuda:0, some of them elsewhere: no check may look at a value."""
    shapes = {"dst": (2, 6, 2, 5), "src": (2, 4, 3, 2, 5), "dst_indices_raw": (4,), "step_indices_raw": (4,)}
    return {
        name: stand_in(shape, None, torch.int64 if "indices" in name else torch.float32, moved.get(name, HOME))
        for name, shape in shapes.items()
    }


# Find the misplaced tensors.


def _judge_misplaced(misplaced: Callable[[dict[str, torch.Tensor]], list[str]]) -> str:
    everywhere = dict.fromkeys(_tensors(), OTHER)
    placements: list[dict[str, DEVICE]] = [
        {},
        {"src": OTHER},
        {"step_indices_raw": CPU},
        {"src": CPU, "dst_indices_raw": OTHER},
        everywhere,
        {**everywhere, "src": HOME},
    ]
    for moved in placements:
        tensors = _tensors(**moved)
        expected = [name for name in tensors if tensors[name].device != tensors["dst"].device]
        answered = misplaced(tensors)
        if not isinstance(answered, list) or sorted(answered) != sorted(expected):
            placed = ", ".join(f"{name} on {tensor.device}" for name, tensor in tensors.items())
            raise WrongError(f"with {placed}\n  you answered {answered}\n  expected     {expected}")
    return "Every tensor is measured against dst: not against cuda:0, and not against the current device."


MISPLACED = Exercise(
    id="mamba_scatter.misplaced",
    title="find the misplaced tensors",
    statement="Given the tensors of a call by name, return the names of those that are not where `dst` is. A call "
    "whose tensors are all on `cuda:1` has none, whatever the current device is.",
    answer="misplaced",
    stub='''\
def misplaced(tensors: dict[str, torch.Tensor]) -> list[str]:
    """Names of the tensors that are on another device than tensors["dst"]."""
    raise NotImplementedError  # one line
''',
    hints=(
        "Every tensor knows its device: tensor.device. Two devices can be compared with == and !=.",
        'Compare with tensors["dst"].device, and with nothing else: no "cuda:0", no .is_cuda.',
        'A list comprehension over tensors.items(), with "if tensor.device != ..." at its end.',
    ),
    judge=_judge_misplaced,
)


# Write the missing guard.


def _outcome(guard: Callable[[torch.Tensor, torch.Tensor], None], dst: torch.Tensor, slots: torch.Tensor) -> str:
    """What a guard says about two stand-ins: its message, or nothing."""
    try:
        guard(dst, slots)
    except NotImplementedError:
        raise
    except ValueError as error:
        return str(error)
    except DataDependentOutputException as error:
        raise WrongError(
            f"for {_shown(slots)} it looked at a value. A guard reads device, dtype, shape and stride only: to look at "
            "a value it would have to wait for the GPU, and no CUDA graph could capture it"
        ) from error
    except Exception as error:
        raise WrongError(
            f"for {_shown(slots)} it raised {type(error).__name__}: {error}\n"
            "  What is asked for is a ValueError, and a guard that reads device and dtype only"
        ) from error
    return ""


def _judge_check_indices(check_indices: Callable[[torch.Tensor, torch.Tensor], None]) -> str:
    device, dtype = (
        "dst_indices_raw must be on dst's device {}, got {}",
        "dst_indices_raw must have an integer dtype, got {}",
    )
    expectations = [
        (HOME, HOME, torch.int64, ""),
        (OTHER, OTHER, torch.int32, ""),
        (HOME, HOME, torch.uint8, ""),
        (HOME, CPU, torch.int64, device.format("cuda:0", "cpu")),
        (HOME, OTHER, torch.int64, device.format("cuda:0", "cuda:1")),
        (HOME, HOME, torch.float32, dtype.format("torch.float32")),
        (HOME, HOME, torch.bool, dtype.format("torch.bool")),
        (OTHER, CPU, torch.float32, device.format("cuda:1", "cpu")),
        (HOME, HOME, torch.complex64, dtype.format("torch.complex64")),
    ]
    for pool_device, slots_device, slots_dtype, expected in expectations:
        dst = stand_in((2, 6, 2, 5), None, torch.float32, pool_device)
        slots = stand_in((4,), None, slots_dtype, slots_device)
        said = _outcome(check_indices, dst, slots)
        if said != expected:
            raise WrongError(
                f"for dst on {dst.device} and {_shown(slots)}\n"
                f"  your guard said {said or 'nothing'}\n  expected        {expected or 'nothing'}"
            )
    return "Device first, dtype second, and no value was read: this guard costs no wait and can be captured."


def _shown(slots: torch.Tensor) -> str:
    return f"indices of {slots.dtype} on {slots.device}"


CHECK_INDICES = Exercise(
    id="mamba_scatter.guard",
    title="write the missing guard",
    statement="The engine checks `dst` and `src` but forgets its indices. Write the guard that is missing: a "
    "ValueError with exactly these words,\n\n"
    "1. `dst_indices_raw must be on dst's device cuda:0, got cpu` when the devices differ,\n"
    "2. `dst_indices_raw must have an integer dtype, got torch.float32` when it holds no integers (a bool is a mask, "
    "not an index),\n\n"
    "with the devices and dtypes of the call at hand. It may read metadata only, never a value.",
    answer="check_indices",
    stub='''\
def check_indices(dst: torch.Tensor, dst_indices_raw: torch.Tensor) -> None:
    """Refuse indices that a kernel on dst's device could not use."""
    raise NotImplementedError  # two if statements
''',
    hints=(
        "An f-string prints a device as cuda:0 and a dtype as torch.float32.",
        "Compare dst_indices_raw.device with dst.device. Whether it is a CUDA tensor says nothing about which GPU.",
        "A dtype knows is_floating_point and is_complex; torch.bool is neither, and still no integer.",
    ),
    judge=_judge_check_indices,
)


# Predict the message.


def _situation(letter: str) -> Call:
    call = Call.valid(spec(STATE))
    if letter == "A":
        call.move("src", OTHER)
        call["dst"] = strided(call["dst"])
    elif letter == "B":
        call.move_all(CPU)
    elif letter == "C":
        call.move("dst_indices_raw", CPU)
        call["src"] = strided(call["src"])
    elif letter == "D":
        call.move("src", OTHER)
        for name in ("dst_indices_raw", "step_indices_raw"):
            call[name] = call[name].narrow(0, 0, 0)
    else:
        call["step_indices_raw"] = call["step_indices_raw"].to(torch.bool)
        call.move("step_indices_raw", CPU)
    return call


_REASONS = {
    "A": "devices are compared before anything else",
    "B": "all four agree, so the first check passes; the second asks for CUDA",
    "C": "the layout of src is checked before the indices' device",
    "D": "a call without requests returns before its checks",
    "E": "the device of an index is checked before its dtype",
}


def _judge_predictions(predictions: Mapping[str, str]) -> str:
    judge_predictions(predictions, _REASONS, lambda letter: _message(_situation(letter)), STATE)
    return "The first check that fails speaks, the others stay silent: a fixed call may meet the next one."


def _message(call: Call) -> str:
    try:
        with interpreter(on=False):
            call.run()
    except GuardError as error:
        return str(error)
    return ""


PREDICT = Exercise(
    id="mamba_scatter.predict",
    title="predict the message",
    statement="Everything is on `cuda:0`, then one or two things go wrong. Which message comes? "
    f"{HOW}\n\n"
    "- **A**: `src` is on `cuda:1`, and the state dims of `dst` are transposed.\n"
    "- **B**: all four tensors are on the CPU.\n"
    "- **C**: `dst_indices_raw` is on the CPU, and `src` is not contiguous.\n"
    "- **D**: `src` is on `cuda:1`, and both index tensors are empty.\n"
    "- **E**: `step_indices_raw` is the bool mask of the accepted requests, on the CPU.",
    answer="predictions",
    stub="""\
predictions: dict[str, str] = {"A": ..., "B": ..., "C": ..., "D": ..., "E": ...}
""",
    hints=(
        'The section "What it refuses" lists the checks in their order. The first that fails raises.',
        "One of the five is accepted: think of an idle rank.",
        "C is about src, E is about a device.",
    ),
    judge=_judge_predictions,
)


# Repair rank code.


def _judge_allocate(allocate_scratch: Callable[[torch.Tensor, int, int], torch.Tensor]) -> str:
    for device, dtype in ((OTHER, torch.bfloat16), (HOME, torch.float32)):
        call = Call.valid(spec(STATE), on=device)
        call["dst"] = pool = stand_in((2, 6, 2, 5), None, dtype, device)
        # Answers may ask which device is current; without a GPU nobody could tell them.
        with stand_ins(), mock.patch.object(torch.cuda, "current_device", return_value=0), _Moves() as moves:
            scratch = allocate_scratch(pool, 4, 3)
        if not isinstance(scratch, torch.Tensor):
            raise WrongError(f"it returned {scratch!r}, not a tensor")
        if scratch.dtype != dtype:
            raise WrongError(f"a pool of {dtype} got a scratch of {scratch.dtype}: every copy would convert")
        call["src"] = scratch
        if said := _message(_as_stand_ins(call)):
            raise WrongError(
                f"a pool on {pool.device} got a scratch on {scratch.device}, and the kernel said\n  {said}"
            )
        if tuple(scratch.shape) != (2, 4, 3, 2, 5):
            raise WrongError(
                f"for 4 requests and 3 steps the scratch has shape {tuple(scratch.shape)}, not (2, 4, 3, 2, 5)"
            )
        if moves.seen:
            raise WrongError(
                f"for a pool on {pool.device} the scratch was made on {moves.seen[0]} and moved from there. That hides "
                "the mistake and pays for it: room on two devices, and a copy"
            )
    return "The scratch follows its pool, on every rank: the code asks a tensor where that is."


class _Moves(TorchDispatchMode):
    """Notes from where tensors are copied to another device."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.device] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and result.device != args[0].device:
            self.seen.append(args[0].device)
        return result


def _as_stand_ins(call: Call) -> Call:
    for name, tensor in call.tensors.items():
        call[name] = stand_in(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device)
    return call


ALLOCATE = Exercise(
    id="mamba_scatter.rank",
    title="repair rank code",
    statement="Each rank of a tensor-parallel server runs this function for its own pool, and none of them has called "
    "`torch.cuda.set_device`. On rank 0 it works, on rank 1 the kernel refuses the call. Repair it, for any rank.",
    answer="allocate_scratch",
    stub='''\
def allocate_scratch(pool: torch.Tensor, requests: int, steps: int) -> torch.Tensor:
    """Scratch [layers, requests, steps, *state] for a pool [layers, slots, *state]."""
    layers, _, *state = pool.shape
    return torch.empty(layers, requests, steps, *state, dtype=pool.dtype, device="cuda")
''',
    hints=(
        'On which GPU does torch.empty(..., device="cuda") allocate? The answer does not depend on pool.',
        "The pool is where it should be. Let the scratch follow it.",
        "device=pool.device, or pool.new_empty(...), which takes device and dtype from pool.",
    ),
    judge=_judge_allocate,
)

EXERCISES = (MISPLACED, CHECK_INDICES, PREDICT, ALLOCATE)
