"""Read a log as people paste it: rank prefixes and colours off, each line with the rank that wrote it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

# Longer lines are cut: nothing that is explained here is longer, and one of many megabytes would stall a regex.
LONGEST_LINE = 20_000

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_TIME = r"\d\d:\d\d:\d\d(?:[.,]\d+)?"
_PREFIX = re.compile(
    rf"""(?:
      \[ ([a-z]+ \d+) \]:                                        # torchrun, PyTorch:  [rank1]:  [default1]:
    | \[ (?:\d{{1,5}},)? (\d{{1,5}}) \] (?=[:\s<]) (?:<std(?:out|err)>)? :?   # mpirun:  [1]  [1,0]<stderr>:
    | \( ( [^()\n]* \b (?:pid|rank)=\d+ [^()\n]* ) \)            # Ray and engines:  (Worker_TP1 pid=4242)
    | ( \d{{1,5}} ) : (?=\s)                                     # srun --label:  1:
    | ( [\w.-]+ -\d+ ) [ ]+ \| (?=\s)                            # docker compose:  worker-1  |
    | \[? \d{{4}}-\d\d-\d\d [T ] {_TIME} (?:Z|[+-]\d\d:?\d\d)? (?:[ ] ([A-Z]{{2}}\d+ (?:[ ][A-Z]{{2}}\d+)*) )? \]?
    | \[? {_TIME} \]?
    | (?:DEBUG|INFO|WARNING|ERROR|CRITICAL) [ ] \d\d-\d\d [ ] {_TIME} [ ] \[ [^\]\n]+ \]    # vLLM
    | [DIWEF]\d{{4}} [ ] {_TIME} \s+ \d+ \s [^\]\s]+ \]          # glog
    )[ ]?""",
    re.VERBOSE,
)
_TEMPLATE_DEBUG = re.compile(r"\{([\w.\[\]:]+)=\}")


class Line(NamedTuple):
    """One line of a log.

    Attributes:
        number: its place in the file, from 1.
        rank: who wrote it, as the prefix says ("rank1", "Worker pid=7"); empty when nothing says.
        marked: whether the line has a prefix of its own.
        text: the rest.
    """

    number: int
    rank: str
    marked: bool
    text: str


@dataclass(frozen=True)
class Window:
    """A stretch of a log with some context on both sides.

    Attributes:
        lines: context, stretch and context.
        first: index of the stretch's first line.
        end: index of the line after its last.
    """

    lines: list[Line]
    first: int
    end: int


def clean(raw_lines: Iterable[str]) -> Iterator[Line]:
    """Take prefixes, colours and escapes off.

    A line without a prefix belongs to whoever wrote the line before: terminals wrap lines, and most loggers mark only
    the first line of a traceback.
    """
    rank = ""
    for number, raw in enumerate(raw_lines, start=1):
        raw = raw[:LONGEST_LINE]
        if "\x1b" in raw:
            raw = _ANSI.sub("", raw)
        text, prefix = _split_prefix(raw.rstrip("\r\n"))
        rank = rank if prefix is None else prefix
        for part in _unescape(text):
            yield Line(number, rank, prefix is not None, part)


def windows(lines: Iterable[Line], size: int = 20_000, margin: int = 150) -> Iterator[Window]:
    """Cut a log of any length into stretches, so that memory does not grow with it.

    Args:
        lines: the whole log.
        size: lines in a stretch.
        margin: lines of context before and after.
    """
    buffer: list[Line] = []
    first = 0
    for line in lines:
        buffer.append(line)
        if len(buffer) == first + size + margin:
            yield Window(buffer, first, first + size)
            keep = max(0, first + size - margin)
            first, buffer = first + size - keep, buffer[keep:]
    yield Window(buffer, first, len(buffer))


def _split_prefix(text: str) -> tuple[str, str | None]:
    """A line without its prefixes, and the rank they name: empty if they name none, None if there is no prefix."""
    rank: str | None = None
    while match := _PREFIX.match(text):
        named = next((group for group in match.groups() if group), "")
        rank = (f"rank{named}" if named.isdigit() else named) or rank or ""
        text = text[match.end() :]
    return text, rank


def _unescape(text: str) -> list[str]:
    """The lines in a line: a traceback inside JSON or a repr has its newlines and quotes escaped."""
    if "=}" in text:
        # The template of an f-string, as it is printed on an error page: {x=} stands for x={x}.
        text = _TEMPLATE_DEBUG.sub(r"\1={\1}", text)
    if "\\" not in text:
        return [text]
    return text.replace("\\n", "\n").replace("\\'", "'").replace('\\"', '"').split("\n")
