"""The playground asks the real guards."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from helpers import playground
from helpers.atlas import records, spec
from helpers.playground import LAYOUTS, Choice, arguments, examples, functions, judge

SCATTER = "fused_mamba_state_scatter_with_mask"


@pytest.mark.parametrize("function", functions())
def test_a_call_as_it_should_be_is_accepted(function: str) -> None:
    assert judge(function).guard == ""


@pytest.mark.parametrize("function", functions())
def test_each_argument_elsewhere_is_refused_with_a_recorded_guard(function: str) -> None:
    known = {entry.guard for entry in records().values()}
    refused = [judge(function, {name: Choice(device="cuda:1")}).guard for name in arguments(function)]
    assert set(refused) - {""} <= known
    assert any(refused)


@pytest.mark.parametrize(
    ("argument", "choice", "guard"),
    [
        ("src", Choice(device="cuda:1"), "mamba_scatter.state.device"),
        ("src", Choice(layout=LAYOUTS[1]), "mamba_scatter.state.src_contiguous"),
        ("dst", Choice(layout=LAYOUTS[2]), "mamba_scatter.state.packed"),
        ("step_indices_raw", Choice(dtype="bool"), "mamba_scatter.index.dtype"),
        ("step_indices_raw", Choice(layout=LAYOUTS[2]), ""),
    ],
)
def test_choices_reach_the_guards(argument: str, choice: Choice, guard: str) -> None:
    verdict = judge(SCATTER, {argument: choice})
    assert verdict.guard == guard
    assert spec(SCATTER).function == verdict.call.spec.function


def test_an_argument_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(KeyError, match="has no tensor sorce"):
        judge(SCATTER, {"sorce": Choice()})


def test_without_widgets_the_table_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(playground, "display", lambda data, raw: shown.append(data))
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    playground.playground(SCATTER)
    assert shown[0]["text/plain"] == examples(SCATTER)
    assert "application/vnd.jupyter.widget-view+json" not in shown[0]


def test_widgets_change_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    import ipywidgets

    board = playground._Playground(ipywidgets, SCATTER)
    assert "accepted" in board.answer.value
    device_of_src = board.rows.children[1].children[1]
    device_of_src.value = "cuda:1"
    assert "dst and src must be on the same device" in board.answer.value
    assert "<img alt=" in board.answer.value
    board.picker.value = "fused_conv_window_scatter_with_mask"
    assert "accepted" in board.answer.value
