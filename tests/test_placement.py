"""The placement of a call as text, table and picture."""

from __future__ import annotations

import pytest
import torch
from legibility import legible
from matplotlib.patches import FancyBboxPatch

from helpers import topology
from helpers.atlas import record, spec, specs
from helpers.calls import Call
from helpers.placement import draw, placement
from kernels import GuardError

STATE = "fused_mamba_state_scatter_with_mask"


def misplaced(name: str = "src", where: torch.device = topology.OTHER) -> Call:
    call = Call.valid(spec(STATE))
    call.move(name, where)
    return call


def refusal() -> GuardError:
    call = misplaced()
    try:
        call.run()
    except GuardError as error:
        return error
    raise AssertionError("accepted")


def test_the_text_of_a_call() -> None:
    assert str(placement(misplaced())) == (
        "fused_mamba_state_scatter_with_mask\n"
        "argument          shape            dtype    device    layout\n"
        "----------------  ---------------  -------  --------  ----------  -------------\n"
        "dst               [2, 6, 2, 5]     float32  cuda:0    contiguous\n"
        "src               [2, 4, 3, 2, 5]  float32  cuda:1    contiguous  ◀ odd one out\n"
        "dst_indices_raw   [4]              int64    cuda:0    contiguous\n"
        "step_indices_raw  [4]              int64    cuda:0    contiguous"
    )


def test_the_text_of_a_refusal_knows_devices_only() -> None:
    assert str(placement(refusal())) == (
        "fused_mamba_state_scatter_with_mask, refused\n"
        "argument          device\n"
        "----------------  --------  -------------\n"
        "dst               cuda:0\n"
        "src               cuda:1    ◀ odd one out\n"
        "dst_indices_raw   cuda:0\n"
        "step_indices_raw  cuda:0"
    )


def test_arguments_by_name_and_strides() -> None:
    text = str(placement({"x": torch.zeros(2, 3).t(), "scale": 0.5, "none": None}, "by hand"))
    assert text.splitlines()[0] == "by hand"
    assert "strides (1, 3)" in text
    assert "scale" not in text


def test_real_tensors_and_stand_ins_read_the_same() -> None:
    real = torch.zeros(2, 3)
    fake = topology.stand_in((2, 3), None, torch.float32, topology.CPU)
    assert str(placement({"x": real})) == str(placement({"x": fake}))


def test_all_on_another_gpu_is_nothing_odd() -> None:
    placed = placement(Call.valid(spec(STATE), on=topology.OTHER))
    assert not any(row.odd for row in placed.rows)
    assert placed.alt.endswith("Nothing is misplaced.")


def test_the_table_marks_by_words_and_escapes() -> None:
    table = placement({"<x>": torch.zeros(1), "y": topology.stand_in((1,), None, torch.int64, topology.HOME)})
    html = table._repr_html_()
    assert "<x>" not in html
    assert html.count("odd one out") == 1
    assert repr(table) == str(table)


@pytest.mark.parametrize("function", [function for function in specs() if Call.valid(spec(function)).tensors])
@pytest.mark.parametrize("where", [topology.OTHER, topology.CPU], ids=str)
def test_every_misplaced_tensor_is_marked_and_legible(function: str, where: torch.device) -> None:
    for name in Call.valid(spec(function)).tensors:
        call = Call.valid(spec(function))
        call.move(name, where)
        placed = placement(call)
        assert [row.argument for row in placed.rows if row.odd] == [name]
        assert placed.alt.endswith(f"Marked as odd: {name}.")
        legible(draw(placed).figure)


def test_the_picture_tells_odd_ones_without_colour() -> None:
    picture = draw(placement(misplaced()))
    (axes,) = picture.figure.axes
    dashed = [patch for patch in axes.patches if isinstance(patch, FancyBboxPatch) and patch.get_linestyle() == "--"]
    assert len(dashed) == 1
    assert [text.get_text() for text in axes.texts].count("◀ odd one out") == 1
    assert len([patch for patch in axes.patches if patch.get_hatch()]) == 1
    assert picture.alt == (
        "fused_mamba_state_scatter_with_mask: cuda:0 holds dst, dst_indices_raw, step_indices_raw; "
        "cuda:1 holds src. Marked as odd: src."
    )


def test_four_devices_fit_into_one_picture() -> None:
    call = misplaced("src", topology.OTHER)
    call.move("dst_indices_raw", topology.CPU)
    call.move("step_indices_raw", torch.device("cuda", 2))
    picture = draw(placement(call))
    assert len(placement(call).lanes) == 4
    legible(picture.figure)


def test_a_call_without_tensors_is_not_drawn() -> None:
    with pytest.raises(ValueError, match="no tensors to draw"):
        draw(placement({"n": 3}))


def test_a_refusal_can_be_drawn() -> None:
    picture = draw(placement(refusal()))
    assert "cuda:1 holds src" in picture.alt
    legible(picture.figure)


def test_the_seed_record_reads_as_the_notebook_shows_it() -> None:
    call = Call.valid(spec(STATE))
    record("mamba_scatter.state.device/src").provoke(call)
    assert str(placement(call)) == str(placement(misplaced()))
