"""From a message in a log to what is known about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from helpers.atlas import Record, records, spec
from helpers.tracebacks.foreign import FOREIGN, Evidence, Foreign
from helpers.tracebacks.logs import Line, Window
from helpers.tracebacks.wordings import NAMES, Hit, Wording, find

_FRAME = re.compile(r'File "?([^",\n]+?)"?(?:, line |:)\d+(?:, in (\w+))?')
_NOTE = re.compile(r"[\s|]*((?:name|odd one out|placement|fix): .*|the guard measures against .*)")
_NOTE_ENDS = re.compile(r'[\s|]*($|Traceback|During handling|The above exception|File "|[\w.]+(Error|Exception)\b)')
_OFFENDER = re.compile(r"([\w.]+) on (?:cuda|cpu|meta)")
_DEVICE = re.compile(r"(cuda|cpu|meta)")
_LOOK_BACK = 120
_LOOK_AHEAD = 16
# A line shorter than this was not broken by a terminal.
_NARROWEST = 60


@dataclass(frozen=True)
class Finding:
    """One error that was recognised.

    Attributes:
        id: of the guard or the foreign error.
        error: name of the exception class.
        message: as it was printed, line breaks mended.
        functions: public functions that may have raised it.
        arguments: arguments that may be at fault; one if the log tells which.
        meaning: what the message says.
        happens: how people get there.
        fix: what to do about it.
        details: what the log says beyond the message.
        notebook: stem of the notebook to read on in.
        section: anchor there.
        cases: ids of reported failures of this kind.
        records: ids of the records in the atlas; none for a foreign error.
        ranks: who said so.
        line: where it was seen first, counted from 1.
        count: how often it was seen.
    """

    id: str
    error: str
    message: str
    functions: tuple[str, ...]
    arguments: tuple[str, ...]
    meaning: str
    happens: str
    fix: str
    details: tuple[str, ...]
    notebook: str
    section: str
    cases: tuple[str, ...]
    records: tuple[str, ...]
    ranks: tuple[str, ...]
    line: int
    count: int = 1


@cache
def known() -> dict[Wording, tuple[Record | Foreign, ...]]:
    """What each wording can mean. Guards of one text, and a guard's several arguments, share a wording."""
    by_message: dict[str, list[Record]] = {}
    for record in records().values():
        by_message.setdefault(record.message, []).append(record)
    found: dict[Wording, tuple[Record | Foreign, ...]] = {
        Wording(message, _names(entries)): tuple(entries) for message, entries in by_message.items()
    }
    for foreign in FOREIGN:
        found.update((Wording(message), (foreign,)) for message in foreign.messages)
    return found


def _names(entries: list[Record]) -> tuple[str, ...]:
    """The names that a guard's messages use for what is at fault."""
    fields = Wording(entries[0].message).fields
    found = [record.pattern.fullmatch(record.example) for record in entries]
    return tuple({match[i + 1] for match in found if match for i, field in enumerate(fields) if field in NAMES})


def findings(window: Window) -> Iterator[Finding]:
    """Everything that is recognised in a stretch of a log, in order."""
    for hit in find(known(), window):
        evidence = gather(window.lines, hit.first, hit.last)
        line = window.lines[hit.first]
        entries = known()[hit.wording]
        if isinstance(entries[0], Foreign):
            yield _foreign(entries[0], hit, evidence, line)
        else:
            candidates = [entry for entry in entries if isinstance(entry, Record)]
            yield _guard(narrow(candidates, hit, evidence), hit, evidence, line)


def merge(found: Iterable[Finding]) -> list[Finding]:
    """One finding for what was seen several times: by several ranks, at every step, with and without its notes."""
    merged: dict[tuple[str, str, tuple[str, ...]], Finding] = {}
    for finding in found:
        key = (finding.id, finding.message, finding.details)
        merged[key] = _together(merged[key], finding) if key in merged else finding
    for key in list(merged):
        # The same message without the notes, as when a program logs str(error) and then the traceback.
        richer = next((other for other in merged if other[:2] == key[:2] and other[2] and not key[2]), None)
        if richer is not None:
            merged[richer] = _together(merged[richer], merged.pop(key))
    concrete = {finding.id for finding in merged.values() if "{" not in finding.message}
    # Source lines in a traceback show the message's template as well.
    kept = [finding for finding in merged.values() if "{" not in finding.message or finding.id not in concrete]
    return sorted(kept, key=lambda finding: finding.line)


def gather(lines: list[Line], first: int, last: int) -> Evidence:
    """Read the same rank's lines around a message: the traceback above it, the notes below."""
    rank = lines[first].rank
    above = [line.text for line in lines[max(0, first - _LOOK_BACK) : first] if line.rank == rank]
    start = next((i for i in reversed(range(len(above))) if "Traceback (most recent call last)" in above[i]), 0)
    above = above[start:]
    frames = tuple((match[1], match[2] or "") for text in above for match in _FRAME.finditer(text))
    below = [line for line in lines[last + 1 : last + 1 + _LOOK_AHEAD] if line.rank == rank]
    notes = tuple(_notes(below))
    odd = " ".join(note.partition(";")[0] for note in notes if note.startswith("odd one out"))
    words = frozenset(re.findall(r"[A-Za-z_]\w+", " ".join([*above, lines[first].text])))
    return Evidence(words, frames, notes, tuple(_OFFENDER.findall(odd)))


def narrow(candidates: list[Record], hit: Hit, evidence: Evidence) -> list[Record]:
    """The records that fit the evidence; all of them where nothing tells them apart."""
    tests: list[Callable[[Record], bool]] = [
        lambda record: _named(record, hit),
        lambda record: record.function in evidence.words,
        lambda record: record.argument in evidence.offenders,
        lambda record: record.argument in _alone_on_cpu(hit),
        # Of two GPUs none is the wrong one by its number, so there an example that agrees proves nothing.
        lambda record: "cpu" in _kinds(hit.fills) and _kinds(_fills(hit.wording, record.example)) == _kinds(hit.fills),
        lambda record: record.error != "DeviceError" and record.example == hit.message,
    ]
    for test in tests:
        candidates = [record for record in candidates if test(record)] or candidates
    return candidates


def _notes(below: list[Line]) -> Iterator[str]:
    """The notes that follow a message, each on one line again."""
    note, width = "", 0
    for line in below:
        if match := _NOTE.match(line.text):
            if note:
                yield note
            note = match[1].strip()
        elif width < _NARROWEST or line.marked or _NOTE_ENDS.match(line.text):
            break
        else:
            note += (" " if note[-1] in ",;" else "") + line.text.strip()
        width = len(line.text)
    if note:
        yield note


def _named(record: Record, hit: Hit) -> bool:
    """Whether the message names what this record's message names."""
    fills = _fills(hit.wording, record.example)
    return all(
        fills[i] == hit.fills[i] or "{" in hit.fills[i] for i, field in enumerate(hit.wording.fields) if field in NAMES
    )


@cache
def _fills(wording: Wording, message: str) -> tuple[str, ...]:
    return next(fills for _, _, _, fills in wording.match(message))


def _kinds(fills: tuple[str, ...]) -> list[str]:
    """The kinds of the devices among a message's values."""
    return [match[1] for fill in fills if (match := _DEVICE.search(fill))]


def _alone_on_cpu(hit: Hit) -> list[str]:
    """The argument that the message shows on the CPU, where it shows others on a GPU."""
    shown = {field: fill for field, fill in zip(hit.wording.fields, hit.fills, strict=True) if ".device" in field}
    there = [field.partition(".device")[0] for field, fill in shown.items() if _kinds((fill,)) == ["cpu"]]
    return there if len(there) < len(shown) else []


def _guard(chosen: list[Record], hit: Hit, evidence: Evidence, line: Line) -> Finding:
    first = chosen[0]
    fixes = dict.fromkeys(record.fix for record in chosen)
    return Finding(
        id=first.guard,
        error=first.error,
        message=hit.message,
        functions=tuple(dict.fromkeys(record.function for record in chosen)),
        arguments=tuple(dict.fromkeys(record.argument for record in chosen)),
        meaning=first.meaning,
        happens=first.happens,
        fix=first.fix if len(fixes) == 1 else "; or ".join(fixes),
        details=evidence.notes,
        notebook=spec(first.function).notebook,
        section=first.section,
        cases=tuple(dict.fromkeys(case for record in chosen for case in record.cases)),
        records=tuple(record.id for record in chosen),
        ranks=(line.rank,) if line.rank else (),
        line=line.number,
    )


def _foreign(entry: Foreign, hit: Hit, evidence: Evidence, line: Line) -> Finding:
    return Finding(
        id=entry.id,
        error=entry.error,
        message=hit.message,
        functions=(),
        arguments=(),
        meaning=entry.meaning,
        happens=entry.happens,
        fix=entry.fix,
        details=entry.details(evidence, hit.fills),
        notebook=entry.notebook,
        section=entry.section,
        cases=entry.cases,
        records=(),
        ranks=(line.rank,) if line.rank else (),
        line=line.number,
    )


def _together(a: Finding, b: Finding) -> Finding:
    return replace(
        a,
        ranks=tuple(dict.fromkeys((*a.ranks, *b.ranks))),
        line=min(a.line, b.line),
        count=a.count + b.count,
    )
