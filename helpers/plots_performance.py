"""The roofline: what each kernel reached, under what this GPU can do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from helpers.plots import BLUE, DARK_ORANGE, ORANGE, PAPER, Picture, new_figure

_MARKERS = "osD^vP*X"
# Decades, in both directions, below which the labels of two points would lie on each other.
_COINCIDE = 0.12


@dataclass(frozen=True)
class Point:
    """One measured call.

    Attributes:
        kernel: points of one kernel share a marker.
        name: of the call.
        intensity: floating-point operations per byte; 0 for copies and integer work.
        us: measured time in microseconds.
        bytes: the least it must move.
        operations: the least it must do.
    """

    kernel: str
    name: str
    intensity: float
    us: float
    bytes: int
    operations: int


def attained(point: Point, gbps: float, tflops: float) -> float:
    """The larger of the two floors (bytes over bandwidth, operations over rate) over the measured time."""
    return max(point.bytes / gbps / 1e3, point.operations / tflops / 1e6) / point.us


def draw_roofline(points: Sequence[Point], gbps: float, tflops: float, device: str = "this GPU") -> Picture:
    """Operations per second over operations per byte, and the two ceilings above them.

    Args:
        points: what was measured, those with operations; others have no place on a roofline.
        gbps: bandwidth ceiling measured in the same run.
        tflops: matrix rate measured in the same run.
        device: for the title.
    """
    placed = [point for point in points if point.operations]
    if not placed:
        raise ValueError("none of these calls does floating-point work: there is nothing to place under a roofline")
    figure, axes = new_figure(height=4.2)
    ridge = tflops * 1e3 / gbps
    ends = (min(point.intensity for point in placed) / 3, max(ridge, *(point.intensity for point in placed)) * 3)
    axes.plot([ends[0], ridge, ends[1]], [ends[0] * gbps / 1e3, tflops, tflops], color=ORANGE, linewidth=2)
    axes.text(ridge, tflops * 1.15, f"{tflops:,.0f} TFLOP/s", color=DARK_ORANGE, ha="center", va="bottom")
    axes.text(ends[0] * 1.1, ends[0] * gbps / 1e3 * 1.6, f"{gbps:,.0f} GB/s", color=DARK_ORANGE, rotation=30)
    for marker, kernel in zip(_MARKERS, dict.fromkeys(point.kernel for point in placed), strict=False):
        mine = [point for point in placed if point.kernel == kernel]
        rates = [point.operations / point.us / 1e6 for point in mine]
        axes.plot(
            [point.intensity for point in mine],
            rates,
            marker,
            color=BLUE,
            markerfacecolor=PAPER,
            markersize=8,
            label=kernel,
        )
        _label(axes, mine, ridge)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(top=tflops * 4)
    axes.set_xlabel("floating-point operations per byte")
    axes.set_ylabel("TFLOP/s")
    axes.set_title(f"Roofline of {device}", loc="left", weight="bold", fontsize=10)
    axes.legend(loc="lower right")
    told = "; ".join(
        f"{point.kernel} {point.name}: {_three_digits(point.operations / point.us / 1e6)} TFLOP/s, "
        f"{attained(point, gbps, tflops):.0%} of the lower ceiling at that intensity"
        for point in placed
    )
    return Picture(figure, f"Roofline of {device} with ceilings {gbps:,.0f} GB/s and {tflops:,.0f} TFLOP/s: {told}.")


def _label(axes: Axes, points: Sequence[Point], ridge: float) -> None:
    """Write the names of a kernel's points beside them; points that nearly coincide share a line."""
    groups: list[list[Point]] = []
    for point in sorted(points, key=lambda point: point.operations / point.us):
        if groups and _coincide(groups[-1][-1], point):
            groups[-1].append(point)
        else:
            groups.append([point])
    rightmost = max(point.intensity for point in points)
    for group in groups:
        beside = max(group, key=lambda point: point.intensity)
        place: dict[str, Any] = {"xytext": (8, 0), "ha": "left", "va": "center"}
        if beside.intensity > ridge:
            # Below the flat part of the roof there is room to the left, and little to the right.
            last = beside.intensity == rightmost
            place = {"xytext": (0 if last else 4, -7), "ha": "center" if last else "right", "va": "top"}
        told = "; ".join(point.name for point in group)
        at = (beside.intensity, beside.operations / beside.us / 1e6)
        axes.annotate(told, at, textcoords="offset points", fontsize=7, **place)


def _coincide(a: Point, b: Point) -> bool:
    rates = abs(math.log10(a.operations / a.us / (b.operations / b.us)))
    return rates < _COINCIDE and abs(math.log10(a.intensity / b.intensity)) < _COINCIDE


def _three_digits(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
