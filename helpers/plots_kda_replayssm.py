"""Pictures of the ReplaySSM decode: the ring with its cursor, and what one step did to checkpoint and ring.

Both are drawn from the tensors of a call, not from what the call should do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from helpers.calls import same_bits
from helpers.plots import (
    BLUE,
    DARK_ORANGE,
    FAINT,
    GREY,
    INK,
    ORANGE,
    PALE_BLUE,
    PALE_GREY,
    PAPER,
    Picture,
    arrow,
    new_canvas,
)
from kernels.guards import is_fake

RINGS = ("d_cache", "k_cache", "g_cache")
_MOST_ENTRIES, _MOST_ROWS = 16, 8
_UNITS = 16
_USED: dict[str, Any] = {"facecolor": PALE_BLUE, "edgecolor": INK, "linewidth": 0.8}
_FREE: dict[str, Any] = {"facecolor": PALE_GREY, "edgecolor": FAINT, "linewidth": 0.8, "linestyle": ":"}
_WRITTEN: dict[str, Any] = {"facecolor": PALE_BLUE, "edgecolor": BLUE, "linewidth": 2.2, "hatch": "///"}


# One ring before a step.


def draw_ring(arguments: Mapping[str, Any], row: int) -> Picture:
    """Checkpoint and ring of one row before its step, each with the share of it that later decays have left.

    Args:
        arguments: of a call, real, as in :func:`kernels.helion_fused_recurrent_kda_replayssm_decode`.
        row: of the batch; its slot and its ``write_pos`` must exist.

    Raises:
        ValueError: for stand-ins, a row without a ring, or a ring that is too long for a picture.
    """
    slot, cursor, L = _place(arguments, row)
    if not (0 <= slot < arguments["initial_state"].shape[0] and 0 <= cursor < L):
        raise ValueError(f"row {row} has no ring to draw: slot {slot}, write_pos {cursor}")
    gates = arguments["g_cache"][slot, :, :cursor].double().cpu()
    kept, shares = _shares_left(gates)
    figure, axes = new_canvas(_UNITS, 5.6)
    axes.text(0.2, 0.4, f"Row {row}: slot {slot}, {cursor} of {L} ring entries in use", va="center", weight="bold")
    _draw_share(axes, 0.3, 2.3, kept, "checkpoint")
    width = min(3.0, (_UNITS - 3.6) / L)
    for entry in range(L):
        x = 3.3 + entry * width
        if entry < cursor:
            _draw_share(axes, x, 0.84 * width, shares[entry], str(entry))
        else:
            axes.add_patch(Rectangle((x, 1.7), 0.84 * width, 2.0, **_FREE))
            axes.text(x + 0.42 * width, 4.0, str(entry), ha="center", va="center", color=GREY)
    tip = 3.3 + (cursor + 0.42) * width
    arrow(axes, (tip, 0.95), (tip, 1.6), color=ORANGE, linewidth=2.2)
    # The label goes where there is room, left or right of the arrow.
    side, align = (0.2, "left") if tip < _UNITS / 2 else (-0.2, "right")
    axes.text(tip + side, 1.1, f"cursor: write_pos = {cursor}", ha=align, va="center", color=DARK_ORANGE)
    axes.text(
        0.3, 5.1, "bars: the share left after all decays since, a mean over channels; dotted: not in use", va="center"
    )
    told = ", ".join(f"{share:.0%} of entry {entry}" for entry, share in enumerate(shares))
    left = f"{kept:.0%} of the checkpoint" + (f", {told}" if told else "")
    return Picture(
        figure,
        f"The ring of row {row} in slot {slot}: {cursor} of {L} entries in use, the cursor at entry {cursor}. "
        f"Left after all decays since: {left}.",
    )


def _shares_left(gates: torch.Tensor) -> tuple[float, list[float]]:
    """What the log decays [HV, entries, K] leave of the checkpoint and of each entry, as means over heads and channels.

    An entry has suffered the decays of what came after it: exp(G - G_j).
    """
    running = gates.cumsum(1)
    total = gates.sum(1, keepdim=True)
    return total.exp().mean().item(), (total - running).exp().mean((0, 2)).tolist()


def _draw_share(axes: Axes, x: float, width: float, share: float, name: str) -> None:
    axes.add_patch(Rectangle((x, 1.7), width, 2.0, facecolor=PAPER, edgecolor=INK, linewidth=0.8))
    filled: dict[str, Any] = {"facecolor": PALE_BLUE, "edgecolor": BLUE, "linewidth": 1.2, "hatch": "//"}
    axes.add_patch(Rectangle((x, 3.7 - 2.0 * share), width, 2.0 * share, **filled))
    axes.text(x + width / 2, 4.0, name, ha="center", va="center")
    if width > 0.9:
        axes.text(x + width / 2, 4.45, f"{share:.0%}", ha="center", va="center", fontsize=8.5, color=GREY)


# What a step did.


@dataclass(frozen=True)
class _Step:
    """What one row of a call did.

    Attributes:
        row: of the batch.
        slot: its slot.
        used: how many ring entries were in use before.
        checkpoint: whether the checkpoint's bytes changed.
        entries: the ring entries whose bytes changed.
        told: why, in words.
    """

    row: int
    slot: int
    used: int
    checkpoint: bool
    entries: tuple[int, ...]
    told: str


def draw_step(before: Mapping[str, Any], after: Mapping[str, Any]) -> Picture:
    """What a call changed, row by row: hatched is what differs between the pools before and after it.

    Args:
        before: arguments of the call with copies of the pools from before it.
        after: the arguments after it.

    Raises:
        ValueError: for stand-ins, or when there is more than a picture can hold.
    """
    rows, L = before["ssm_state_indices"].shape[0], before["d_cache"].shape[2]
    if rows > _MOST_ROWS:
        raise ValueError(f"too much for one picture: {rows} rows")
    steps = [_step(before, after, row) for row in range(rows)]
    figure, axes = new_canvas(_UNITS, 1.5 * rows + 1.9)
    for x, heading in ((2.7, "checkpoint"), (5.4, f"ring of {L} entries"), (10.9, "what the step did")):
        axes.text(x, 0.5, heading, va="center", weight="bold")
    for step in steps:
        _draw_row(axes, step, L, 1.2 + 1.5 * step.row)
    axes.text(
        _UNITS / 2,
        1.5 * rows + 1.5,
        "blue: in use before the step; hatched: rewritten; dotted: not in use; arrow: folded in; ▲ cursor before",
        ha="center",
        va="center",
    )
    return Picture(figure, " ".join(_told(step, L) for step in steps))


def _place(arguments: Mapping[str, Any], row: int) -> tuple[int, int, int]:
    """Slot and cursor of a row, and the length of the ring."""
    L = arguments["d_cache"].shape[2]
    if any(is_fake(arguments[name]) for name in ("ssm_state_indices", "write_pos", *RINGS)):
        raise ValueError("stand-ins hold nothing to draw: take a call whose tensors are real")
    if L > _MOST_ENTRIES:
        raise ValueError(f"too much for one picture: a ring of {L} entries")
    return int(arguments["ssm_state_indices"][row]), int(arguments["write_pos"][row]), L


def _step(before: Mapping[str, Any], after: Mapping[str, Any], row: int) -> _Step:
    slot, cursor, L = _place(before, row)
    if slot < 0:
        return _Step(row, slot, 0, False, (), "padding: out is 0")
    if slot >= before["initial_state"].shape[0]:
        return _Step(row, slot, 0, False, (), f"no slot {slot}: out is NaN")
    if not 0 <= cursor < L:
        return _Step(row, slot, 0, False, (), f"no entry {cursor}: out is NaN")
    checkpoint = not same_bits(before["initial_state"][slot], after["initial_state"][slot])
    entries = tuple(
        entry
        for entry in range(L)
        if any(not same_bits(before[ring][slot, :, entry], after[ring][slot, :, entry]) for ring in RINGS)
    )
    why = "at the last entry" if cursor == L - 1 else "forced"
    told = f"flush, {why}" if checkpoint else f"append at entry {cursor}" if entries else "nothing was written"
    return _Step(row, slot, cursor, checkpoint, entries, told)


def _draw_row(axes: Axes, step: _Step, L: int, y: float) -> None:
    middle = y + 0.36
    axes.text(0.2, middle, f"row {step.row}: slot {step.slot}", va="center")
    axes.text(10.9, middle, step.told, va="center")
    if step.told.startswith(("padding", "no ")):
        return
    axes.add_patch(Rectangle((2.7, y), 1.9, 0.72, **(_WRITTEN if step.checkpoint else _USED)))
    width = 5.0 / L
    for entry in range(L):
        style = _WRITTEN if entry in step.entries else _USED if entry < step.used else _FREE
        axes.add_patch(Rectangle((5.4 + entry * width, y), 0.9 * width, 0.72, **style))
    axes.text(5.4 + (step.used + 0.45) * width, y + 0.98, "▲", ha="center", va="center", color=DARK_ORANGE)
    if step.checkpoint:
        arrow(axes, (5.35, middle), (4.68, middle), color=BLUE, linewidth=2.2)


def _told(step: _Step, L: int) -> str:
    changed = ["the checkpoint"] if step.checkpoint else []
    changed += [f"ring entry {entry}" for entry in step.entries]
    written = f"rewrote {' and '.join(changed)}" if changed else "changed nothing"
    return f"Row {step.row}, slot {step.slot}, with {step.used} of {L} entries in use, {written} ({step.told})."
