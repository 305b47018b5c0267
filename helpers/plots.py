"""Pictures drawn from real data, each with a description for those who cannot see it.

All pictures sit on a white card with dark ink, so they read the same in a light and in a dark theme. Nothing is told by
colour alone: what differs also differs in hatching, line or words, so that a grey print says as much.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import matplotlib
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from kernels.guards import is_fake

# Okabe and Ito's palette, which people with any kind of colour vision can tell apart, and pale tints of it.
INK, GREY, FAINT, PAPER = "#1a1a1a", "#555555", "#8a8a8a", "white"
BLUE, ORANGE, DARK_ORANGE = "#0072b2", "#d55e00", "#8f3f00"
PALE_BLUE, PALE_ORANGE, PALE_GREY = "#d6e9f5", "#fbe3d0", "#eeeeee"

STYLE: Any = {
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "axes.edgecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "hatch.linewidth": 0.6,
}
# Inches: the width of a notebook's output at 100 pixels an inch.
WIDTH = 8.0
_DPI = 144
_PIXELS_PER_INCH = 100


@dataclass(frozen=True)
class Picture:
    """A figure and its description. As the last line of a cell it shows itself.

    Attributes:
        figure: what is seen.
        alt: what is told instead.
    """

    figure: Figure
    alt: str

    def _repr_mimebundle_(self, **kwargs: object) -> dict[str, str]:
        return mime_bundle(self.figure, self.alt)


class Rate(Protocol):
    """A measured rate, such as :class:`helpers.bench.Measurement`."""

    @property
    def name(self) -> str:
        """What was measured."""

    @property
    def gbps(self) -> float:
        """GB/s (10^9 bytes)."""


def new_figure(height: float, width: float = WIDTH) -> tuple[Figure, Axes]:
    """A figure in the common style, with one pair of axes.

    Args:
        height: in inches.
        width: in inches.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.add_subplot()


def new_canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure to draw on in units of its own, without axes around it.

    Args:
        width: of the drawing, in units; it fills the notebook's width.
        height: in the same units.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, WIDTH * height / width))
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
        axes.set_axis_off()
        return figure, axes


def show(picture: Figure | Picture, alt: str | None = None) -> None:
    """Put a figure into the notebook together with its description.

    The description is the ``alt`` of an ``<img>``. JupyterLab's own PNG outputs and nbconvert's default template drop
    descriptions, so the image travels as HTML. The text form is the description, the same on every machine.

    Args:
        picture: what to show.
        alt: what to tell; left out, a picture's own description.

    Raises:
        ValueError: when there is no description.
    """
    figure, own = (picture.figure, picture.alt) if isinstance(picture, Picture) else (picture, "")
    display(mime_bundle(figure, alt or own), raw=True)


def mime_bundle(figure: Figure, alt: str) -> dict[str, str]:
    """The output of a figure as Jupyter's messages carry it."""
    alt = " ".join(alt.split())
    if not alt:
        raise ValueError("a figure needs a description: what would you tell someone on the telephone?")
    image = base64.b64encode(png(figure, alt)).decode()
    width = round(figure.get_figwidth() * _PIXELS_PER_INCH)
    tag = f'<img alt="{html.escape(alt)}" width="{width}" src="data:image/png;base64,{image}">'
    return {"text/html": tag, "text/plain": f"Figure: {alt}"}


def png(figure: Figure, alt: str = "") -> bytes:
    """A figure as a PNG file."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(buffer, format="png", dpi=_DPI, metadata={"Software": None, "Description": alt})
    return buffer.getvalue()


def box(axes: Axes, x: float, y: float, width: float, height: float, **style: Any) -> None:
    """A rounded box; corner at (x, y), in the axes' units."""
    style = {"facecolor": PALE_BLUE, "edgecolor": INK, "linewidth": 1.0, **style}
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=0.12", **style))


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], **style: Any) -> None:
    """An arrow between two points, in the axes' units."""
    style = {"color": INK, "linewidth": 1.4, "arrowstyle": "-|>", "mutation_scale": 12, **style}
    axes.add_patch(FancyArrowPatch(start, end, shrinkA=0, shrinkB=0, **style))


# The scatter.


@dataclass(frozen=True)
class _Move:
    """What the scatter does with one request; the reason is empty if its state is kept."""

    request: int
    step: int
    slot: int
    reason: str


def draw_scatter(arguments: Mapping[str, Any]) -> Picture:
    """The fused state scatter, with the indices of a real call: which step of which request ends in which slot.

    Args:
        arguments: ``dst`` [layers, slots, *state], ``src`` [layers, requests, steps, *state], ``dst_indices_raw`` and
            ``step_indices_raw`` [requests], as in :func:`kernels.fused_mamba_state_scatter_with_mask`.

    Raises:
        ValueError: when there is more than a picture can hold, or when the indices are stand-ins without values.
    """
    dst, src = arguments["dst"], arguments["src"]
    if is_fake(arguments["dst_indices_raw"]) or is_fake(arguments["step_indices_raw"]):
        raise ValueError("stand-ins hold no indices to draw: take a call whose tensors are real")
    layers, slots, (requests, steps) = dst.shape[0], dst.shape[1], src.shape[1:3]
    if requests > 12 or slots > 16 or steps > 8:
        raise ValueError(f"too much for one picture: {requests} requests, {slots} slots, {steps} steps")
    moves = _moves(arguments, slots, steps)
    rows = max(requests, slots)
    figure, axes = new_canvas(16, rows + 2.2)
    scratch_top, pool_top = 1.2 + (rows - requests) / 2, 1.2 + (rows - slots) / 2
    _draw_scratch(axes, moves, requests, steps, scratch_top)
    _draw_pool(axes, moves, slots, pool_top)
    for move in moves:
        if not move.reason:
            start, end = (3.98 + move.step, scratch_top + move.request + 0.5), (12.4, pool_top + move.slot + 0.5)
            arrow(axes, start, end, color=BLUE, connectionstyle="arc3,rad=-0.05")
    axes.text(
        8,
        rows + 2.0,
        f"hatched slots are overwritten; one call does this for {_all(layers)}",
        ha="center",
        va="bottom",
        color=INK,
    )
    return Picture(figure, _scatter_alt(moves, layers, slots))


def _moves(arguments: Mapping[str, Any], slots: int, steps: int) -> list[_Move]:
    pairs = zip(arguments["dst_indices_raw"].tolist(), arguments["step_indices_raw"].tolist(), strict=True)
    return [_Move(i, step, slot, _reason(step, steps, slot, slots)) for i, (slot, step) in enumerate(pairs)]


def _reason(step: int, steps: int, slot: int, slots: int) -> str:
    if step < 0:
        return f"step {step}: none accepted"
    if step >= steps:
        return f"step {step} does not exist"
    return "" if 0 <= slot < slots else f"slot {slot} does not exist"


def _draw_scratch(axes: Axes, moves: Sequence[_Move], requests: int, steps: int, top: float) -> None:
    axes.text(3.1, top - 0.75, "src: scratch, one state per draft step", va="center", weight="bold")
    for step in range(steps):
        axes.text(3.1 + step + 0.46, top - 0.2, f"step {step}", ha="center", va="center", fontsize=8)
    by_request = {move.request: move for move in moves}
    for request in range(requests):
        # The scratch may have room for more requests than this call has.
        move = by_request.get(request, _Move(request, -1, -1, "not in this call"))
        ink = FAINT if move.reason else INK
        middle = top + request + 0.5
        axes.text(2.9, middle - (0.14 if move.reason else 0), f"request {request}", ha="right", va="center", color=ink)
        for step in range(steps):
            _draw_step(axes, 3.1 + step, top + request, kept=step == move.step, skipped=bool(move.reason))
        if move.reason:
            axes.text(2.9, middle + 0.24, move.reason, ha="right", va="center", color=GREY, fontsize=8.5)


def _draw_step(axes: Axes, x: float, y: float, kept: bool, skipped: bool) -> None:
    style: dict[str, Any] = {"facecolor": PAPER, "edgecolor": INK, "linewidth": 0.8}
    if skipped:
        style = {"facecolor": PALE_GREY, "edgecolor": FAINT, "linewidth": 0.8, "linestyle": ":"}
    elif kept:
        style = {"facecolor": PALE_BLUE, "edgecolor": BLUE, "linewidth": 2.2}
    axes.add_patch(Rectangle((x + 0.04, y + 0.14), 0.84, 0.72, **style))


def _all(layers: int) -> str:
    return {1: "its one layer", 2: "both layers"}.get(layers, f"all {layers} layers")


def _draw_pool(axes: Axes, moves: Sequence[_Move], slots: int, top: float) -> None:
    axes.text(12.4, top - 0.75, "dst: pool", va="center", weight="bold")
    writers = {move.slot: move.request for move in moves if not move.reason}
    for slot in range(slots):
        written = slot in writers
        style: dict[str, Any] = {"facecolor": PAPER, "edgecolor": INK, "linewidth": 0.8}
        if written:
            style = {"facecolor": PALE_BLUE, "edgecolor": BLUE, "linewidth": 2.2, "hatch": "///"}
        axes.add_patch(Rectangle((12.4, top + slot + 0.14), 1.1, 0.72, **style))
        note = f"slot {slot}" + (f"  ← request {writers[slot]}" if written else "")
        axes.text(13.65, top + slot + 0.5, note, va="center", fontsize=8.5, color=INK)


def _scatter_alt(moves: Sequence[_Move], layers: int, slots: int) -> str:
    kept = [f"request {m.request} at step {m.step} to slot {m.slot}" for m in moves if not m.reason]
    skipped = [f"request {m.request} is skipped ({m.reason})" for m in moves if m.reason]
    told = "; ".join([f"Arrows from scratch to pool: {', '.join(kept)}" if kept else "No arrows", *skipped])
    return f"{told}. The other slots of the {slots} keep their state. The same in {_all(layers)}."


# Rates.


def draw_bandwidth(rates: Sequence[Rate], ceiling: float, device: str = "this GPU") -> Picture:
    """Measured bandwidth of each case as a bar against what a plain copy reaches.

    Args:
        rates: the cases, top to bottom.
        ceiling: GB/s of a device-to-device copy, measured in the same run.
        device: for the title.
    """
    figure, axes = new_figure(height=1.3 + 0.42 * len(rates))
    values = [rate.gbps for rate in rates]
    axes.barh(
        [rate.name for rate in rates], values, height=0.62, color=PALE_BLUE, edgecolor=BLUE, linewidth=1.2, hatch="//"
    )
    axes.axvline(ceiling, color=ORANGE, linewidth=2, linestyle="--")
    axes.invert_yaxis()
    axes.set_xlim(0, max([ceiling, *values]) * 1.05)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("GB/s, bytes read plus bytes written")
    axes.set_title(f"Bandwidth on {device}", loc="left", weight="bold", fontsize=10, pad=20)
    above = axes.get_xaxis_transform()
    axes.text(ceiling, 1.02, f"copy: {ceiling:,.0f} ", transform=above, ha="right", va="bottom", color=DARK_ORANGE)
    card = {"facecolor": PAPER, "edgecolor": "none", "pad": 2}
    for row, value in enumerate(values):
        # A short bar has its label behind it.
        at, align = (value / 2, "center") if value > 0.3 * ceiling else (value + 0.02 * ceiling, "left")
        axes.text(at, row, f"{value:,.0f}  ({_share(value / ceiling)})", ha=align, va="center", bbox=card)
    told = ", ".join(f"{rate.name} {rate.gbps:,.0f} GB/s ({_share(rate.gbps / ceiling)})" for rate in rates)
    return Picture(figure, f"Bars of measured bandwidth on {device}, against a copy at {ceiling:,.0f} GB/s: {told}.")


def _share(value: float) -> str:
    return f"{value:.0%}" if value >= 0.01 else "less than 1%"
