"""What an exercise is, and what can become of a solution."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

# What PyTorch says where an operation insists on a GPU that is not there, even for a tensor without memory: in a build
# for the CPU, and where the machine has fewer GPUs than the stand-ins name.
_NEEDS_A_GPU = re.compile(
    "not linked with support for cuda|not compiled with CUDA|compiled without CUDA|_cuda_|invalid device ordinal|"
    "accelerator device when none is available"
)


class WrongError(Exception):
    """A solution that does something else than it should. The message says where the two differ."""


class UnsolvedError(Exception):
    """There is no solution yet: the stub as it was given."""


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """A task that checks itself.

    Attributes:
        id: ``"<kernel>.<what>"``.
        title: a few words.
        statement: what to do, as Markdown.
        answer: name of the function or variable that the stub leaves to be written.
        stub: its source as the learner gets it.
        hints: from a nudge to nearly the solution.
        judge: given the answer, returns what can be learned from it; raises :class:`WrongError`.
    """

    id: str
    title: str
    statement: str
    answer: str
    stub: str
    hints: tuple[str, ...]
    judge: Callable[[Any], str]

    def _repr_markdown_(self) -> str:
        return f"**Exercise: {self.title}** (`{self.id}`)\n\n{self.statement}"

    def __repr__(self) -> str:
        return f"Exercise: {self.title} ({self.id})"


@dataclass(frozen=True)
class Grade:
    """What became of a solution.

    Attributes:
        state: "solved", "wrong", or "unsolved" for the untouched stub.
        told: why.
    """

    state: Literal["solved", "wrong", "unsolved"]
    told: str


def grade(exercise: Exercise, solution: object) -> Grade:
    """Judge a solution. Nothing that it does, other than to run forever, gets past this."""
    try:
        return Grade("solved", exercise.judge(solution))
    except UnsolvedError:
        return Grade("unsolved", "not solved yet")
    except WrongError as error:
        wrong = str(error)
    except Exception as error:
        # The stub raises NotImplementedError without a word. PyTorch raises this class too, but says why.
        if isinstance(error, NotImplementedError) and not error.args:
            return Grade("unsolved", "not solved yet")
        wrong = _stumbled(error)
    if _untouched(exercise, solution):
        return Grade("unsolved", f"not solved yet: {wrong}")
    return Grade("wrong", wrong)


def _untouched(exercise: Exercise, solution: object) -> bool:
    """Whether a function is still the stub, where that is code to be repaired."""
    try:
        return inspect.getsource(solution).split() == exercise.stub.split()  # type: ignore[arg-type]
    except (OSError, TypeError):
        return False


def _stumbled(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    # The innermost line of the solution itself: of a notebook's cell, or of a file that is no package.
    own = [frame for frame in frames if "site-packages" not in frame.filename and "/helpers/" not in frame.filename]
    where = f' in "{own[-1].line}"' if own and own[-1].line else ""
    told = f"it raised {type(error).__name__}{where}: {(str(error).splitlines() or [''])[0]}"
    if needs_a_gpu(error):
        told += (
            "\n  That need not be wrong, but on this machine it cannot be judged: it asks for a GPU that is not here.\n"
            "  device=... in torch.tensor or torch.zeros, .to(device) and masked_fill work without one"
        )
    return told


def needs_a_gpu(error: Exception) -> bool:
    """Whether an answer failed only because it asked PyTorch for a GPU that this machine lacks."""
    return _NEEDS_A_GPU.search(str(error)) is not None
