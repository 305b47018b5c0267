"""Show pieces of the package's own source, so that notebook and package cannot say different things."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any


def show_source(function: Callable[..., Any], first: str | None = None, last: str | None = None) -> None:
    """Print a function's source, or the part of it between two lines.

    Args:
        function: a Python function, or a ``@triton.jit`` kernel.
        first: text that the first line to show contains; the start if left out.
        last: text that the last line to show contains, looked for from the first one on; the end if left out.

    Raises:
        ValueError: when no line contains the text: the notebook and the package have come apart.
    """
    lines = inspect.getsource(getattr(function, "fn", function)).splitlines()
    start = 0 if first is None else _find(lines, first, 0)
    stop = len(lines) if last is None else _find(lines, last, start) + 1
    print(textwrap.dedent("\n".join(lines[start:stop])))


def _find(lines: list[str], text: str, start: int) -> int:
    for number, line in enumerate(lines[start:], start):
        if text in line:
            return number
    raise ValueError(f"no line contains {text!r}")
