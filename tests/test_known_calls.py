"""The short way: taken by calls like one before, and by no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from helpers import topology
from helpers.atlas import records, spec, specs
from helpers.calls import Call
from helpers.reproduce import reproduce, run_against_reference
from kernels import known_calls
from kernels.known_calls import KnownCalls


class Noted:
    """Stands for a launch and notes the addresses of those that follow it."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self.pointers = [tensor.data_ptr() for tensor in tensors]
        self.followed: list[list[int]] = []

    def again(self, pointers: list[int]) -> None:
        self.followed.append(pointers)


def tensors(n: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(n, 8), torch.zeros(n, dtype=torch.int64)


@pytest.fixture(params=["in C++", "in Python"])
def calls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> KnownCalls:
    if request.param == "in Python":
        monkeypatch.setattr(known_calls, "TensorGuards", None)
    else:
        assert known_calls.TensorGuards is not None, "this PyTorch has it under another name; the slow way serves"
    return KnownCalls(by=1)


def test_a_call_like_one_before_is_launched_with_its_own_addresses(calls: KnownCalls) -> None:
    first, second = tensors(), tensors()
    noted = Noted(*first)
    calls.remember(noted, first, (0.5, None))
    assert calls.launch(second, (0.5, None))
    assert noted.followed == [[tensor.data_ptr() for tensor in second]]


def test_several_are_known_at_once(calls: KnownCalls) -> None:
    noted = {}
    for n in (4, 5, 6):
        for width in (8, 16):
            these = (torch.zeros(n, width), torch.zeros(n, dtype=torch.int64))
            noted[n, width] = Noted(*these)
            calls.remember(noted[n, width], these)
    for (n, width), launch in noted.items():
        these = (torch.zeros(n, width), torch.zeros(n, dtype=torch.int64))
        assert calls.launch(these)
        assert len(launch.followed) == 1


class Loaded(torch.nn.Parameter):
    """A subclass that knows more."""


OTHERS: dict[str, Callable[[torch.Tensor, torch.Tensor], tuple[Any, ...]]] = {
    "dtype": lambda x, i: (x, i.int()),
    "dtype of the first": lambda x, i: (x.double(), i),
    "shape": lambda x, i: (torch.zeros(4, 9), i),
    "rank": lambda x, i: (x.view(4, 8, 1), i),
    "batch": lambda x, i: (x, torch.zeros(5, dtype=torch.int64)),
    "strides": lambda x, i: (torch.zeros(8, 4).T, i),
    "device": lambda x, i: (topology.stand_in((4, 8), None, torch.float32, topology.HOME), i),
    "all on another device": lambda x, i: (
        topology.stand_in((4, 8), None, torch.float32, topology.HOME),
        topology.stand_in((4,), None, torch.int64, topology.HOME),
    ),
    "no memory": lambda x, i: (x.to("meta"), i),
    "subclass": lambda x, i: (Loaded(x, requires_grad=False), i),
    "sparse": lambda x, i: (x.to_sparse(), i),
    "negated lazily": lambda x, i: (torch._neg_view(x), i),
    "none": lambda x, i: (None, i),
    "list": lambda x, i: (x, [0, 1, 2, 3]),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_call_that_differs_is_not_known(calls: KnownCalls, what: str) -> None:
    first = tensors()
    calls.remember(Noted(*first), first)
    other = OTHERS[what](*tensors())
    assert calls.find(other) is None
    # Nor while the call that was known is still at hand.
    assert calls.launch(first)
    assert not calls.launch(other)
    assert calls.launch(first)


@pytest.mark.parametrize("options", [(), (0.25,), (0.5, 1), (None,), ([1],), (torch.tensor(0.5),)], ids=str)
def test_other_options_are_not_known(calls: KnownCalls, options: tuple[Any, ...]) -> None:
    first = tensors()
    calls.remember(Noted(*first), first, (0.5,))
    assert calls.find(first, options) is None
    assert calls.launch(first, (0.5,))
    assert not calls.launch(first, options)


def test_an_option_that_could_change_is_not_remembered(calls: KnownCalls) -> None:
    first, scale = tensors(), torch.tensor(0.5)
    calls.remember(Noted(*first), first, (scale,))
    assert calls.find(first, (scale,)) is None


def test_a_call_whose_tensors_were_converted_is_not_remembered(calls: KnownCalls) -> None:
    first = tensors()
    calls.remember(Noted(first[0].clone(), first[1]), first)
    assert calls.find(first) is None


def test_other_alignment_takes_the_long_way(calls: KnownCalls) -> None:
    first = tensors()
    noted = Noted(*first)
    calls.remember(noted, first)
    odd = (torch.zeros(33)[1:].view(4, 8), first[1])
    assert not calls.launch(odd)
    calls.remember(Noted(*odd), odd, ("odd",))
    assert calls.find(odd, ("odd",)) is None
    assert noted.followed == []


def test_what_is_written_must_not_overlap(calls: KnownCalls) -> None:
    memory = torch.zeros(64)
    first = (torch.zeros(32), torch.zeros(4, dtype=torch.int64))
    noted, out = Noted(*first, torch.zeros(32)), torch.zeros(32)
    noted.pointers[2] = out.data_ptr()
    calls.remember(noted, (*first, out), written=[2])
    for start, apart in ((32, True), (28, False), (0, False), (32, True)):
        these = (memory[:32], first[1], memory[start : start + 32])
        assert calls.launch(these) == apart
    # What is only read may overlap.
    same = torch.zeros(32)
    calls.remember(Noted(same, first[1], same, out), (same, first[1], same, out), written=[3])
    assert calls.launch((same, first[1], same, out))


def test_under_a_mode_or_a_transform_nothing_is_known(calls: KnownCalls) -> None:
    first = tensors()
    calls.remember(Noted(*first), first)
    with topology.stand_ins():
        assert calls.find(first) is None
    seen = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(calls.find(first))
        return x

    torch.func.functionalize(look)(torch.zeros(2))
    assert seen == [None]
    assert calls.find(first) is not None
    # Nor while the call that was known is still at hand.
    assert calls.launch(first)
    with topology.stand_ins():
        assert not calls.launch(first)


def test_what_is_remembered_is_bounded(calls: KnownCalls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_calls, "_MOST_REMEMBERED", 3)
    for n in range(1, 9):
        these = tensors(n)
        calls.remember(Noted(*these), these)
        assert calls.find(these) is not None
        assert sum(map(len, calls._known.values())) <= 3


def test_a_release_with_other_guards_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_calls, "TensorGuards", lambda *tensors: None)
    calls, first = KnownCalls(by=1), tensors()
    calls.remember(Noted(*first), first)
    assert calls.find(first) is not None


# On a GPU: the functions themselves.

FUNCTIONS = [name for name in specs() if not name.endswith(("allocate", "torch_reference"))]


@pytest.mark.gpu
@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_second_call_takes_the_short_way_and_is_right(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = spec(function)
    assert run_against_reference(Call.valid(entry, seed=1)) <= entry.tolerance
    monkeypatch.setattr(known_calls.KnownCalls, "remember", lambda *args, **options: pytest.fail("the long way"))
    for seed in (2, 3):
        assert run_against_reference(Call.valid(entry, seed=seed)) <= entry.tolerance


@pytest.mark.gpu
@pytest.mark.parametrize("id", list(records()))
def test_a_known_call_lets_no_other_through(id: str) -> None:
    entry = spec(records()[id].function)
    for seed in (1, 2):
        Call.valid(entry, seed=seed).run()
    reproduce(id)
