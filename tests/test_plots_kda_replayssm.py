"""Pictures of the ReplaySSM decode show what the tensors hold and what a call changed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from legibility import legible
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

from helpers import topology
from helpers.atlas import spec
from helpers.calls import Call, snapshot
from helpers.plots_kda_replayssm import draw_ring, draw_step
from kernels.guards import interpreter

DECODE = "helion_fused_recurrent_kda_replayssm_decode"


def sample() -> dict[str, Any]:
    return Call.valid(spec(DECODE), on=topology.CPU).args


def only_axes(figure: Figure) -> Axes:
    (axes,) = figure.axes
    return axes


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in only_axes(figure).texts]


def hatched(figure: Figure) -> list[Patch]:
    return [patch for patch in only_axes(figure).patches if isinstance(patch, Rectangle) and patch.get_hatch()]


def arrows(figure: Figure) -> list[Patch]:
    return [patch for patch in only_axes(figure).patches if isinstance(patch, FancyArrowPatch)]


# One ring.


def test_the_bars_are_the_shares_that_the_decays_leave() -> None:
    args = sample()
    args["g_cache"][5, :, :2] = torch.tensor([math.log(0.5), math.log(0.25)])[None, :, None]
    picture = draw_ring(args, row=3)
    heights = [round(patch.get_height() / 2, 4) for patch in hatched(picture.figure) if isinstance(patch, Rectangle)]
    # The checkpoint has suffered both decays, entry 0 the second, entry 1 none.
    assert heights == [0.125, 0.25, 1.0]
    assert "Left after all decays since: 12% of the checkpoint, 25% of entry 0, 100% of entry 1." in picture.alt
    assert "cursor: write_pos = 2" in words(picture.figure)
    legible(picture.figure)


@pytest.mark.parametrize("row", [0, 2, 4])
def test_every_fill_of_the_ring_is_legible(row: int) -> None:
    args = sample()
    picture = draw_ring(args, row)
    used = int(args["write_pos"][row])
    assert len(hatched(picture.figure)) == 1 + used
    assert f"{used} of 4 entries in use" in picture.alt
    legible(picture.figure)


@pytest.mark.parametrize("cursor", [0, 7, 15])
def test_a_ring_of_sixteen_is_legible(cursor: int) -> None:
    args = sample()
    for ring in ("d_cache", "k_cache", "g_cache"):
        args[ring] = args[ring].nan_to_num().repeat(1, 1, 4, 1)
    args["write_pos"] = torch.full((5,), cursor, dtype=torch.int32)
    legible(draw_ring(args, row=2).figure)


def test_a_row_without_a_ring_cannot_be_drawn() -> None:
    args = sample()
    with pytest.raises(ValueError, match="row 1 has no ring to draw: slot -1"):
        draw_ring(args, row=1)
    args["write_pos"][2] = 4
    with pytest.raises(ValueError, match="write_pos 4"):
        draw_ring(args, row=2)


# A step.


def test_a_step_shows_what_changed() -> None:
    call = Call.valid(spec(DECODE), on=topology.CPU)
    before = {**call.args, **snapshot(call.tensors)}
    with interpreter():
        call.run()
    picture = draw_step(before, call.args)
    # Two flushes, two appends, one row of padding.
    assert len(hatched(picture.figure)) == 4
    assert len(arrows(picture.figure)) == 2
    assert {"flush, at the last entry", "flush, forced", "append at entry 1", "append at entry 0"} <= set(
        words(picture.figure)
    )
    assert "with 3 of 4 entries in use, rewrote the checkpoint (flush, at the last entry)." in picture.alt
    assert "Row 2, slot 1, with 1 of 4 entries in use, rewrote ring entry 1 (append at entry 1)." in picture.alt
    assert "Row 1, slot -1, with 0 of 4 entries in use, changed nothing (padding: out is 0)." in picture.alt
    legible(picture.figure)


def test_a_step_is_drawn_from_the_bytes_not_from_the_cursor() -> None:
    args = sample()
    after = {**args, "k_cache": args["k_cache"].clone()}
    # A kernel with a fault, which writes one entry too far.
    after["k_cache"][1, :, 2] = 1.0
    picture = draw_step(args, after)
    assert len(hatched(picture.figure)) == 1
    assert "Row 2, slot 1, with 1 of 4 entries in use, rewrote ring entry 2" in picture.alt
    assert "Row 0, slot 3, with 3 of 4 entries in use, changed nothing (nothing was written)." in picture.alt


def test_slots_and_cursors_that_do_not_exist_are_told() -> None:
    args = sample()
    args["ssm_state_indices"][0] = 99
    args["write_pos"][2] = 4
    picture = draw_step(args, args)
    assert {"no slot 99: out is NaN", "no entry 4: out is NaN"} <= set(words(picture.figure))
    legible(picture.figure)


def test_stand_ins_and_crowds_cannot_be_drawn() -> None:
    args = Call.valid(spec(DECODE), on=torch.device("cuda", 7)).args
    for draw in (lambda: draw_ring(args, 0), lambda: draw_step(args, args)):
        with pytest.raises(ValueError, match="stand-ins hold nothing to draw"):
            draw()
    args = sample()
    args["ssm_state_indices"] = torch.zeros(9, dtype=torch.int64)
    with pytest.raises(ValueError, match="9 rows"):
        draw_step(args, args)
    args["d_cache"] = args["d_cache"].repeat(1, 1, 5, 1)
    with pytest.raises(ValueError, match="a ring of 20 entries"):
        draw_ring(args, 0)
