"""Pictures of the sparse MLA prefill: which cache rows a token attends to, and how FP8 rounds.

Both are drawn from tensors: the indices of a call, and what PyTorch's own conversion makes of some values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from helpers.plots import BLUE, FAINT, GREY, INK, PALE_BLUE, PALE_GREY, PAPER, Picture, arrow, new_canvas
from kernels.guards import is_fake

_MOST_TOKENS, _MOST_ROWS, _SHOWN_PLACES, _MOST_VALUES = 10, 28, 9, 8
_UNITS, _LIST_AT, _PLACE, _GRID_AT, _GRID_WIDTH = 16, 1.5, 0.48, 6.6, 9.2
_TOP = 1.9
_VALID: dict[str, Any] = {"facecolor": PALE_BLUE, "edgecolor": BLUE, "linewidth": 1.6}
_IGNORED: dict[str, Any] = {"facecolor": PALE_GREY, "edgecolor": FAINT, "linewidth": 0.8, "linestyle": ":"}
_ATTENDED: dict[str, Any] = {**_VALID, "hatch": "////"}
_OTHER: dict[str, Any] = {"facecolor": PAPER, "edgecolor": FAINT, "linewidth": 0.8}


# Which rows a token attends to.


@dataclass(frozen=True)
class _Token:
    """One row of indices: those in the list, how many places of it count, and how often each cache row is named."""

    number: int
    indices: list[int]
    length: int
    rows: Counter[int]


def draw_attention(arguments: Mapping[str, Any]) -> Picture:
    """For each query token its list of indices, and the cache rows that it attends to.

    Args:
        arguments: ``kv`` [s_kv, 1, d_qk], ``indices`` [s_q, 1, topk] and, if the call has one, ``topk_length`` [s_q],
            as in :func:`kernels.sparse_mla_q8kv8_prefill_fwd`.

    Raises:
        ValueError: when there is more than a picture can hold, or when the indices are stand-ins without values.
    """
    indices, s_kv = arguments["indices"], arguments["kv"].shape[0]
    s_q, _, topk = indices.shape
    if is_fake(indices):
        raise ValueError("stand-ins hold no indices to draw: take a call whose tensors are real")
    if s_q > _MOST_TOKENS or not 0 < s_kv <= _MOST_ROWS:
        raise ValueError(f"not for one picture: {s_q} tokens, {s_kv} cache rows")
    tokens = _tokens(indices, arguments.get("topk_length"), s_kv)
    figure, axes = new_canvas(_UNITS, _TOP + s_q * 0.85 + 0.9)
    _draw_headings(axes, topk, s_kv)
    for token in tokens:
        _draw_list(axes, token, s_kv)
        _draw_rows(axes, token, s_kv)
    axes.text(
        _UNITS / 2,
        _TOP + s_q * 0.85 + 0.5,
        "hatched: attended; grey and dotted: places that do not count",
        ha="center",
        va="center",
    )
    return Picture(figure, _attention_alt(tokens, topk, s_kv))


def _tokens(indices: torch.Tensor, lengths: torch.Tensor | None, s_kv: int) -> list[_Token]:
    s_q, _, topk = indices.shape
    counts = [topk] * s_q if lengths is None else [min(max(length, 0), topk) for length in lengths.tolist()]
    found = []
    for number, (row, count) in enumerate(zip(indices.flatten(1).tolist(), counts, strict=True)):
        found.append(_Token(number, row, count, Counter(index for index in row[:count] if 0 <= index < s_kv)))
    return found


def _draw_headings(axes: Axes, topk: int, s_kv: int) -> None:
    shown = min(topk, _SHOWN_PLACES)
    axes.text(_LIST_AT, 0.45, "indices", va="center", weight="bold")
    axes.text(_LIST_AT, 1.0, f"the first {shown} of {topk} places", va="center", fontsize=8.5)
    axes.text(_GRID_AT, 0.45, "kv: rows of the cache", va="center", weight="bold")
    cell = _GRID_WIDTH / s_kv
    for row in range(s_kv):
        axes.text(_GRID_AT + (row + 0.46) * cell, 1.55, str(row), ha="center", va="center", fontsize=7)


def _draw_list(axes: Axes, token: _Token, s_kv: int) -> None:
    y = _TOP + token.number * 0.85
    axes.text(_LIST_AT - 0.2, y + 0.35, f"token {token.number}", ha="right", va="center")
    for place, index in enumerate(token.indices[:_SHOWN_PLACES]):
        counts = place < token.length and 0 <= index < s_kv
        x = _LIST_AT + place * _PLACE
        axes.add_patch(Rectangle((x, y), _PLACE * 0.92, 0.7, **(_VALID if counts else _IGNORED)))
        axes.text(
            x + _PLACE * 0.46, y + 0.35, str(index), ha="center", va="center", fontsize=7, color=INK if counts else GREY
        )
    if len(token.indices) > _SHOWN_PLACES:
        axes.text(_LIST_AT + _SHOWN_PLACES * _PLACE + 0.1, y + 0.35, "…", va="center")


def _draw_rows(axes: Axes, token: _Token, s_kv: int) -> None:
    y, cell = _TOP + token.number * 0.85, _GRID_WIDTH / s_kv
    for row in range(s_kv):
        style = _ATTENDED if row in token.rows else _OTHER
        axes.add_patch(Rectangle((_GRID_AT + row * cell, y), cell * 0.92, 0.7, **style))
        if token.rows[row] > 1:
            card = {"facecolor": PAPER, "edgecolor": "none", "pad": 1}
            x = _GRID_AT + (row + 0.46) * cell
            axes.text(x, y + 0.35, f"×{token.rows[row]}", ha="center", va="center", fontsize=7, bbox=card)
    if not token.rows:
        card = {"facecolor": PAPER, "edgecolor": GREY, "pad": 3}
        axes.text(_GRID_AT + _GRID_WIDTH / 2, y + 0.35, "no valid index: out = 0", ha="center", va="center", bbox=card)


def _attention_alt(tokens: Sequence[_Token], topk: int, s_kv: int) -> str:
    told = []
    for token in tokens:
        named = ", ".join(f"{row} {n} times" if n > 1 else str(row) for row, n in sorted(token.rows.items()))
        rows = f"rows {named}" if named else "no row, so that its output is zero"
        told.append(f"token {token.number} attends to {rows}")
    return f"Each token has {topk} places for indices into {s_kv} cache rows: " + "; ".join(told) + "."


# How FP8 rounds.


def draw_rounding(values: Sequence[float], scale: float) -> Picture:
    """Where values land on the numbers that e4m3 has.

    Args:
        values: positive, of which ``value / scale`` is what is stored.
        scale: one for all.

    Raises:
        ValueError: when a value is not positive, is too large for e4m3, or there are too many.
    """
    if not 0 < len(values) <= _MOST_VALUES or min(values) <= 0 or max(values) / scale > 448:
        raise ValueError(
            f"cannot draw {list(values)} with scale {scale:g}: take a few positive ones, up to 448 x scale"
        )
    stored = (torch.tensor(values, dtype=torch.float64) / scale).float().to(torch.float8_e4m3fn).double().tolist()
    representable = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    end = max([*stored, max(values) / scale]) * 1.06
    figure, axes = new_canvas(_UNITS, 4.4)
    unit = (_UNITS - 2.2) / end
    axes.text(0.3, 0.45, f"real values, scale {scale:g}", va="center", weight="bold")
    axes.plot([0.7, 0.7 + end * unit], [2.6, 2.6], color=INK, linewidth=1.2)
    for number in representable[representable <= end].tolist():
        axes.plot([0.7 + number * unit] * 2, [2.6, 2.85], color=INK, linewidth=0.7)
    for value, kept in zip(values, stored, strict=True):
        x, landed = 0.7 + value / scale * unit, 0.7 + kept * unit
        axes.text(x, 1.15, f"{value:g}", ha="center", va="center")
        arrow(axes, (x, 1.4), (landed, 2.58), color=BLUE)
        axes.text(landed, 3.15, f"{kept:g}", ha="center", va="center", fontsize=9, color=INK)
    axes.text(
        0.3,
        3.8,
        "each tick is a number that e4m3 has; below the line: value / scale, rounded to the nearest",
        va="center",
    )
    told = ", ".join(f"{value:g} as {kept:g}" for value, kept in zip(values, stored, strict=True))
    alt = (
        f"A line with the numbers of e4m3, the sparser the larger they are. With scale {scale:g}, arrows store {told}."
    )
    return Picture(figure, alt)
