"""What a record is. Importable without torch, so that ``explain`` answers at once."""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from helpers.calls import Call


@dataclass(frozen=True, kw_only=True)
class Spec:
    """How to make a small valid call of one public function, and what it must produce.

    Attributes:
        function: name of the function in ``kernels``.
        kernel: its folder in ``kernels``.
        notebook: stem of the notebook that walks through it.
        sample: given a real device and a seed, valid arguments by name, in the order of the signature. Small, random,
            with outputs poisoned or filled so that a missing write is seen.
        outputs: arguments that the call writes, or ``"return"`` entries such as ``"return.0"``; a field of a
            dataclass as ``"argument.field"``.
        expected: given the arguments before the call, the right value of each output, from the plain PyTorch
            reference. It must leave the arguments as they are.
        tolerance: largest accepted relative error (norm of the difference over norm of the reference); 0 means equal
            bit for bit.
    """

    function: str
    kernel: str
    notebook: str
    sample: Callable[[torch.device, int], dict[str, Any]]
    outputs: tuple[str, ...]
    expected: Callable[[dict[str, Any]], dict[str, torch.Tensor]]
    tolerance: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Record:
    """One way to be refused: a guard, and the argument that is at fault.

    Attributes:
        id: ``"<guard id>/<argument>"``, unique. A guard that several functions share adds ``"@<function>"`` to tell
            its records apart, and one that an argument can violate in several ways adds ``"@<way>"``.
        function: public function that refuses.
        error: name of the exception class.
        message: the guard's message as a ``str.format`` template, as in ``kernels``.
        example: the exact message that :attr:`provoke` produces, on every machine.
        meaning: what the message says, in a sentence or two.
        happens: how people get there.
        fix: what to do about it; code where it fits in a line.
        provoke: makes a valid call invalid in just this way.
        repair: mends it, the way :attr:`fix` says.
        section: anchor in the kernel's notebook.
        seed: which of the four error pages this is, if any.
        cases: ids of reported failures of this kind.
        context: entered around the provoked call only, for refusals that depend on the machine.
    """

    id: str
    function: str
    error: str
    message: str
    example: str
    meaning: str
    happens: str
    fix: str
    provoke: Callable[[Call], None]
    repair: Callable[[Call], None]
    section: str = "what-it-refuses"
    seed: int | None = None
    cases: tuple[str, ...] = ()
    context: Callable[[], AbstractContextManager[Any]] = field(default=nullcontext)

    @property
    def guard(self) -> str:
        """Id of the guard in ``kernels``."""
        return self.id.rpartition("/")[0]

    @property
    def argument(self) -> str:
        """The argument at fault."""
        return self.id.rpartition("/")[2].partition("@")[0]

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The message as a regular expression; each fill of the template is one group."""
        parts = (
            re.escape(text) + ("(.+?)" if name is not None else "")
            for text, name, _, _ in string.Formatter().parse(self.message)
        )
        return re.compile("".join(parts))

    @property
    def outline(self) -> str:
        """The message with an ellipsis for every fill, as a person would quote it."""
        return "".join(
            text + ("…" if name is not None else "") for text, name, _, _ in string.Formatter().parse(self.message)
        )
