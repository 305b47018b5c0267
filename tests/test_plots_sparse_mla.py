"""Pictures of the sparse MLA prefill show what the indices say, and how PyTorch rounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from legibility import legible
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from helpers import topology
from helpers.plots_sparse_mla import draw_attention, draw_rounding


def sample(rows: list[list[int]], s_kv: int = 12, lengths: list[int] | None = None) -> dict[str, Any]:
    indices = torch.full((len(rows), 1, 128), -1, dtype=torch.int32)
    for token, row in enumerate(rows):
        indices[token, 0, : len(row)] = torch.tensor(row, dtype=torch.int32)
    arguments: dict[str, Any] = {"kv": torch.zeros(s_kv, 1, 576), "indices": indices}
    return arguments if lengths is None else arguments | {"topk_length": torch.tensor(lengths, dtype=torch.int32)}


def only_axes(figure: Figure) -> Axes:
    (axes,) = figure.axes
    return axes


def hatched(figure: Figure) -> list[Rectangle]:
    return [patch for patch in only_axes(figure).patches if isinstance(patch, Rectangle) and patch.get_hatch()]


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in only_axes(figure).texts]


def test_attended_rows_are_hatched_and_told() -> None:
    picture = draw_attention(sample([[0, 3], [5, -1, 7, 12, -2], [1]]))
    assert len(hatched(picture.figure)) == 5
    assert "token 0 attends to rows 0, 3; token 1 attends to rows 5, 7; token 2 attends to rows 1." in picture.alt
    assert "the first 9 of 128 places" in words(picture.figure)
    legible(picture.figure)


def test_places_past_the_length_do_not_count() -> None:
    picture = draw_attention(sample([[0, 3, 4], [5, 6]], lengths=[2, -1]))
    assert len(hatched(picture.figure)) == 2
    assert "token 0 attends to rows 0, 3; token 1 attends to no row" in picture.alt
    assert words(picture.figure).count("no valid index: out = 0") == 1


def test_a_row_named_twice_is_marked() -> None:
    picture = draw_attention(sample([[4, 4, 2]]))
    assert "×2" in words(picture.figure)
    assert "rows 2, 4 2 times" in picture.alt


def test_the_largest_picture_is_legible() -> None:
    rows = [list(range(token, 28, 2)) for token in range(9)]
    legible(draw_attention(sample([*rows, []], s_kv=28)).figure)


@pytest.mark.parametrize(("tokens", "s_kv"), [(11, 12), (2, 29), (2, 0)])
def test_what_no_picture_can_hold_is_refused(tokens: int, s_kv: int) -> None:
    with pytest.raises(ValueError, match="not for one picture"):
        draw_attention(sample([[0]] * tokens, s_kv=s_kv))


def test_stand_ins_cannot_be_drawn() -> None:
    arguments = sample([[0]])
    arguments["indices"] = topology.stand_in((1, 1, 128), None, torch.int32, torch.device("cuda", 7))
    with pytest.raises(ValueError, match="stand-ins hold no indices"):
        draw_attention(arguments)


def test_values_land_where_pytorch_rounds_them() -> None:
    picture = draw_rounding([0.333, 0.55, 0.83, 1.07, 1.44], scale=0.1)
    arrows = [patch for patch in only_axes(picture.figure).patches if isinstance(patch, FancyArrowPatch)]
    assert len(arrows) == 5
    assert "0.333 as 3.25, 0.55 as 5.5, 0.83 as 8, 1.07 as 11, 1.44 as 14" in picture.alt
    legible(picture.figure)


@pytest.mark.parametrize("values", [[], [0.0], [-1.0], [45.0], [1.0] * 9])
def test_values_that_are_not_on_the_line_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="cannot draw"):
        draw_rounding(values, scale=0.1)
