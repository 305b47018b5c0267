"""Exercises about devices, launches and addresses, without a kernel."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from helpers.exercises.exercise import Exercise, WrongError
from helpers.topology import CPU, HOME, OTHER, stand_in

# Is it where the caller wants it?


def _judge_is_where_asked(is_where_asked: Callable[[torch.Tensor, str, int], bool]) -> str:
    cases = [
        (HOME, "cuda:0", 0, True),
        (OTHER, "cuda:0", 0, False),
        (HOME, "cuda", 0, True),
        (OTHER, "cuda", 0, False),
        (OTHER, "cuda", 1, True),
        (HOME, "cuda", 1, False),
        (OTHER, "cuda:1", 0, True),
        (torch.device("cuda", 10), "cuda:1", 0, False),
        (CPU, "cpu", 1, True),
        (CPU, "cuda", 0, False),
        (HOME, "cpu", 0, False),
    ]
    for device, asked, current, expected in cases:
        answered = is_where_asked(stand_in((2,), None, torch.float32, device), asked, current)
        if answered is not expected:
            raise WrongError(
                f"a tensor on {device}, wanted on {asked!r} while cuda:{current} is current\n"
                f"  you answered {answered}\n  expected     {expected}"
            )
    return 'The index is filled in before anything is compared, and "cuda" means the current device, not the first.'


IS_WHERE_ASKED = Exercise(
    id="devices.resolve",
    title="is it where the caller wants it?",
    statement='A caller says where a tensor has to be: `"cuda:1"`, `"cpu"`, or just `"cuda"`, which means the current '
    "GPU. `current` is that GPU's number. Say whether the tensor is there.",
    answer="is_where_asked",
    stub='''\
def is_where_asked(tensor: torch.Tensor, asked: str, current: int) -> bool:
    """Whether the tensor is on the device that the caller asked for."""
    raise NotImplementedError  # about four lines
''',
    hints=(
        'torch.device("cuda") == torch.device("cuda:0") is False. Which part of the left one is missing?',
        "A device has a type and an index. The index is None only where none was written.",
        'When the type is "cuda" and the index is None, compare with torch.device("cuda", current) instead.',
    ),
    judge=_judge_is_where_asked,
)


# Launch somewhere else.


class Gpus:
    """Stands for ``torch.cuda`` on a machine with four GPUs.

    Attributes:
        current: the current device's index.
    """

    def __init__(self, current: int) -> None:
        self.current = current

    def set_device(self, index: int) -> None:
        """Make a GPU the current one."""
        self.current = index


class _LaunchFailedError(Exception):
    """What a launch raises that cannot be made."""


def _judge_launch_on(launch_on: Callable[[Gpus, int, Callable[[], None]], None]) -> str:
    for before, index in ((0, 1), (1, 0), (2, 3), (1, 1)):
        launched = _launched(launch_on, before, index, fails=False)
        if launched != [index]:
            raise WrongError(f"cuda:{before} is current and the tensors are on cuda:{index}: launched on {launched}")
    _launched(launch_on, 2, 3, fails=True)
    return "A with block does both halves: with torch.cuda.device(tensor.device), as kernels/launch.py has it."


def _launched(
    launch_on: Callable[[Gpus, int, Callable[[], None]], None], before: int, index: int, fails: bool
) -> list[int]:
    """Where a solution launches. Complains when the current device is another one afterwards."""
    gpus, launched = Gpus(before), []

    def launch() -> None:
        launched.append(gpus.current)
        if fails:
            raise _LaunchFailedError("out of resources")

    what = "a launch that fails" if fails else "a launch"
    try:
        launch_on(gpus, index, launch)
    except _LaunchFailedError:
        pass
    else:
        if fails:
            raise WrongError("the launch failed, and its exception never reached the caller")
    if gpus.current != before:
        raise WrongError(f"cuda:{before} was current, and after {what} on cuda:{index} cuda:{gpus.current} is")
    return launched


LAUNCH_ON = Exercise(
    id="devices.launch",
    title="launch where the tensors are",
    statement="This function launches on the GPU of the tensors. It works in every test of its author, who has one "
    "GPU, and it breaks the code of everybody who calls it on another. Repair it.\n\n"
    "`gpus` stands for `torch.cuda`: `gpus.current` is the index of the current device, and `gpus.set_device(i)` "
    "changes it. Whatever happens during the launch, the current device must be the same afterwards as before.",
    answer="launch_on",
    stub='''\
def launch_on(gpus: Gpus, index: int, launch: Callable[[], None]) -> None:
    """Launch with GPU `index` current, and leave the current device as it was."""
    gpus.set_device(index)
    launch()
    gpus.set_device(0)
''',
    hints=(
        "Which device was current before? Somebody has to remember it.",
        "A launch can raise. What runs even then?",
        "before = gpus.current, then try: ... finally: gpus.set_device(before).",
    ),
    judge=_judge_launch_on,
)


# Do two tensors share memory?


def _pairs() -> list[tuple[str, torch.Tensor, torch.Tensor, bool]]:
    buffer = torch.zeros(96)
    one, two = (stand_in((96,), None, torch.float32, OTHER) for _ in range(2))
    return [
        ("two views, from element 0 to 64 and from 32 to 96", buffer[:64], buffer[32:], True),
        ("two views, from element 0 to 48 and from 48 to 96", buffer[:48], buffer[48:], False),
        ("two views, from element 0 to 33 and from 32 to 96", buffer[:33], buffer[32:], True),
        ("two tensors with memory of their own", buffer, torch.zeros(96), False),
        ("two stand-ins, each with its own storage", one, two, False),
        ("a stand-in's elements 0 to 64 and 32 to 96", one.narrow(0, 0, 64), one.narrow(0, 32, 64), True),
        ("every eighth element up to 25, and elements 10 to 20", buffer[:32:8], buffer[10:20], True),
        ("floats 0 to 8, and bytes 16 to 24 as uint8", buffer[:8], buffer.view(torch.uint8)[16:24], True),
        ("floats 8 to 16, and bytes 8 to 16 as uint8", buffer[8:16], buffer.view(torch.uint8)[8:16], False),
        ("a buffer and an empty view into it", buffer, buffer[4:4], False),
        ("a buffer and an empty view of shape (4, 0)", buffer, buffer[:16].view(4, 4)[:, :0], False),
    ]


def _judge_share_memory(share_memory: Callable[[torch.Tensor, torch.Tensor], bool]) -> str:
    for what, a, b, expected in _pairs():
        for left, right in ((a, b), (b, a)):
            with warnings.catch_warnings():
                # PyTorch warns when a stand-in's address is asked for; the verdict says more.
                warnings.simplefilter("ignore")
                answered = share_memory(left, right)
            if answered is not expected:
                raise WrongError(f"{what}\n  you answered {answered}\n  expected     {expected}")
    return "Same storage, and spans of bytes that meet: no address was asked for, so stand-ins are judged as well."


SHARE_MEMORY = Exercise(
    id="devices.overlap",
    title="do two tensors share memory?",
    statement="Two outputs of a kernel must not share bytes. Write the check, so that it is right for stand-ins too, "
    "which all have address 0.\n\n"
    "Two tensors are views of one storage if their `untyped_storage()._cdata` are equal. Where a view lies in it "
    "follows from `storage_offset()`, `shape`, `stride()` and `element_size()`; offsets and strides count elements. "
    "Judge the span from the first byte of a tensor to its last, and let empty tensors share nothing.",
    answer="share_memory",
    stub='''\
def share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the memory spans of two tensors have a byte in common."""
    raise NotImplementedError  # about eight lines, with a function for the span of one tensor
''',
    hints=(
        "Three questions: is one of them empty? Have they the same storage? If so, do their spans meet?",
        "Two spans meet if max(first_a, first_b) < min(end_a, end_b).",
        "In elements, the last one is sum((size - 1) * stride) after the first. Multiply by element_size() for bytes.",
    ),
    judge=_judge_share_memory,
)

EXERCISES = (IS_WHERE_ASKED, LAUNCH_ON, SHARE_MEMORY)
