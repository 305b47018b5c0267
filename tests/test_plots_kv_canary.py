"""Pictures of the kv-canary plan show what the plans hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from legibility import legible
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from helpers import topology
from helpers.atlas import spec
from helpers.calls import Call
from helpers.plots import BLUE, ORANGE
from helpers.plots_kv_canary import draw_table, draw_windows
from kernels import VerifyPlan, WritePlan

PLAN = "launch_canary_plan_kernels"


def planned(**changes: Any) -> dict[str, Any]:
    """Arguments of a call that has been made."""
    call = Call.valid(spec(PLAN), on=topology.CPU)
    call.args |= changes
    call.run()
    return call.args


def only_axes(figure: Figure) -> Axes:
    (axes,) = figure.axes
    return axes


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in only_axes(figure).texts]


def cells(figure: Figure, colour: str, dashed: bool, legend: int = 0) -> int:
    """Rectangles with this border, those of the legend not counted."""
    found = [patch for patch in only_axes(figure).patches if isinstance(patch, Rectangle)]
    wanted = {"--", "dashed"} if dashed else {"-", "solid"}
    edge = tuple(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    alike = [p for p in found if p.get_linestyle() in wanted and p.get_edgecolor()[:3] == pytest.approx(edge)]
    return len(alike) - legend


# Windows.


def test_windows_show_every_entry_and_every_new_link() -> None:
    picture = draw_windows(planned())
    assert cells(picture.figure, BLUE, dashed=False, legend=1) == 13
    assert cells(picture.figure, ORANGE, dashed=True, legend=1) == 5
    assert {str(number) for number in range(13)} <= set(words(picture.figure))
    assert "With a window of 5:" in picture.alt
    assert "Request 0 with 7 positions: verifies positions 2 to 6 as entries 0 to 4; writes link 0." in picture.alt
    assert "Request 1: padding." in picture.alt
    assert "Request 3 with 3 positions: verifies positions 0 to 2 as entries 10 to 12; writes nothing." in picture.alt
    assert "In all 13 entries and 5 new links." in picture.alt
    legible(picture.figure)


def test_the_prefix_sums_stand_beside_the_requests() -> None:
    texts = [(text.get_text(), text.get_position()) for text in only_axes(draw_windows(planned()).figure).texts]
    columns = {13.0: ["0", "5", "5", "10", "13"], 14.9: ["0", "1", "1", "5", "5"]}
    for x, expected in columns.items():
        assert [text for text, at in texts if at[0] == x][1:] == expected


def test_entries_stand_where_the_plan_says() -> None:
    args = planned()
    # A kernel with a fault, which took the first request from its beginning.
    args["verify_plan_out"].verify_expected_positions[:5] = torch.arange(5)
    assert "verifies positions 0 to 4 as entries 0 to 4" in draw_windows(args).alt


def test_without_a_window_everything_is_verified() -> None:
    picture = draw_windows(planned(swa_window_size=0, full_to_swa_index_mapping=None))
    assert cells(picture.figure, BLUE, dashed=False, legend=1) == 7 + 12 + 3
    assert "Without a window:" in picture.alt
    legible(picture.figure)


def test_a_plan_that_does_not_fit_has_no_entries() -> None:
    small = VerifyPlan.allocate(verify_capacity=12, device="cpu")
    args = planned(verify_plan_out=small, verify_capacity=12)
    for draw in (draw_windows, draw_table):
        picture = draw(args)
        assert cells(picture.figure, BLUE, dashed=False, legend=draw is draw_windows) == 0
        legible(picture.figure)
    assert "In all 0 entries" in draw_windows(args).alt
    assert "In the plan: nothing." in draw_table(args).alt


def test_rows_that_do_not_exist_are_told() -> None:
    picture = draw_windows(planned(req_pool_indices=torch.tensor([3, 99, 5, -1])))
    assert {"there is no row 99", "there is no row -1"} <= set(words(picture.figure))
    legible(picture.figure)


# The table.


def test_the_table_shows_each_entry_with_its_slot_in_the_plan() -> None:
    picture = draw_table(planned())
    assert cells(picture.figure, BLUE, dashed=False) == 13
    # Two of the windows begin after position 0.
    assert cells(picture.figure, BLUE, dashed=True) == 2
    assert "request 0 takes from row 3 slots 27 as 36, 64 as 6, 20 as 43, 54 as 40, 1 as 7, after slot 3 as 21" in (
        picture.alt
    )
    assert "request 2: entries 5 to 9" in words(picture.figure)
    assert any(text.endswith("mapped") for text in words(picture.figure))
    legible(picture.figure)


def test_the_table_is_drawn_from_the_plan() -> None:
    args = planned(swa_window_size=0, full_to_swa_index_mapping=None)
    args["verify_plan_out"].verify_slot_indices[0] = 1234
    picture = draw_table(args)
    assert "46 as 1234" in picture.alt
    assert cells(picture.figure, BLUE, dashed=True) == 0
    legible(picture.figure)


# What cannot be drawn.


def test_an_empty_batch_is_a_picture_too() -> None:
    empty = torch.empty(0, dtype=torch.int64)
    plans = {
        "verify_plan_out": VerifyPlan.allocate(verify_capacity=32, device="cpu"),
        "write_plan_out": WritePlan.allocate(write_req_capacity=6, device="cpu"),
    }
    lists = dict.fromkeys(("req_pool_indices", "prefix_lens", "extend_seq_lens"), empty)
    args = planned(**plans, **lists, req_to_verify_expected_tokens_valid_lens=empty)
    assert "In all 0 entries and 0 new links." in draw_windows(args).alt
    legible(draw_windows(args).figure)
    legible(draw_table(args).figure)


def test_stand_ins_and_crowds_cannot_be_drawn() -> None:
    args = Call.valid(spec(PLAN), on=torch.device("cuda", 7)).args
    for draw in (draw_windows, draw_table):
        with pytest.raises(ValueError, match="stand-ins hold nothing to draw"):
            draw(args)
    args = planned(extend_seq_lens=torch.tensor([1, 1, 5, 0]))
    with pytest.raises(ValueError, match="4 rows of 17 positions"):
        draw_windows(args)
    args["req_to_token"] = args["req_to_token"].repeat(2, 1)
    with pytest.raises(ValueError, match="12 rows of 12 positions"):
        draw_table(args)
