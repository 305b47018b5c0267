"""A traceback in, an explanation out: ``python -m helpers.explain log.txt``, or ``%explain`` in a notebook.

Importable without torch: the answer is there at once.
"""

from __future__ import annotations

import argparse
import codecs
import difflib
import html
import io
import json
import os
import re
import shutil
import sys
import textwrap
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from helpers.atlas import Record
from helpers.tracebacks.findings import Finding, findings, known, merge
from helpers.tracebacks.logs import Line, clean, windows

_ROOT = Path(__file__).resolve().parents[1]
_SHOWN = 3
_ERROR_LINE = re.compile(r"\b\w*(?:Error|Exception)\b|\bmust\b|\bexpected\b|\bmismatch\b", re.IGNORECASE)
_BLANK = re.compile(r"\{[^}]*\}")
# Shorter ones begin too many messages.
_SHORTEST_BEGINNING = 25
_CLASS = re.compile(r"^\s*[\w.]*(?:Error|Exception): ")


class UnreadableInputError(ValueError):
    """There is nothing to explain in the input: it is empty, or no text."""


@dataclass(frozen=True)
class NearMiss:
    """A message of the project that resembles a line of the input.

    Attributes:
        id: of the guard or the foreign error.
        message: what it says.
        likeness: from 0 to 1.
        line: the input's line.
    """

    id: str
    message: str
    likeness: float
    line: int


@dataclass(frozen=True)
class Explanation:
    """What was recognised in a text, root cause first.

    Attributes:
        findings: each error once.
        near_misses: what looks alike, best first, if nothing was recognised.
    """

    findings: tuple[Finding, ...]
    near_misses: tuple[NearMiss, ...] = ()

    def text(self, *, all: bool = False, width: int = 100, numbered: bool = True) -> str:
        """As plain text.

        Args:
            all: every finding in full, not only the first few.
            width: columns.
            numbered: whether to give line numbers also where no rank is named.
        """
        if not self.findings:
            return _near_text(self.near_misses, width)
        shown = self.findings if all else self.findings[:_SHOWN]
        parts = [_finding_text(finding, width, numbered) for finding in shown]
        if left := len(self.findings) - len(shown):
            parts.append(f"{left} more; --all shows them")
        return "\n\n".join(parts)

    def to_json(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False)

    def __repr__(self) -> str:
        # In a notebook, the place within a traceback tells nothing and differs between versions of Python.
        return self.text(numbered=False)

    def _repr_html_(self) -> str:
        if not self.findings:
            return f"<pre>{html.escape(self.text())}</pre>"
        return "".join(_finding_html(finding) for finding in self.findings)


def explain(text: str) -> Explanation:
    """Explain a pasted traceback, a message, or a whole log.

    Raises:
        UnreadableInputError: when the text is empty.
    """
    # Universal newlines: a carriage return, as a progress bar writes it, ends a line too.
    return _explain(io.StringIO(text, newline=None))


def explain_file(stream: io.BufferedReader) -> Explanation:
    """Explain a log that is read as it goes, so that its size does not matter.

    Raises:
        UnreadableInputError: when it is empty, or no text.
    """
    head = stream.peek(4096)
    wide = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if b"\0" in head and not wide:
        raise UnreadableInputError("this is binary, not text")
    lines = io.TextIOWrapper(stream, encoding="utf-16" if wide else "utf-8-sig", errors="replace")
    try:
        return _explain(lines)
    finally:
        lines.detach()


def _explain(raw_lines: Iterable[str]) -> Explanation:
    suspects = _Suspects()
    lines = suspects.watch(clean(raw_lines))
    found = merge(finding for window in windows(lines) for finding in findings(window))
    if suspects.empty:
        raise UnreadableInputError("there is nothing to explain: the input is empty")
    found = found or list(suspects.begun())
    return Explanation(tuple(found), () if found else suspects.near_misses())


class _Suspects:
    """Keeps the lines of a log that may hold the error, for the case that none is recognised."""

    def __init__(self) -> None:
        self.empty = True
        self._errors: deque[Line] = deque(maxlen=12)
        self._last: deque[Line] = deque(maxlen=3)

    def watch(self, lines: Iterable[Line]) -> Iterator[Line]:
        """The same lines."""
        for line in lines:
            if line.text.strip():
                self.empty = False
                self._last.append(line)
                if len(line.text) < 500 and _ERROR_LINE.search(line.text):
                    self._errors.append(line)
            yield line

    def begun(self) -> Iterator[Finding]:
        """What a message is about of which there is only the beginning, or … in place of its values."""
        for line in self._errors or self._last:
            said = _CLASS.sub("", line.text).strip().replace("...", "…")
            for wording in known() if len(said) >= _SHORTEST_BEGINNING else ():
                if _BLANK.sub("…", wording.template).startswith(said):
                    for window in windows(clean([wording.template])):
                        yield from (replace(found, message=said, line=line.number) for found in findings(window))

    def near_misses(self, count: int = 3, threshold: float = 0.55) -> tuple[NearMiss, ...]:
        """The messages of this project that resemble one of the lines most."""
        best: dict[str, NearMiss] = {}
        for line in self._errors or self._last:
            said = _CLASS.sub("", line.text).strip()[:300]
            for id, fixed, message in _messages():
                likeness = _likeness(said, fixed)
                if likeness >= threshold and (id not in best or likeness > best[id].likeness):
                    best[id] = NearMiss(id, message, round(likeness, 2), line.number)
        return tuple(sorted(best.values(), key=lambda miss: -miss.likeness)[:count])


@cache
def _messages() -> tuple[tuple[str, str, str], ...]:
    """Id, fixed words and an example of every message."""
    return tuple(
        (entries[0].guard, wording.fixed, entries[0].example)
        if isinstance(entries[0], Record)
        else (entries[0].id, wording.fixed, wording.template)
        for wording, entries in known().items()
    )


def _likeness(said: str, fixed: str) -> float:
    """How much a line resembles a message's fixed words, from 0 to 1; cheap when it does not."""
    words, wanted = set(re.findall(r"\w+", said.lower())), set(re.findall(r"\w+", fixed.lower()))
    shared = len(words & wanted) / len(wanted)
    if shared < 0.5:
        return 0.0
    return (shared + difflib.SequenceMatcher(None, said, fixed, autojunk=False).ratio()) / 2


@cache
def notebook_link(stem: str, section: str) -> str | None:
    """A notebook's path below the project's root, with its section's anchor as JupyterLab knows it.

    Args:
        stem: end of the notebook's name.
        section: its heading in lower case, with dashes. A notebook without it is linked to as a whole.

    Returns:
        None where the notebooks are not installed.
    """
    found = sorted((_ROOT / "notebooks").glob(f"*{stem}.ipynb"))
    if not found:
        return None
    path = found[0].relative_to(_ROOT).as_posix()
    cells = json.loads(found[0].read_text(encoding="utf-8"))["cells"]
    prose = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    headings = (heading.replace(" ", "-") for heading in re.findall(r"^#+ +(.+?) *$", prose, re.MULTILINE))
    anchor = next((heading for heading in headings if heading.lower() == section), None)
    return f"{path}#{anchor}" if anchor else path


def _read_on(finding: Finding) -> str:
    link = notebook_link(finding.notebook, finding.section)
    return link or f"notebook {finding.notebook}, section {finding.section}"


def _seen(finding: Finding) -> str:
    times = "" if finding.count == 1 else f", {finding.count} times"
    ranks = "" if not finding.ranks else f" by {', '.join(finding.ranks)}"
    return f"line {finding.line}{times}{ranks}"


def _title(finding: Finding) -> str:
    where = f" in {' or '.join(finding.functions)}" if finding.functions else ""
    what = f", argument {' or '.join(finding.arguments)}" if finding.arguments else ""
    return f"{finding.error}{where}{what}"


def _finding_rows(finding: Finding, numbered: bool) -> Iterator[tuple[str, str]]:
    yield "means", finding.meaning
    yield "happens", finding.happens
    yield "fix", finding.fix
    for detail in finding.details:
        label, _, rest = detail.partition("fix: ")
        yield ("here", detail) if label else ("fix here", rest)
    yield "read on", _read_on(finding)
    if numbered or finding.ranks:
        yield "seen", _seen(finding)


def _finding_text(finding: Finding, width: int, numbered: bool) -> str:
    lines = textwrap.wrap(_title(finding), width, subsequent_indent="    ")
    lines += textwrap.wrap(finding.message, width, initial_indent="    ", subsequent_indent="    ")
    for label, value in _finding_rows(finding, numbered):
        lines += textwrap.wrap(
            value, width, initial_indent=f"{label:9}", subsequent_indent=" " * 9, break_long_words=False
        )
    return "\n".join(lines)


def _finding_html(finding: Finding) -> str:
    rows = []
    for label, value in _finding_rows(finding, numbered=False):
        cell = html.escape(value)
        if label == "read on" and (link := notebook_link(finding.notebook, finding.section)):
            near = link.removeprefix("notebooks/")
            cell = cell.replace(html.escape(link), f'<a href="{html.escape(near)}">{html.escape(near)}</a>')
        rows.append(f'<tr><th style="text-align:left">{label}</th><td style="text-align:left">{cell}</td></tr>')
    title, message = html.escape(_title(finding)), html.escape(finding.message)
    return f"<p><strong>{title}</strong><br><code>{message}</code></p><table>{''.join(rows)}</table>"


def _near_text(misses: tuple[NearMiss, ...], width: int) -> str:
    if not misses:
        return f"nothing recognised, and none of the {len(known())} messages known here looks like it"
    lines = ["nothing recognised; the nearest messages:"]
    for miss in misses:
        label = f"  {miss.likeness:.0%}  "
        lines += textwrap.wrap(
            f"{miss.message}  [{miss.id}, line {miss.line}]", width, initial_indent=label, subsequent_indent=" " * 7
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Command line. Returns 0 when something was recognised, 1 when not, 2 when the input cannot be read."""
    parser = argparse.ArgumentParser("python -m helpers.explain", description="Explain a traceback or a log.")
    parser.add_argument("file", nargs="?", default="-", metavar="FILE", help="a log; - or nothing: standard input")
    parser.add_argument("--json", action="store_true", help="machine readable")
    parser.add_argument("--all", action="store_true", help=f"every error, not only the first {_SHOWN}")
    options = parser.parse_args(argv)
    try:
        explanation = _explain_path(options.file)
    except (UnreadableInputError, OSError) as error:
        print(f"explain: {error}", file=sys.stderr)
        return 2
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    try:
        print(explanation.to_json() if options.json else explanation.text(all=options.all, width=width), flush=True)
    except BrokenPipeError:
        # Whoever read this has read enough (`| head`); Python must not try to flush again when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0 if explanation.findings else 1


def _explain_path(path: str) -> Explanation:
    if path != "-":
        with Path(path).open("rb") as stream:
            return explain_file(stream)
    if sys.stdin.isatty():
        print("paste the traceback, then Ctrl-D on a line of its own", file=sys.stderr)
    with open(sys.stdin.fileno(), "rb", closefd=False) as stream:
        return explain_file(stream)


def load_ipython_extension(ipython: Any) -> None:
    """Register ``%explain`` and ``%%explain``; IPython calls this for ``%load_ext helpers.explain``."""
    ipython.register_magic_function(_magic, "line_cell", "explain")


def _magic(line: str, cell: str | None = None) -> Explanation | None:
    """Explain the last exception, the file or message on the line, or the cell's text."""
    try:
        if cell is not None:
            return explain(cell)
        if not line.strip():
            return explain(_last_exception())
        path = Path(line.strip()).expanduser()
        return _explain_path(str(path)) if path.is_file() else explain(line)
    except (UnreadableInputError, OSError) as error:
        print(f"explain: {error}")
        return None


def _last_exception() -> str:
    error = getattr(sys, "last_value", None)
    if error is None:
        raise UnreadableInputError("no exception has been raised yet; give a file or a message instead")
    return "".join(traceback.format_exception(error))


if __name__ == "__main__":
    sys.exit(main())
