"""Exercises that check themselves.

A notebook shows an exercise with :func:`statement`, has the learner write the answer into the stub below it, and calls
:func:`check`. A check never raises: the untouched stub gives "not solved yet" and the first hint. A module in this
folder named after a kernel holds that kernel's ``EXERCISES``.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from functools import cache

from tabulate import tabulate

from helpers.exercises import progress as _progress
from helpers.exercises.exercise import Exercise, Grade, UnsolvedError, WrongError, grade

__all__ = ["Exercise", "Grade", "Progress", "UnsolvedError", "WrongError"]
__all__ += ["check", "exercise", "exercises", "grade", "hint", "progress", "statement"]


@cache
def exercises() -> dict[str, Exercise]:
    """Every exercise by id."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return {entry.id: entry for module in modules for entry in getattr(module, "EXERCISES", ())}


def exercise(id: str) -> Exercise:
    """The exercise with this id."""
    if id not in exercises():
        raise KeyError(f"no exercise {id}; there are {', '.join(exercises())}")
    return exercises()[id]


def statement(id: str) -> Exercise:
    """What to do. As the last line of a cell it shows itself."""
    return exercise(id)


def check(id: str, solution: object) -> None:
    """Judge a solution, say why, and keep the progress.

    Args:
        id: of the exercise.
        solution: the function or value that its stub asks for.
    """
    entry = exercise(id)
    result = grade(entry, solution)
    if result.state == "unsolved":
        print(f"{result.told[0].upper()}{result.told[1:]}\nHint 1 of {len(entry.hints)}: {entry.hints[0]}")
        return
    _progress.update(id, attempted=True, solved=result.state == "solved")
    if result.state == "solved":
        print(f"Right. {result.told}")
    else:
        print(f"Not yet: {result.told}\nhint({id!r}, 1) helps, up to {len(entry.hints)}.")


def hint(id: str, number: int = 1) -> None:
    """Print one of an exercise's hints, counted from 1."""
    hints = exercise(id).hints
    if not 1 <= number <= len(hints):
        print(f"There are hints 1 to {len(hints)}.")
        return
    _progress.update(id, hint=number)
    print(f"Hint {number} of {len(hints)}: {hints[number - 1]}")


@dataclass(frozen=True)
class Progress:
    """How far a learner is: for each exercise its id, title, and what is known of it."""

    rows: tuple[tuple[str, str, _progress.Entry], ...]

    @property
    def solved(self) -> int:
        """Number of exercises that have been solved."""
        return sum(entry.solved for _, _, entry in self.rows)

    def __repr__(self) -> str:
        return f"{self._summary}\n{self._table('simple')}"

    def _repr_markdown_(self) -> str:
        return f"{self._summary}\n\n{self._table('github')}"

    @property
    def _summary(self) -> str:
        return f"{self.solved} of {len(self.rows)} exercises solved"

    def _table(self, style: str) -> str:
        cells = [
            (id, title, "solved" if entry.solved else "open", entry.attempts or "", entry.hints or "")
            for id, title, entry in self.rows
        ]
        return tabulate(cells, ("exercise", "title", "state", "attempts", "hints"), tablefmt=style)


def progress(kernel: str | None = None) -> Progress:
    """The state of every exercise, or of one kernel's. As the last line of a cell it shows itself.

    Args:
        kernel: first part of the ids.
    """
    kept = _progress.load()
    chosen = [entry for entry in exercises().values() if kernel in (None, entry.id.partition(".")[0])]
    return Progress(tuple((entry.id, entry.title, kept.get(entry.id, _progress.Entry())) for entry in chosen))
