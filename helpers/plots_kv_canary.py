"""Pictures of the kv-canary plan: windows with their prefix sums, and the slots that become entries.

Both are drawn after a call, from the plans that it wrote: an entry stands where the plan says, not where it should.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from helpers.plots import (
    BLUE,
    DARK_ORANGE,
    FAINT,
    GREY,
    INK,
    ORANGE,
    PALE_BLUE,
    PALE_GREY,
    PALE_ORANGE,
    PAPER,
    Picture,
    new_canvas,
)
from kernels.guards import is_fake, tensors_of

_UNITS = 16
_MOST_ROWS, _MOST_POSITIONS = 8, 16
_LEFT, _SPAN = 3.7, 8.4
_PLAIN: dict[str, Any] = {"facecolor": PAPER, "edgecolor": FAINT, "linewidth": 0.8}
_OUTSIDE: dict[str, Any] = {"facecolor": PALE_GREY, "edgecolor": FAINT, "linewidth": 0.8, "linestyle": ":"}
_VERIFIED: dict[str, Any] = {"facecolor": PALE_BLUE, "edgecolor": BLUE, "linewidth": 2.0}
_BEFORE: dict[str, Any] = {"facecolor": PAPER, "edgecolor": BLUE, "linewidth": 1.6, "linestyle": "--"}
_NEW: dict[str, Any] = {"facecolor": PALE_ORANGE, "edgecolor": ORANGE, "linewidth": 1.6, "linestyle": "--"}


@dataclass(frozen=True)
class _Request:
    """What a plan says about one request.

    Attributes:
        number: its place in the batch.
        pool: its row in the request pool.
        prefix: positions in the cache; 0 for a request that adds nothing.
        entries: position to verify of each of its entries, by the entry's number.
        slots: slot to verify of each, likewise.
        before: previous slot of its first entry, where there is a position before it.
        links: numbers of the chain links that it will write.
        reason: why it adds nothing; empty for a live one.
    """

    number: int
    pool: int
    prefix: int
    entries: dict[int, int]
    slots: dict[int, int]
    before: int | None
    links: range
    reason: str


# Windows and prefix sums.


def draw_windows(arguments: Mapping[str, Any]) -> Picture:
    """The positions of each request: before its window, verified, and about to be written, with the prefix sums.

    Args:
        arguments: of a call of :func:`kernels.launch_canary_plan_kernels`, real, after it.

    Raises:
        ValueError: for stand-ins, or when there is more than a picture can hold.
    """
    requests = _requests(arguments)
    length = max((request.prefix + len(request.links) for request in requests), default=0)
    _refuse_crowds(len(requests), length)
    figure, axes = new_canvas(_UNITS, len(requests) + 3.4)
    width = min(0.75, _SPAN / max(length, 1))
    axes.text(_LEFT - 0.2, 1.1, "position", ha="right", va="center", color=GREY)
    for position in range(length):
        axes.text(_LEFT + (position + 0.46) * width, 1.1, str(position), ha="center", va="center", fontsize=8)
    for x, heading in ((13.0, "entries\nbefore it"), (14.9, "write_offsets")):
        axes.text(x, 0.75, heading, ha="center", va="center", weight="bold", fontsize=8.5)
    entries = 0
    for request in requests:
        _draw_request(axes, request, 1.5 + request.number, width, entries)
        entries += len(request.entries)
    written = requests[-1].links.stop if requests else 0
    middle = 1.9 + len(requests)
    axes.text(12.4, middle, "total", ha="right", va="center", weight="bold")
    for x, total in ((13.0, entries), (14.9, written)):
        axes.text(x, middle, str(total), ha="center", va="center", weight="bold")
    _draw_legend(axes, middle + 0.95)
    return Picture(figure, _windows_alt(requests, arguments["swa_window_size"], entries, written))


def _draw_request(axes: Axes, request: _Request, top: float, width: float, before: int) -> None:
    middle = top + 0.4
    ink = FAINT if request.reason else INK
    axes.text(_LEFT - 0.2, middle, f"request {request.number}, row {request.pool}", ha="right", va="center", color=ink)
    numbers = {position: entry for entry, position in request.entries.items()}
    for position in range(request.prefix):
        style = _VERIFIED if position in numbers else _OUTSIDE
        _draw_cell(axes, position, top, width, style, numbers.get(position))
    for place, link in enumerate(request.links):
        _draw_cell(axes, request.prefix + place, top, width, _NEW, link)
    if request.reason:
        axes.text(_LEFT, middle, request.reason, va="center", color=GREY)
    axes.text(13.0, middle, str(before), ha="center", va="center")
    axes.text(14.9, middle, str(request.links.start), ha="center", va="center")


def _draw_cell(axes: Axes, column: int, top: float, width: float, style: dict[str, Any], number: int | None) -> None:
    left = _LEFT + column * width
    axes.add_patch(Rectangle((left, top), 0.92 * width, 0.8, **style))
    if number is not None:
        axes.text(left + 0.46 * width, top + 0.4, str(number), ha="center", va="center", fontsize=8)


def _draw_legend(axes: Axes, middle: float) -> None:
    legend = (
        (1.2, _VERIFIED, "verified: entry"),
        (6.0, _OUTSIDE, "before the window"),
        (10.8, _NEW, "new: chain link"),
    )
    for left, style, told in legend:
        axes.add_patch(Rectangle((left, middle - 0.25), 0.5, 0.5, **style))
        axes.text(left + 0.7, middle, told, va="center", fontsize=9)


def _windows_alt(requests: Sequence[_Request], window: int, entries: int, written: int) -> str:
    told = [_request_told(request) for request in requests]
    size = f"With a window of {window}" if window > 0 else "Without a window"
    return f"{size}: {' '.join(told)} In all {entries} entries and {written} new links."


def _request_told(request: _Request) -> str:
    if request.reason:
        return f"Request {request.number}: {request.reason}."
    where = list(request.entries.values())
    seen = (
        f"verifies positions {where[0]} to {where[-1]} as {_ends(request.entries, 'entry')}" if where else "no entries"
    )
    new = f"writes {_ends(request.links, 'link')}" if request.links else "writes nothing"
    return f"Request {request.number} with {request.prefix} positions: {seen}; {new}."


def _ends(numbers: Iterable[int], what: str) -> str:
    """A run of consecutive numbers in words: "entry 3", "entries 3 to 5"."""
    listed = list(numbers)
    if len(listed) == 1:
        return f"{what} {listed[0]}"
    return f"{'entries' if what == 'entry' else 'links'} {listed[0]} to {listed[-1]}"


# The table.


def draw_table(arguments: Mapping[str, Any]) -> Picture:
    """The table of slots with the cells that became entries; below each slot the one that the plan holds for it.

    The cell before a window is no entry, but the first entry of the window names it as its previous slot.

    Args:
        arguments: of a call of :func:`kernels.launch_canary_plan_kernels`, real, after it.

    Raises:
        ValueError: for stand-ins, or when there is more than a picture can hold.
    """
    requests = _requests(arguments)
    table = arguments["req_to_token"].tolist()
    length = len(table[0]) if table else 0
    _refuse_crowds(len(table), length)
    figure, axes = new_canvas(_UNITS, len(table) + 2.4)
    width = min(0.85, (_SPAN + 1.2) / max(length, 1))
    axes.text(2.2, 0.5, "req_to_token", ha="right", va="center", weight="bold")
    for position in range(length):
        axes.text(2.4 + (position + 0.46) * width, 0.5, str(position), ha="center", va="center", color=GREY, fontsize=8)
    owners = {request.pool: request for request in requests if not request.reason}
    for row, slots in enumerate(table):
        _draw_table_row(axes, row, slots, owners.get(row), 1.0 + row, width)
    told = "thick: entries; dashed: previous slot of the first; upper number: slot; lower: in the plan"
    told += ", mapped" if arguments["full_to_swa_index_mapping"] is not None else ""
    axes.text(_UNITS / 2, len(table) + 1.6, told, ha="center", va="center", fontsize=9)
    return Picture(figure, _table_alt(requests, table))


def _draw_table_row(
    axes: Axes, row: int, slots: Sequence[int], owner: _Request | None, top: float, width: float
) -> None:
    axes.text(2.2, top + 0.43, f"row {row}", ha="right", va="center", color=INK if owner else FAINT)
    planned = {} if owner is None else {at: owner.slots[entry] for entry, at in owner.entries.items()}
    previous = {} if owner is None or owner.before is None else {_first(owner) - 1: owner.before}
    for position, slot in enumerate(slots):
        style = _VERIFIED if position in planned else _BEFORE if position in previous else _PLAIN
        _draw_slot(axes, 2.4 + position * width, top, width, style, slot, (planned | previous).get(position))
    note = "padding points here" if row == 0 else ""
    if owner is not None:
        span = _ends(owner.entries, "entry") if owner.entries else "no entries"
        note = f"request {owner.number}: {span}"
    axes.text(
        2.5 + len(slots) * width, top + 0.43, note, va="center", fontsize=8.5, color=DARK_ORANGE if owner else GREY
    )


def _draw_slot(
    axes: Axes, left: float, top: float, width: float, style: dict[str, Any], slot: int, planned: int | None
) -> None:
    axes.add_patch(Rectangle((left, top), 0.92 * width, 0.86, **style))
    middle = left + 0.46 * width
    if planned is None:
        axes.text(middle, top + 0.43, str(slot), ha="center", va="center", fontsize=7.5, color=GREY)
        return
    axes.text(middle, top + 0.24, str(slot), ha="center", va="center", fontsize=7.5)
    axes.text(middle, top + 0.63, str(planned), ha="center", va="center", fontsize=8, weight="bold")


def _table_alt(requests: Sequence[_Request], table: Sequence[Sequence[int]]) -> str:
    told = []
    for request in requests:
        slots = ", ".join(f"{table[request.pool][at]} as {request.slots[e]}" for e, at in request.entries.items())
        before = (
            ""
            if request.before is None
            else f", after slot {table[request.pool][_first(request) - 1]} as {request.before}"
        )
        told.append(f"request {request.number} takes from row {request.pool} slots {slots}{before}" if slots else "")
    lines = "; ".join(line for line in told if line)
    return f"The table of slots, {len(table)} rows. In the plan: {lines or 'nothing'}. The other cells are in no entry."


def _first(request: _Request) -> int:
    """Its first position to verify."""
    return next(iter(request.entries.values()))


# What the plans say.


def _requests(arguments: Mapping[str, Any]) -> list[_Request]:
    if any(is_fake(tensor) for tensor in tensors_of(arguments).values()):
        raise ValueError("stand-ins hold nothing to draw: take a call whose tensors are real")
    plan, offsets = arguments["verify_plan_out"], arguments["write_plan_out"].write_offsets.tolist()
    valid = int(plan.verify_num_valid) if int(plan.enable) else 0
    positions, slots = plan.verify_expected_positions.tolist(), plan.verify_slot_indices.tolist()
    prevs = plan.verify_prev_slot_indices.tolist()
    rows, length = arguments["req_to_token"].shape
    window = arguments["swa_window_size"] if arguments["swa_window_size"] > 0 else length
    requests, first = [], 0
    pairs = zip(arguments["req_pool_indices"].tolist(), arguments["prefix_lens"].tolist(), strict=True)
    for number, (pool, prefix) in enumerate(pairs):
        reason = "padding" if pool == 0 else "" if 0 < pool < rows else f"there is no row {pool}"
        prefix = 0 if reason else min(max(prefix, 0), length)
        own = range(first, min(first + min(prefix, window), valid))
        links = range(offsets[number], offsets[number + 1])
        entries, held = {e: positions[e] for e in own}, {e: slots[e] for e in own}
        before = prevs[first] if own and positions[first] > 0 else None
        requests.append(_Request(number, pool, prefix, entries, held, before, links, reason))
        first += len(own)
    return requests


def _refuse_crowds(rows: int, length: int) -> None:
    if rows > _MOST_ROWS or length > _MOST_POSITIONS:
        raise ValueError(f"too much for one picture: {rows} rows of {length} positions")
