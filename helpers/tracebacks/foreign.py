"""Errors of Triton, PyTorch, CUDA and NCCL that a misplaced tensor leads to. Importable without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from helpers.tracebacks.parameters import Kernel, kernels, launched_from


@dataclass(frozen=True)
class Evidence:
    """What the lines around a message tell.

    Attributes:
        words: names in the lines above it: functions, kernels, arguments.
        frames: path and function of each frame above it.
        notes: the notes below it.
        offenders: arguments that the notes call misplaced.
    """

    words: frozenset[str] = frozenset()
    frames: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    offenders: tuple[str, ...] = ()


def _nothing(evidence: Evidence, fills: tuple[str, ...]) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True)
class Foreign:
    """An error that is not one of this project's guards.

    Attributes:
        id: ``"<source>.<what>"``.
        error: class of the exception, or what takes its place.
        messages: its wordings, as ``str.format`` templates.
        meaning: what it says.
        happens: how people get there.
        fix: what to do about it.
        notebook: stem of the notebook that shows it.
        section: anchor there.
        cases: ids of reported failures of this kind.
        details: what the traceback around it adds.
    """

    id: str
    error: str
    messages: tuple[str, ...]
    meaning: str
    happens: str
    fix: str
    notebook: str
    section: str
    cases: tuple[str, ...] = ()
    details: Callable[[Evidence, tuple[str, ...]], tuple[str, ...]] = _nothing


def pointer_details(evidence: Evidence, fills: tuple[str, ...]) -> tuple[str, ...]:
    """Which parameter Triton's pointer error means.

    Read in Triton's own sources: the NVIDIA launcher that 3.6 generates counts every parameter of the kernel from 0,
    constexpr ones included (a tuple counts once per item). That of 3.7 names no position, but checks the pointers in
    order. The AMD launcher of 3.7 prints a position without passing one, so there the number means nothing.

    Args:
        evidence: the traceback above the error.
        fills: the position, if the wording has one.
    """
    candidates = _candidates(evidence)
    if not candidates:
        if not fills:
            return ("this wording names no position: compare the devices of all tensors that the launch passes",)
        return (f"position {fills[0]} counts the kernel's parameters from 0, constexpr ones included",)
    return tuple(_about(kernel, passed, fills) for kernel, passed in candidates)


def _candidates(evidence: Evidence) -> list[tuple[Kernel, tuple[str, ...]]]:
    """Kernels that the traceback shows, with the arguments of the launch where it is known."""
    found = {launch.kernel: launch.arguments for launch in launched_from(evidence.frames)}
    named = [name for name in kernels() if name in evidence.words]
    # A kernel that is named beats one that merely could have been launched from a function of the traceback.
    return [(kernels()[name], found.get(name, ())) for name in (named or found)]


def _about(kernel: Kernel, passed: tuple[str, ...], fills: tuple[str, ...]) -> str:
    if not fills:
        pointers = ", ".join(kernel.pointers)
        return f"this wording names no position: the first of {kernel.name}'s {pointers} that is on the CPU"
    position = int(fills[0]) if fills[0].isdigit() else -1
    name = kernel.parameters[position] if 0 <= position < len(kernel.parameters) else None
    if name not in kernel.pointers:
        return f"{kernel.name} has no pointer at {fills[0]}: Triton's AMD launcher prints a number that means nothing"
    source = f", where the launch passes {passed[position]}" if position < len(passed) else ""
    return f"parameter {position} of {kernel.name}, counted from 0, is {name}{source}"


FOREIGN = (
    Foreign(
        id="triton.pointer",
        error="ValueError",
        messages=(
            "Pointer argument (at {position}) cannot be accessed from Triton (cpu tensor?)",
            "Pointer argument cannot be accessed from Triton (cpu tensor?)",
        ),
        meaning="A tensor of the launch is in ordinary host memory, which a GPU kernel cannot reach. Or it is on a GPU "
        "other than the current one: Triton asks the current device about the pointer.",
        happens="An index or a scale left on the CPU; or all tensors on cuda:1 while cuda:0 is current.",
        fix="move the tensor to the others' device; if all are on one GPU, launch inside "
        "torch.cuda.device(tensor.device)",
        notebook="mamba_scatter",
        section="without-the-guard",
        cases=("P01", "P02", "P29"),
        details=pointer_details,
    ),
    Foreign(
        id="cuda.illegal_access",
        error="RuntimeError",
        messages=(
            "CUDA error: an illegal memory access was encountered",
            "Triton Error [CUDA]: an illegal memory access was encountered",
            "CUDA_ERROR_ILLEGAL_ADDRESS",
        ),
        meaning="A kernel followed a pointer or an index into memory that is not its own. Kernels run later than they "
        "are launched, so the line that raises is often not the one at fault, and the process can use CUDA no more.",
        happens="A tensor of another device passed as a raw pointer, or an index past the end of a pool.",
        fix="run once with CUDA_LAUNCH_BLOCKING=1, or under compute-sanitizer, to find the kernel; check devices and "
        "indices before its launch; restart the process",
        notebook="mamba_scatter",
        section="without-the-guard",
        cases=("P01", "P13"),
    ),
    Foreign(
        id="torch.two_devices",
        error="RuntimeError",
        messages=(
            "Expected all tensors to be on the same device, but found at least two devices, {one} and {other}! (when "
            "checking argument for argument {which} in method {method})",
            "Expected all tensors to be on the same device, but found at least two devices, {one} and {other}!",
            "Expected all tensors to be on the same device, but got {which} is on {one}, different from other "
            "tensors on {other} (when checking argument in method {method})",
            "Expected all tensors to be on the same device, but got {which} is on {one}, different from other "
            "tensors on {other}",
        ),
        meaning="An operator of PyTorch got tensors from two devices. PyTorch checks this as the guards here do, but "
        "names at most one argument, by the operator's name for it.",
        happens="A batch, a mask or an index made on the CPU, or on another rank's GPU.",
        fix="allocate with device=other.device, or move the tensor with .to(other.device)",
        notebook="devices",
        section="what-pytorch-says",
    ),
    Foreign(
        id="torch.index_device",
        error="RuntimeError",
        messages=("indices should be either on {where} or on the same device as the indexed tensor ({device})",),
        meaning="A tensor was indexed with indices from a GPU that is not its own. Only CPU indices are accepted from "
        "elsewhere.",
        happens="Pool and indices belong to two ranks, or the pool is on the CPU.",
        fix="indices = indices.to(pool.device)",
        notebook="devices",
        section="what-pytorch-says",
    ),
    Foreign(
        id="torch.no_accelerator",
        error="RuntimeError",
        messages=(
            "Torch not compiled with CUDA enabled",
            "Cannot access accelerator device when none is available.",
            "No CUDA GPUs are available",
            "Found no NVIDIA driver on your system.",
        ),
        meaning="A CUDA device was asked for where PyTorch sees none.",
        happens="A CPU-only build of PyTorch, no driver, a container without --gpus, or an empty CUDA_VISIBLE_DEVICES.",
        fix="make doctor says which it is; without a GPU use stand-ins and the interpreter, as this project does",
        notebook="00_start_here",
        section="what-is-real-on-this-machine",
    ),
    Foreign(
        id="cuda.ordinal",
        error="RuntimeError",
        messages=("CUDA error: invalid device ordinal",),
        meaning="A GPU was asked for by a number that this process does not have. Numbers count the visible devices.",
        happens="f'cuda:{rank}' with the global rank on a second node, or with CUDA_VISIBLE_DEVICES set per rank.",
        fix="use the local rank (LOCAL_RANK), and cuda:0 where every rank sees one device",
        notebook="ranks",
        section="one-program,-many-processes",
        cases=("P03",),
    ),
    Foreign(
        id="nccl.duplicate_gpu",
        error="DistBackendError",
        messages=("Duplicate GPU detected : rank {rank} and rank {other} both on CUDA device {bus}",),
        meaning="Two ranks of one communicator use the same GPU.",
        happens="Ranks that never called torch.cuda.set_device, so that all of them are on cuda:0.",
        fix="torch.cuda.set_device(local_rank) before the process group is made",
        notebook="ranks",
        section="one-program,-many-processes",
        cases=("P03",),
    ),
    Foreign(
        id="cuda.capture",
        error="RuntimeError",
        messages=("operation not permitted when stream is capturing",),
        meaning="Something made the host wait for the device while a CUDA graph was being captured.",
        happens="A check that reads values: .item(), .tolist(), bool(tensor.all()).",
        fix="check metadata only (device, dtype, shape, stride); look at values outside the capture",
        notebook="sparse_mla",
        section="without-the-guard",
        cases=("P09", "P10"),
    ),
)
