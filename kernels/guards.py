"""The words in which every kernel says what it accepts, and the exceptions with which it refuses.

This is the only module that knows rules about devices. A kernel's ``checks.py`` is a list of ``if`` statements
over the predicates below, each raising one :class:`Guard`: a named refusal whose message is fixed to the letter.

All predicates read metadata (device, dtype, shape, stride, storage). None reads a value, so none of them makes the
host wait for the device, and a FakeTensor passes or fails exactly as a real tensor would.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass
from functools import cache

import torch

INTERPRETER_VARIABLE = "DEVICE_GUARDS_INTERPRET"
_interpreter_on: ContextVar[bool | None] = ContextVar("interpreter_on", default=None)


# The family of refusals.


class GuardError(Exception):
    """A call that a kernel refused before it launched or wrote anything.

    ``str(error)`` is the guard's message and nothing else. What helps a person further is in the attributes and in
    the notes (PEP 678), which a traceback prints below the message.

    Attributes:
        guard: id of the :class:`Guard` that fired, such as ``"mamba_scatter.device"``.
        function: public function that was called, set once the error has passed through it.
        argument: name of the argument that the guard judged, as the caller spells it.
        expected: what the guard wanted (a device, a shape, a dtype, a number), or None.
        got: what it found.
        offenders: arguments on another device than the rest, with that device. Empty when all devices agree.
        placement: every tensor of the call with its device, in the order of the signature.
        stand_ins: the tensors among them that have no memory (FakeTensors, meta tensors).
        fix: one line that mends the call.
    """

    guard: str
    argument: str
    expected: object
    got: object
    fix: str
    function: str | None = None
    offenders: Mapping[str, torch.device] = {}
    placement: Mapping[str, torch.device] = {}
    stand_ins: tuple[str, ...] = ()


class GuardValueError(GuardError, ValueError):
    """A refusal that callers catch as ValueError."""


class GuardTypeError(GuardError, TypeError):
    """A refusal that callers catch as TypeError."""


class DeviceError(GuardValueError):
    """A tensor is on another device than the call needs."""


class RankError(GuardValueError):
    """A tensor has another number of dimensions than the call needs."""


class ShapeError(GuardValueError):
    """Sizes do not fit together."""


class DtypeError(GuardValueError):
    """A tensor has another dtype than the call needs."""


class DtypeTypeError(GuardTypeError):
    """A dtype refusal that the kernel's callers know as TypeError."""


class LayoutError(GuardValueError):
    """Strides are not what the kernel walks over."""


class OverlapError(GuardValueError):
    """Two tensors that must be separate share memory."""


class ArgumentError(GuardValueError):
    """A combination of arguments, or the value of a plain one, that the kernel does not offer."""


class HardwareError(GuardError, RuntimeError):
    """The device cannot run the kernel."""


@dataclass(frozen=True, slots=True)
class Guard:
    """One refusal: which error, which words, which remedy.

    Attributes:
        id: ``"<kernel>.<what>"``, unique in the project; records and tests refer to it.
        error: class of the exception.
        message: the exact text, as a ``str.format`` template.
        fix: one line that mends the call, as a template over the same values. A device guard may leave it empty:
            the fix then follows from the placement of the call's tensors.
    """

    id: str
    error: type[GuardError]
    message: str
    fix: str = ""

    def refuse(self, argument: str, *, expected: object = None, got: object = None, **values: object) -> GuardError:
        """The exception to raise.

        Args:
            argument: the argument at fault.
            expected: what the guard wanted.
            got: what it found.
            **values: fills for the two templates. ``argument``, ``expected`` and ``got`` are available as well.
        """
        values = {"argument": argument, "expected": expected, "got": got, **values}
        error = self.error(self.message.format(**values))
        error.guard, error.argument, error.expected, error.got = self.id, argument, expected, got
        error.fix = self.fix.format(**values)
        return error


# The vocabulary.


def interpreting() -> bool:
    """Whether CPU tensors may run through Triton's interpreter: :func:`interpreter` decides, else the environment."""
    chosen = _interpreter_on.get()
    return os.environ.get(INTERPRETER_VARIABLE, "0") not in ("", "0") if chosen is None else chosen


@contextmanager
def interpreter(on: bool = True) -> Iterator[None]:
    """Within this context, kernels accept CPU tensors and run them through Triton's interpreter, or refuse them.

    The interpreter executes the same kernel source one program at a time, in NumPy. It is there for numbers and for
    learning, not for speed. The setting belongs to the current thread (or asyncio task) alone.
    """
    token = _interpreter_on.set(on)
    try:
        yield
    finally:
        _interpreter_on.reset(token)


def on_gpu(tensor: torch.Tensor) -> bool:
    """Whether a kernel can run where this tensor is: on a GPU, or on the CPU when the interpreter is opted in."""
    return tensor.is_cuda or (tensor.device.type == "cpu" and interpreting())


def same_device(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether both tensors are on one device. A tensor's device always has an index, so this is exact."""
    return a.device == b.device


def resolve_device(device: torch.device | str | int) -> torch.device:
    """A device with its index filled in.

    ``torch.device("cuda")`` means "the current device", which is not always the first and which compares unequal to
    every device that a tensor reports. So a device that a caller hands over is resolved before it is compared.
    """
    resolved = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if resolved.type == "cuda" and resolved.index is None:
        return torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_available() else 0)
    return resolved


def is_integer(dtype: torch.dtype) -> bool:
    """Whether values of this dtype are indices: any signed or unsigned integer, but not bool."""
    return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)


def packed_from(tensor: torch.Tensor, first: int) -> bool:
    """Whether the dims from ``first`` on lie packed in row-major order, whatever the strides of the dims before.

    The expected stride of a dim is the product of the sizes after it, an empty dim counted as one; the stride of a
    dim of size one is never used and so not judged.
    """
    expected = 1
    for size, stride in zip(reversed(tensor.shape[first:]), reversed(tensor.stride()[first:]), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= max(size, 1)
    return True


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether the tensor is a stand-in without memory (a FakeTensor or a meta tensor)."""
    return tensor.is_meta or type(tensor).__name__ == "FakeTensor"


def memory_span(tensor: torch.Tensor) -> tuple[object, int, int]:
    """Where a tensor's elements lie: an address space, the first byte, and the byte after the last.

    The address space of a real tensor is its device. Stand-ins all have address zero, so that each of their storages
    counts as a space of its own.
    """
    space: object = tensor.device
    if is_fake(tensor):
        space, base = tensor.untyped_storage()._cdata, int(tensor.storage_offset()) * tensor.element_size()
    else:
        base = tensor.data_ptr()
    if tensor.is_contiguous():
        length = tensor.numel()
    else:
        length = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return space, base, base + int(length) * tensor.element_size()


def spans_meet(a: tuple[object, int, int], b: tuple[object, int, int]) -> bool:
    """Whether two memory spans have a byte in common. An empty span has none."""
    # Cheapest first: this runs for every pair of a call's tensors, and nearly always ends at the addresses.
    return a[1] < b[2] and b[1] < a[2] and a[0] == b[0] and a[1] < a[2] and b[1] < b[2]


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the memory spans of two tensors intersect. Empty tensors overlap nothing."""
    return spans_meet(memory_span(a), memory_span(b))


@cache
def compute_capability(device: torch.device) -> tuple[int, int] | None:
    """Major and minor number of an NVIDIA GPU's architecture; None for a device that is another or not there."""
    if device.type != "cuda" or torch.version.hip or not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_capability(device) if device.index < torch.cuda.device_count() else None


# What a refusal tells beyond its message.


def explain_refusal(
    error: GuardError,
    function: str,
    arguments: Mapping[str, object],
    aliases: Mapping[str, str] | None = None,
    runs_on_cpu: bool = False,
    written: Collection[str] = (),
) -> None:
    """Fill in what only the public function knows and attach the notes. The message stays as it is.

    Args:
        error: the refusal on its way out.
        function: name of the public function.
        arguments: its arguments by name, in signature order; dataclasses are shown field by field.
        aliases: internal names that the message uses, and the argument that the caller passed under each.
        runs_on_cpu: whether a call with all tensors on the CPU is legal even without the interpreter.
        written: tensors that the kernel writes. Moving such a one makes a copy, and what is written there is lost.
    """
    if error.function is not None:
        return
    aliases = aliases or {}
    error.function = function
    error.argument = aliases.get(error.argument, error.argument)
    tensors = tensors_of(arguments)
    error.placement = {name: tensor.device for name, tensor in tensors.items()}
    error.stand_ins = tuple(name for name, tensor in tensors.items() if is_fake(tensor))
    error.offenders = offenders(error.placement, error.expected, runs_on_cpu or interpreting())
    error.fix = error.fix or _device_fix(error, written)
    for internal, passed in aliases.items():
        if internal in str(error):
            error.add_note(f"name: {internal} is the kernel's name for {passed}")
    for note in _placement_notes(error):
        error.add_note(note)
    if error.fix:
        error.add_note(f"fix: {error.fix}")


def tensors_of(arguments: Mapping[str, object]) -> dict[str, torch.Tensor]:
    """A call's tensors by name; those inside dataclasses and lists as ``argument.field`` and ``argument.0``."""
    found: dict[str, torch.Tensor] = {}
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):
            found[name] = value
        elif is_dataclass(value) and not isinstance(value, type):
            found.update(tensors_of({f"{name}.{f.name}": getattr(value, f.name) for f in fields(value)}))
        elif isinstance(value, (list, tuple)):
            found.update(tensors_of({f"{name}.{i}": item for i, item in enumerate(value)}))
    return found


def offenders(
    placement: Mapping[str, torch.device], expected: object = None, runs_on_cpu: bool = False
) -> dict[str, torch.device]:
    """The tensors away from where most are; on a tie, those away from where the guard wanted them.

    Args:
        placement: every tensor's device, in the order of the signature.
        expected: the device that a guard wanted, if it was about devices.
        runs_on_cpu: whether the kernel runs on the CPU too. If not, tensors there have no vote.
    """
    devices = list(placement.values())
    if len(set(devices)) < 2:
        return {}
    voters = devices if runs_on_cpu else [device for device in devices if device.type != "cpu"]
    most = max(voters.count(device) for device in voters)
    homes = [device for device in dict.fromkeys(voters) if voters.count(device) == most]
    home = expected if expected in homes else homes[0]
    return {name: device for name, device in placement.items() if device != home}


def _placement_notes(error: GuardError) -> list[str]:
    if not error.offenders:
        return []
    notes = []
    home = next(device for name, device in error.placement.items() if name not in error.offenders)
    away = ", ".join(f"{name} on {device}" for name, device in error.offenders.items())
    notes.append(f"odd one out: {away}; the other {len(error.placement) - len(error.offenders)} on {home}")
    # Some guards only want a GPU, and measure against no tensor.
    if isinstance(error, DeviceError) and isinstance(error.expected, torch.device) and error.expected != home:
        notes.append("the guard measures against a misplaced tensor: the one it names may be right")
    notes.append("placement: " + ", ".join(f"{name} {device}" for name, device in error.placement.items()))
    return notes


def _device_fix(error: GuardError, written: Collection[str]) -> str:
    """Move every offender to where the first well-placed tensor is, or have it allocated there."""
    if not error.offenders:
        return ""
    anchor = next(name for name in error.placement if name not in error.offenders)
    return "; ".join(dict.fromkeys(_move(name, anchor, name in written) for name in error.offenders))


def _move(name: str, anchor: str, is_written: bool) -> str:
    owner, _, field = name.partition(".")
    if field:  # the owner may be frozen, so it is built anew rather than changed
        return f"build {owner} with device={anchor}.device"
    if is_written:
        return f"allocate {name} with device={anchor}.device"
    return f"{name} = {name}.to({anchor}.device)"
