"""Find messages of known wording in a log, also where a terminal has wrapped them."""

from __future__ import annotations

import re
import string
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from helpers.tracebacks.logs import Window

# Lines over which a wrapped message may spread, on either side of where it was noticed.
_REACH = 10
NAMES = ("argument", "name")
_BREAK = r"\s*"


def _spread(literal: str) -> str:
    """A regex for a text that may be broken into lines anywhere."""
    words = [_BREAK.join(map(re.escape, word)) for word in literal.split(" ")]
    return r"\s+".join(words)


def _any_of(literals: Iterable[str]) -> str:
    # The longest first: float32 must not be taken for float3 and a 2.
    return "(?:" + "|".join(_spread(literal) for literal in sorted(literals, key=len, reverse=True)) + ")"


_DTYPES = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
_DTYPES += ["float16", "float32", "float64", "bfloat16", "bool", "complex64", "complex128"]
_DTYPES += ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]
# What stands in a blank: a device, a size, a tuple, a dtype, a number, the placeholder of a template.
_VALUE = "|".join(
    [
        rf"{_spread('device')}\s*\([^()]{{1,60}}\)",
        rf"{_spread('torch.Size')}\s*\(\[[^\]]{{0,80}}\]\)",
        r"\([^()]{0,100}\)",
        r"\{[^{}\n]{1,60}\}",
        rf"{_any_of(('cuda', 'cpu', 'meta'))}(?:{_BREAK}:{_BREAK}\d+)?",
        rf"{_spread('torch.')}{_BREAK}{_any_of(_DTYPES)}",
        r"-?\d+",
    ]
)
_WORD = r"[^\s\"'\\]+"
_ANYTHING = r"[^\n]{1,160}?(?:\n[^\n]{0,160}?){0,3}?"


@dataclass(frozen=True)
class Wording:
    """The fixed words of a message, and its blanks.

    Attributes:
        template: the message as a ``str.format`` template.
        names: what can stand in the blanks for a name, ``{argument}`` and ``{name}``.
    """

    template: str
    names: tuple[str, ...] = ()

    @cached_property
    def _parts(self) -> list[tuple[str, str | None]]:
        return [(text, name) for text, name, _, _ in string.Formatter().parse(self.template)]

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """Names of the blanks, in order."""
        return tuple(name for _, name in self._parts if name is not None)

    @cached_property
    def fixed(self) -> str:
        """The fixed characters."""
        return "".join(text for text, _ in self._parts)

    @cached_property
    def anchor(self) -> str:
        """The longest run of fixed characters, without its spaces."""
        return max(("".join(text.split()) for text, _ in self._parts), key=len)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The message as a regex over several lines; each blank is a group."""
        regex = ""
        for index, (text, name) in enumerate(self._parts):
            # No break between two blanks: the second would reach for the next line.
            regex += f"{_BREAK if regex else ''}{_spread(text)}" if text else ""
            if name is not None:
                regex += f"{_BREAK if text else ''}({self._blank(index, name)})"
        return re.compile(regex)

    def match(self, text: str) -> Iterator[tuple[int, int, str, tuple[str, ...]]]:
        """Every place in a text where the message stands: span, the message on one line, and its fills."""
        for found in self.pattern.finditer(text):
            fills = tuple(_mend(fill) for fill in found.groups())
            yield found.start(), found.end(), self._filled(fills), fills

    def _blank(self, index: int, name: str) -> str:
        if name in NAMES:
            # A known name and no other: so a sentence of another library is not mistaken for ours.
            return rf"(?<![\w.]){_any_of(self.names)}|\{{[\w.]+\}}"
        last = index == len(self._parts) - 1
        return f"{_VALUE}|{_WORD if last else _ANYTHING}"

    def _filled(self, fills: tuple[str, ...]) -> str:
        values = iter(fills)
        return "".join(text + (next(values) if name is not None else "") for text, name in self._parts)


@dataclass(frozen=True)
class Hit:
    """A message that was found.

    Attributes:
        wording: which.
        message: as it was before any terminal wrapped it.
        fills: what stands in its blanks.
        first: index in the window of the line on which it begins.
        last: index of the line on which it ends.
        span: characters of the window's text that it covers.
    """

    wording: Wording
    message: str
    fills: tuple[str, ...]
    first: int
    last: int
    span: tuple[int, int]


def find(wordings: Iterable[Wording], window: Window) -> list[Hit]:
    """The messages in a window's stretch, in order. Where several wordings fit one place, the longest wins."""
    text = _Text([line.text for line in window.lines])
    hits = [hit for wording in wordings for hit in text.hits(wording)]
    hits.sort(key=lambda hit: (-len(hit.wording.fixed), hit.span))
    taken: dict[int, list[Hit]] = defaultdict(list)
    for hit in hits:
        lines = range(hit.first, hit.last + 1)
        if not any(_overlap(hit.span, other.span) for line in lines for other in taken[line]):
            for line in lines:
                taken[line].append(hit)
    kept = {hit.span: hit for found in taken.values() for hit in found}
    return [kept[span] for span in sorted(kept) if window.first <= kept[span].first < window.end]


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] < b[1] and b[0] < a[1]


class _Text:
    """Lines with two indices: by character, and by character without any white space."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        squeezed = ["".join(line.split()) for line in lines]
        self.squeezed = "".join(squeezed)
        self.squeezed_starts = list(accumulate(map(len, squeezed), initial=0))
        self.starts = list(accumulate((len(line) + 1 for line in lines), initial=0))

    def hits(self, wording: Wording) -> Iterator[Hit]:
        """Places of a wording. The anchor is looked up first, which is fast; the regex then sees a few lines."""
        seen = set()
        for line in self._lines_with(wording.anchor):
            low, high = max(0, line - _REACH), min(len(self.lines), line + _REACH + 1)
            base = self.starts[low]
            for start, end, message, fills in wording.match("\n".join(self.lines[low:high])):
                span = (base + start, base + end)
                if span not in seen:
                    seen.add(span)
                    first, last = (bisect_right(self.starts, place) - 1 for place in (span[0], span[1] - 1))
                    yield Hit(wording, message, fills, first, last, span)

    def _lines_with(self, anchor: str) -> Iterator[int]:
        place = self.squeezed.find(anchor)
        previous = -1
        while place >= 0:
            line = bisect_right(self.squeezed_starts, place) - 1
            if line != previous:
                yield line
                previous = line
            place = self.squeezed.find(anchor, place + 1)


def _mend(fill: str) -> str:
    """A value whose line was broken: after a comma there was a space, elsewhere nothing."""
    return re.sub(r"(,?)\s*\n\s*", lambda gap: ", " if gap[1] else "", fill)
