"""Exercises: solutions pass, stubs fail, wrong answers are told where they differ; progress stays out of the way."""

from __future__ import annotations

import importlib
import inspect
import json
import linecache
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.exercises import Exercise, check, exercise, exercises, grade, hint, progress, statement
from helpers.exercises.progress import STATE_VARIABLE, state_file

TESTS = Path(__file__).parent
SOLUTIONS = TESTS.parent / "notebooks" / "solutions"
EVERY_EXERCISE = pytest.mark.parametrize("entry", exercises().values(), ids=list(exercises()))
WRONG_ANSWERS: dict[str, list[tuple[object, str]]] = {}
for path in sorted(TESTS.glob("wrong_answers_*.py")):
    WRONG_ANSWERS.update(importlib.import_module(path.stem).WRONG_ANSWERS)
FIRST = "mamba_scatter.misplaced"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """No test touches the learner's own progress."""
    path = tmp_path / "folder" / "progress.json"
    monkeypatch.setenv(STATE_VARIABLE, str(path))
    return path


def stub(entry: Exercise) -> Any:
    """The stub as a notebook's cell leaves it behind."""
    name = f"<stub of {entry.id}>"
    linecache.cache[name] = (len(entry.stub), None, entry.stub.splitlines(keepends=True), name)
    namespace = {"torch": torch, "Any": Any}
    exec(compile(entry.stub, name, "exec"), namespace)
    return namespace[entry.answer]


def solution(entry: Exercise) -> Any:
    return runpy.run_path(str(SOLUTIONS / f"{entry.id.partition('.')[0]}.py"))[entry.answer]


def told(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


@EVERY_EXERCISE
def test_the_solution_passes(entry: Exercise) -> None:
    result = grade(entry, solution(entry))
    assert result.state == "solved", result.told
    assert result.told.endswith(".")


@EVERY_EXERCISE
def test_the_stub_is_unsolved(entry: Exercise) -> None:
    result = grade(entry, stub(entry))
    assert result.state == "unsolved"
    assert result.told.startswith("not solved yet")


@EVERY_EXERCISE
def test_two_wrong_answers_are_told_where_they_differ(entry: Exercise) -> None:
    assert len(WRONG_ANSWERS[entry.id]) >= 2
    for answer, words in WRONG_ANSWERS[entry.id]:
        result = grade(entry, answer)
        assert result.state == "wrong", answer
        assert words in result.told, answer


@EVERY_EXERCISE
def test_nonsense_does_not_get_past_the_check(entry: Exercise) -> None:
    for answer in (None, 3, "x", {}, lambda *_: 1 / 0, lambda *_: None):
        assert grade(entry, answer).state != "solved", answer


@EVERY_EXERCISE
def test_exercises_are_complete(entry: Exercise) -> None:
    assert len(entry.hints) >= 2
    assert len(set(entry.hints)) == len(entry.hints)
    assert max(len(line) for line in entry.stub.splitlines()) <= 100
    assert entry.statement in statement(entry.id)._repr_markdown_()
    source = solution(entry)
    if callable(source):
        # The solution has the stub's signature: a learner changes the body alone.
        assert inspect.signature(source) == inspect.signature(stub(entry))


def test_each_kernel_has_three_exercises() -> None:
    kernels = [entry.id.partition(".")[0] for entry in exercises().values()]
    assert all(kernels.count(kernel) >= 3 for kernel in kernels)


def test_an_unknown_exercise_is_refused() -> None:
    with pytest.raises(KeyError, match=FIRST):
        exercise("nothing")


# What a notebook shows.


def test_checking_a_stub_gives_the_first_hint_and_keeps_nothing(
    capsys: pytest.CaptureFixture[str], state: Path
) -> None:
    for entry in exercises().values():
        check(entry.id, stub(entry))
        shown = told(capsys)
        assert shown.startswith("Not solved yet")
        assert f"Hint 1 of {len(entry.hints)}: {entry.hints[0]}" in shown
    assert not state.exists()


def test_checking_a_wrong_and_a_right_answer(capsys: pytest.CaptureFixture[str]) -> None:
    check(FIRST, lambda tensors: [])
    assert told(capsys).startswith("Not yet: with dst on cuda:0, src on cuda:1")
    check(FIRST, solution(exercise(FIRST)))
    assert told(capsys).startswith("Right. ")


def test_an_exception_in_a_solution_is_told_with_its_line() -> None:
    def misplaced(tensors: dict[str, torch.Tensor]) -> list[str]:
        return [tensors["destination"].device]

    result = grade(exercise(FIRST), misplaced)
    assert result.told == """it raised KeyError in "return [tensors["destination"].device]": 'destination'"""


@pytest.mark.parametrize(
    "words",
    [
        "PyTorch is not linked with support for cuda devices",
        "PyTorch was compiled without CUDA support",
        "Cannot access accelerator device when none is available.",
        "CUDA error: invalid device ordinal",
    ],
)
def test_an_answer_that_needs_a_gpu_is_not_called_wrong_for_it(words: str) -> None:
    def misplaced(tensors: dict[str, torch.Tensor]) -> list[str]:
        raise RuntimeError(words)

    result = grade(exercise(FIRST), misplaced)
    assert "it asks for a GPU that is not here" in result.told


def test_hints_are_given_one_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    hint(FIRST, 2)
    assert told(capsys) == f"Hint 2 of 3: {exercise(FIRST).hints[1]}\n"
    hint(FIRST, 4)
    assert told(capsys) == "There are hints 1 to 3.\n"


# Progress.


def test_progress_is_kept_and_shown(state: Path) -> None:
    check(FIRST, lambda tensors: [])
    hint(FIRST, 2)
    hint(FIRST, 1)
    check(FIRST, solution(exercise(FIRST)))
    check(FIRST, lambda tensors: [])
    assert json.loads(state.read_text())[FIRST] == {"solved": True, "attempts": 2, "hints": 2}
    shown = progress("mamba_scatter")
    assert shown.solved == 1
    assert repr(shown).splitlines()[0] == f"1 of {len(shown.rows)} exercises solved"
    row = next(line for line in repr(shown).splitlines() if FIRST in line)
    assert row.split()[-3:] == ["solved", "2", "2"]
    assert FIRST in shown._repr_markdown_()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"x": 3}', '{"x": {"unknown": 1}}', "\0"])
def test_a_broken_file_counts_as_no_progress(state: Path, content: str) -> None:
    state.parent.mkdir(parents=True)
    state.write_text(content)
    assert progress().solved == 0
    check(FIRST, solution(exercise(FIRST)))
    assert progress().solved == 1


def test_where_nothing_can_be_written_the_check_still_works(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state.parent.write_text("a file where the folder should be")
    check(FIRST, solution(exercise(FIRST)))
    shown = told(capsys)
    assert "(progress is not kept: " in shown
    assert "Right. " in shown


def test_progress_is_not_kept_in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STATE_VARIABLE)
    assert not state_file().is_relative_to(TESTS.parent)
    assert "device-guards" in state_file().parts
