"""Pictures of devices: queues of work, pointers into memory, and tensors that share bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from helpers.plots import (
    BLUE,
    INK,
    ORANGE,
    PALE_BLUE,
    PALE_GREY,
    PALE_ORANGE,
    PAPER,
    Picture,
    arrow,
    box,
    new_canvas,
    new_figure,
)
from kernels.guards import memory_span

_MONO = "DejaVu Sans Mono"


# Work in streams.


@dataclass(frozen=True)
class Launch:
    """One kernel that the program launches.

    Attributes:
        kernel: its name.
        device: the GPU whose stream it is put into.
        stream: the stream's name.
    """

    kernel: str
    device: torch.device
    stream: str = "default stream"


def draw_streams(launches: Sequence[Launch], current: torch.device) -> Picture:
    """The streams of each GPU with the kernels queued in them, and the device that is current.

    Args:
        launches: in the order in which the program makes them.
        current: the thread's current device.
    """
    lanes = _lanes(launches)
    devices = sorted({device for device, _ in lanes}, key=str)
    heights = {device: 0.75 + 0.95 * sum(owner == device for owner, _ in lanes) for device in devices}
    figure, axes = new_canvas(16, max(1.2 + len(launches) * 0.8, 0.5 + sum(heights.values()) + 0.35 * len(devices)))
    axes.text(0.1, 0.35, "the program, line by line", weight="bold", va="center")
    for number, launch in enumerate(launches):
        _draw_line(axes, number, launch)
    top = 0.3
    for device in devices:
        _draw_device(axes, device, top, heights[device], device == current)
        for place, stream in enumerate(stream for owner, stream in lanes if owner == device):
            _draw_lane(axes, stream, lanes[device, stream], top + 0.7 + 0.95 * place)
        top += heights[device] + 0.35
    return Picture(figure, _streams_alt(lanes, current))


def _lanes(launches: Sequence[Launch]) -> dict[tuple[torch.device, str], list[str]]:
    lanes: dict[tuple[torch.device, str], list[str]] = {}
    for launch in launches:
        lanes.setdefault((launch.device, launch.stream), []).append(launch.kernel)
    return lanes


def _draw_line(axes: Axes, number: int, launch: Launch) -> None:
    y = 0.75 + number * 0.8
    axes.text(0.2, y + 0.3, f"{number + 1}  launch {launch.kernel}", family=_MONO, fontsize=9, va="center")
    axes.text(2.3, y + 0.3, f"on {launch.device}, {launch.stream}", fontsize=8.5, va="center")


def _draw_device(axes: Axes, device: torch.device, top: float, height: float, current: bool) -> None:
    box(axes, 8.2, top, 7.7, height, facecolor=PAPER, linewidth=2.2 if current else 1.0)
    axes.text(8.5, top + 0.36, str(device), weight="bold", va="center", fontsize=11)
    if current:
        box(axes, 5.9, top + 0.2, 1.6, 1.0, facecolor=PALE_ORANGE, edgecolor=ORANGE)
        axes.text(6.7, top + 0.7, "current\ndevice", ha="center", va="center", fontsize=8.5, weight="bold")
        arrow(axes, (7.5, top + 0.7), (8.15, top + 0.7), linewidth=2.0)


def _draw_lane(axes: Axes, stream: str, kernels: Sequence[str], top: float) -> None:
    axes.text(8.5, top + 0.4, stream, va="center", fontsize=8.5)
    axes.add_patch(Rectangle((10.6, top), 5.1, 0.8, facecolor=PALE_GREY, edgecolor=INK, linewidth=0.6))
    for place, kernel in enumerate(kernels):
        axes.add_patch(Rectangle((10.7 + place * 1.15, top + 0.1), 1.05, 0.6, facecolor=PALE_BLUE, edgecolor=BLUE))
        axes.text(11.22 + place * 1.15, top + 0.4, kernel, ha="center", va="center", family=_MONO, fontsize=9)
    axes.text(15.6, top + 0.4, "time →", ha="right", va="center", fontsize=8)


def _streams_alt(lanes: Mapping[tuple[torch.device, str], Sequence[str]], current: torch.device) -> str:
    told = "; ".join(f"{device}, {stream}: {', '.join(names)}" for (device, stream), names in lanes.items())
    return f"Kernels queued in streams, first to run first. {told}. An arrow marks {current} as the current device."


# Pointers.


def draw_pointers(arguments: Mapping[str, torch.Tensor], runs_on: torch.device) -> Picture:
    """Where the pointers of a launch lead, given the device on which it runs.

    Args:
        arguments: tensors by parameter name.
        runs_on: the device that the kernel runs on. Pointers of tensors elsewhere lead nowhere on it.
    """
    names = list(arguments)
    elsewhere = {name: tensor for name, tensor in arguments.items() if tensor.device != runs_on}
    others = list(dict.fromkeys(tensor.device for tensor in elsewhere.values()))
    figure, axes = new_canvas(16, 1.6 + len(names) * 0.95)
    box(axes, 0.1, 0.3, 3.9, 1.2 + len(names) * 0.95, facecolor=PAPER, linewidth=1.8)
    axes.text(0.4, 0.75, f"kernel on {runs_on}", weight="bold", va="center")
    box(axes, 6.2, 0.3, 4.7, 1.2 + len(names) * 0.95, facecolor=PAPER, linewidth=1.8)
    axes.text(6.5, 0.75, f"addresses of {runs_on}", weight="bold", va="center")
    for row, name in enumerate(names):
        _draw_pointer(axes, name, 1.15 + row * 0.95, dead=name in elsewhere)
    for device in others:
        _draw_memory(axes, device, {name: names.index(name) for name in elsewhere if arguments[name].device == device})
    return Picture(figure, _pointers_alt(arguments, elsewhere, runs_on))


def _draw_pointer(axes: Axes, name: str, y: float, dead: bool) -> None:
    """A parameter of the kernel, its arrow, and what is found at its end."""
    axes.text(0.4, y + 0.35, name, va="center", family=_MONO, fontsize=9)
    arrow(
        axes, (3.6, y + 0.35), (6.5, y + 0.35), color=ORANGE if dead else BLUE, linewidth=1.8,
        linestyle="--" if dead else "-",
    )  # fmt: skip
    if dead:
        box(axes, 6.55, y, 4.0, 0.7, facecolor=PALE_ORANGE, edgecolor=ORANGE, linestyle="--", linewidth=1.8)
        axes.text(8.55, y + 0.35, "✗ nothing here", ha="center", va="center", fontsize=9, weight="bold")
    else:
        box(axes, 6.55, y, 4.0, 0.7, facecolor=PALE_BLUE, edgecolor=BLUE)
        axes.text(8.55, y + 0.35, name, ha="center", va="center", family=_MONO, fontsize=9)


def _draw_memory(axes: Axes, device: torch.device, rows: Mapping[str, int]) -> None:
    """Memory of another device, with the tensors that no arrow reaches."""
    first, last = min(rows.values()), max(rows.values())
    box(axes, 11.4, 0.75 + first * 0.95, 4.5, 1.3 + (last - first) * 0.95, facecolor=PAPER, linewidth=1.0)
    axes.text(11.6, 0.97 + first * 0.95, f"memory of {device}", weight="bold", va="center", fontsize=9)
    for name, row in rows.items():
        box(axes, 11.75, 1.2 + row * 0.95, 3.8, 0.65, facecolor=PALE_GREY, edgecolor=INK, linestyle=":")
        axes.text(13.65, 1.52 + row * 0.95, name, ha="center", va="center", family=_MONO, fontsize=9)


def _pointers_alt(
    arguments: Mapping[str, torch.Tensor], elsewhere: Mapping[str, torch.Tensor], runs_on: torch.device
) -> str:
    reached = [name for name in arguments if name not in elsewhere]
    lost = [f"{name}, which is on {tensor.device}" for name, tensor in elsewhere.items()]
    told = [f"A kernel runs on {runs_on}", f"Arrows lead from it to {', '.join(reached)} there" if reached else ""]
    told.append(f"A dashed arrow leads nowhere for {'; and for '.join(lost)}" if lost else "")
    return ". ".join(part for part in told if part) + "."


# Shared bytes.


def draw_spans(tensors: Mapping[str, torch.Tensor]) -> Picture:
    """The bytes between the first and the last element of each tensor, as bars over one storage.

    Args:
        tensors: by name, all in one address space.

    Raises:
        ValueError: when they are in several.
    """
    spans = {name: memory_span(tensor) for name, tensor in tensors.items()}
    if len({space for space, _, _ in spans.values()}) != 1:
        raise ValueError("these tensors share no address space")
    base = min(first for _, first, _ in spans.values())
    bars = {name: (first - base, last - base) for name, (_, first, last) in spans.items()}
    figure, axes = new_figure(1.0 + 0.5 * len(bars))
    common = max(first for first, _ in bars.values()), min(last for _, last in bars.values())
    for row, (first, last) in enumerate(bars.values()):
        axes.barh(row, last - first, left=first, height=0.55, **_bar_style(False))
        if common[0] < common[1]:
            axes.barh(row, common[1] - common[0], left=common[0], height=0.55, **_bar_style(True))
    axes.set_yticks(range(len(bars)), list(bars), family=_MONO, fontsize=9)
    axes.set_xticks(sorted({edge for bar in bars.values() for edge in bar}))
    axes.set_xlabel("bytes from the start of the first one")
    axes.invert_yaxis()
    return Picture(figure, _spans_alt(bars, common))


def _bar_style(shared: bool) -> dict[str, Any]:
    if shared:
        return {"facecolor": PALE_ORANGE, "edgecolor": ORANGE, "hatch": "////", "linewidth": 1.2}
    return {"facecolor": PALE_BLUE, "edgecolor": BLUE, "linewidth": 1.2}


def _spans_alt(bars: Mapping[str, tuple[int, int]], common: tuple[int, int]) -> str:
    told = "; ".join(f"{name} from byte {first} to {last}" for name, (first, last) in bars.items())
    if common[0] >= common[1]:
        return f"Bars of memory: {told}; none is shared."
    owners = "both" if len(bars) == 2 else "all"
    return f"Bars of memory: {told}; hatched: bytes {common[0]} to {common[1]} belong to {owners}."
