"""Pictures of ranks: which process has which tensor on which device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from helpers.plots import BLUE, FAINT, INK, ORANGE, PALE_BLUE, PALE_ORANGE, PAPER, Picture, box, new_canvas

_MONO = "DejaVu Sans Mono"
_WIDTH = 16.0
_LABEL = 1.9
_HEAD = 0.8
_ROW = 0.62
_GAP = 0.25


def draw_ranks(placements: Sequence[Mapping[str, str]]) -> Picture:
    """A row for each rank and a column for each device, with the rank's tensors where they are.

    What is on the rank's own GPU is plain; everything else is dashed, hatched and marked.

    Args:
        placements: of each rank, device by tensor, such as :attr:`helpers.ranks.RankRun.placements`.

    Raises:
        ValueError: when no rank has a tensor.
    """
    used = {device for placed in placements for device in placed.values()}
    devices = sorted(used, key=lambda name: (name == "cpu", name))
    if not devices:
        raise ValueError("no rank has shown a tensor")
    heights = [_height(placed, devices) for placed in placements]
    figure, axes = new_canvas(_WIDTH, _HEAD + sum(heights) + _GAP * len(heights))
    width = (_WIDTH - _LABEL - 0.1) / len(devices)
    for column, device in enumerate(devices):
        axes.text(_LABEL + (column + 0.5) * width, 0.45, device, ha="center", va="center", weight="bold", fontsize=12)
    top = _HEAD
    for rank, (placed, height) in enumerate(zip(placements, heights, strict=True)):
        axes.text(0.15, top + height / 2, f"rank {rank}", va="center", weight="bold", fontsize=12)
        for column, device in enumerate(devices):
            names = [name for name, where in placed.items() if where == device]
            _draw_cell(axes, names, device == _own(rank), (_LABEL + column * width, top, width - 0.2, height))
        top += height + _GAP
    return Picture(figure, _alt(placements))


def _own(rank: int) -> str:
    return f"cuda:{rank}"


def _height(placed: Mapping[str, str], devices: Sequence[str]) -> float:
    most = max(list(placed.values()).count(device) for device in devices)
    return 0.3 + _ROW * max(1, most)


def _draw_cell(axes: Axes, names: Sequence[str], own: bool, place: tuple[float, float, float, float]) -> None:
    x, y, width, height = place
    # A rank's own GPU has a thick frame, whether or not anything lies there.
    style = {"edgecolor": INK, "linewidth": 1.8} if own else {"edgecolor": FAINT, "linewidth": 0.8, "linestyle": ":"}
    box(axes, x, y, width, height, facecolor=PAPER, **style)
    for row, name in enumerate(names):
        _draw_tensor(axes, name, own, (x + 0.2, y + 0.2 + row * _ROW, width - 0.4))


def _draw_tensor(axes: Axes, name: str, own: bool, place: tuple[float, float, float]) -> None:
    x, y, width = place
    if own:
        box(axes, x, y, width, 0.5, facecolor=PALE_BLUE, edgecolor=BLUE)
        axes.text(x + 0.25, y + 0.26, name, va="center", family=_MONO, fontsize=9)
        return
    box(axes, x, y, width, 0.5, facecolor=PALE_ORANGE, edgecolor=ORANGE, linestyle="--", linewidth=2)
    axes.add_patch(Rectangle((x + 0.1, y + 0.08), 0.35, 0.34, fill=False, edgecolor=ORANGE, hatch="////"))
    axes.text(x + 0.6, y + 0.26, f"{name} ◀", va="center", family=_MONO, fontsize=9, weight="bold")


def _alt(placements: Sequence[Mapping[str, str]]) -> str:
    return ". ".join(_row_alt(rank, placed) for rank, placed in enumerate(placements)) + "."


def _row_alt(rank: int, placed: Mapping[str, str]) -> str:
    own = [name for name, device in placed.items() if device == _own(rank)]
    astray = [f"{name} on {device}" for name, device in placed.items() if device != _own(rank)]
    told = f"Rank {rank} has {', '.join(own) or 'nothing'} on its own GPU, {_own(rank)}"
    return f"{told}; astray: {', '.join(astray)}" if astray else told
