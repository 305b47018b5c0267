"""Where every argument of a call lives: as text, as a table in a notebook, and as a picture."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from tabulate import tabulate

from helpers.calls import Call
from helpers.plots import BLUE, ORANGE, PALE_ORANGE, PAPER, WIDTH, Picture, box, new_canvas
from kernels.guards import GuardError, offenders, tensors_of

_MARK = "◀ odd one out"
_MONOSPACE = "DejaVu Sans Mono"
_FONT_SIZE = 9
_GAP = 0.14
# Units of the canvas, and how many of them make an inch of the figure.
_UNITS = 16
_LANE = 7.8
_UNITS_PER_INCH = _UNITS / WIDTH


@dataclass(frozen=True)
class Row:
    """One tensor of a call.

    Attributes:
        argument: its name, as the caller spells it.
        device: where it is.
        odd: whether it is away from the others.
        shape: its sizes; empty when only its device is known.
        dtype: likewise.
        layout: "contiguous" or its strides; likewise.
    """

    argument: str
    device: torch.device
    odd: bool
    shape: str = ""
    dtype: str = ""
    layout: str = ""


@dataclass(frozen=True)
class Placement:
    """The tensors of a call and their devices. Whether a tensor is real or a stand-in is no part of it.

    Attributes:
        title: what was called, or tried.
        rows: its tensors, in the order of the signature.
    """

    title: str
    rows: tuple[Row, ...]

    @property
    def lanes(self) -> dict[torch.device, list[Row]]:
        """The rows by device, the device of most of the well-placed ones first."""
        lanes: dict[torch.device, list[Row]] = {}
        for row in sorted(self.rows, key=lambda row: row.odd):
            lanes.setdefault(row.device, []).append(row)
        return lanes

    @property
    def alt(self) -> str:
        """The picture in words."""
        boxes = "; ".join(f"{device} holds {_names(rows)}" for device, rows in self.lanes.items())
        odd = [row for row in self.rows if row.odd]
        return f"{self.title}: {boxes}. " + (f"Marked as odd: {_names(odd)}." if odd else "Nothing is misplaced.")

    def __str__(self) -> str:
        cells = [
            [row.argument, row.shape, row.dtype, str(row.device), row.layout, self._mark(row)] for row in self.rows
        ]
        headers = ["argument", "shape", "dtype", "device", "layout", ""]
        used = [i for i in range(len(headers)) if any(cell[i] for cell in cells)]
        table = tabulate([[cell[i] for i in used] for cell in cells], [headers[i] for i in used], disable_numparse=True)
        return f"{self.title}\n{table}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        columns = {
            "argument": [f"<code>{html.escape(row.argument)}</code>" for row in self.rows],
            "shape": [row.shape for row in self.rows],
            "dtype": [row.dtype for row in self.rows],
            "device": [str(row.device) for row in self.rows],
            "layout": [row.layout for row in self.rows],
            "": [self._mark(row) for row in self.rows],
        }
        used = {name: cells for name, cells in columns.items() if any(cells)}
        head = "".join(f'<th style="text-align:left">{name}</th>' for name in used)
        body = "".join(_html_row(row, [used[name][i] for name in used]) for i, row in enumerate(self.rows))
        return f"<p>{html.escape(self.title)}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    @staticmethod
    def _mark(row: Row) -> str:
        return _MARK if row.odd else ""


def placement(source: Call | GuardError | Mapping[str, Any], title: str | None = None) -> Placement:
    """Find out where the tensors of a call live, and which are away from the others.

    Args:
        source: a call, its arguments by name (dataclasses and lists are looked into), or the refusal of one.
        title: heading; left out, the function's name.
    """
    if isinstance(source, GuardError):
        rows = [Row(name, device, name in source.offenders) for name, device in source.placement.items()]
        return Placement(title or f"{source.function}, refused", tuple(rows))
    arguments = source.args if isinstance(source, Call) else source
    tensors = tensors_of(arguments)
    odd = offenders({name: tensor.device for name, tensor in tensors.items()})
    name = source.spec.function if isinstance(source, Call) else "call"
    return Placement(title or name, tuple(_row(name, tensor, name in odd) for name, tensor in tensors.items()))


def draw(placed: Placement) -> Picture:
    """A box for each device with the arguments that live there; the odd ones are dashed, hatched and labelled.

    The device of most arguments is on the left, the others are stacked on the right.
    """
    lanes = list(placed.lanes.items())
    if not lanes:
        raise ValueError(f"{placed.title} has no tensors to draw")
    (home, rows), others = lanes[0], lanes[1:]
    heights = [_lane_height(rows) for _, rows in others]
    height = max(_lane_height(rows), sum(heights) + _GAP * (len(heights) - 1))
    figure, axes = new_canvas(_UNITS, height + 0.8)
    axes.text(0.1, 0.3, placed.title, weight="bold", va="center")
    _draw_lane(axes, home, rows, 0.1, 0.65, height)
    top = 0.65
    for (device, rows), lane_height in zip(others, heights, strict=True):
        _draw_lane(axes, device, rows, 8.1, top, lane_height)
        top += lane_height + _GAP
    return Picture(figure, placed.alt)


def _draw_lane(axes: Axes, device: torch.device, rows: list[Row], left: float, top: float, height: float) -> None:
    box(axes, left, top, _LANE, height, facecolor=PAPER, linewidth=1.5)
    axes.text(left + 0.3, top + 0.5, str(device), weight="bold", va="center", fontsize=12)
    top += 0.9
    # One size for all, or a long name would look less important than a short one.
    size = min(_size(row, _LANE - 0.5) for row in rows)
    for row in rows:
        _draw_row(axes, row, left + 0.25, top, _LANE - 0.5, size)
        top += _row_height(row) + _GAP


def _lane_height(rows: list[Row]) -> float:
    return 1.05 + sum(_row_height(row) + _GAP for row in rows)


def _row_height(row: Row) -> float:
    return 1.1 if row.odd else 0.66


def _draw_row(axes: Axes, row: Row, x: float, y: float, width: float, size: float) -> None:
    height, told = _row_height(row), _told(row)
    if row.odd:
        box(axes, x, y, width, height, facecolor=PALE_ORANGE, edgecolor=ORANGE, linestyle="--", linewidth=2.2)
        # Only a strip is hatched, so that the words stay legible.
        axes.add_patch(Rectangle((x + 0.12, y + 0.12), 0.4, height - 0.24, fill=False, edgecolor=ORANGE, hatch="////"))
        axes.text(x + 0.7, y + 0.36, row.argument, va="center", family=_MONOSPACE, fontsize=size)
        axes.text(x + 0.7, y + 0.76, _MARK, va="center", weight="bold", fontsize=_FONT_SIZE)
        axes.text(x + width - 0.2, y + 0.76, told, va="center", ha="right", fontsize=size)
        return
    box(axes, x, y, width, height, edgecolor=BLUE)
    axes.text(x + 0.2, y + height / 2, row.argument, va="center", family=_MONOSPACE, fontsize=size)
    axes.text(x + width - 0.2, y + height / 2, told, va="center", ha="right", fontsize=size)


def _told(row: Row) -> str:
    return f"{row.shape} {row.dtype}".strip()


def _size(row: Row, width: float) -> float:
    """Font size at which a row's texts fit: a monospaced letter is 0.6 of it wide, others about as much."""
    # The mark of an odd one shares its line with the shape.
    lines = [(row.argument, 1.1), (_MARK + _told(row), 1.1)] if row.odd else [(row.argument + _told(row), 0.6)]
    needed = max(len(text) * 0.6 * _FONT_SIZE / 72 * _UNITS_PER_INCH / (width - margin) for text, margin in lines)
    return _FONT_SIZE / max(1.0, needed)


def _row(name: str, tensor: torch.Tensor, odd: bool) -> Row:
    layout = "contiguous" if tensor.is_contiguous() else f"strides {tuple(tensor.stride())}"
    return Row(name, tensor.device, odd, str(list(tensor.shape)), str(tensor.dtype).removeprefix("torch."), layout)


def _html_row(row: Row, cells: list[str]) -> str:
    weight = "font-weight:bold" if row.odd else "font-weight:normal"
    return "<tr>" + "".join(f'<td style="text-align:left;{weight}">{cell}</td>' for cell in cells) + "</tr>"


def _names(rows: list[Row]) -> str:
    return ", ".join(row.argument for row in rows)
