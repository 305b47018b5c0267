"""Several reports side by side: which record was seen on which hardware, and how.

``python -m helpers.report merge DIR [DIR ...] --out DIR`` reads nothing of a report but its ``summary.json``, so that
file is enough to count a report of another machine. Links lead to the reports' pages where those are.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.report import evidence, output

_KINDS = {"passed": bool, "provenance": dict, "notebooks": list, "records": list, "counts": dict}
_PROVENANCE = {"device", "torch", "triton", "commit", "date"}
_RECORD = {"id", "kernel", "function", "error", "message", "verdict", "refusal", "fix", "relative_error", "link"}


class MergeError(Exception):
    """Something that is no report, or that cannot be read as one."""


@dataclass(frozen=True)
class Member:
    """One of the reports.

    Attributes:
        name: its folder as seen from the merged page, which is also where links to it lead.
        content: its ``summary.json``.
    """

    name: str
    content: dict[str, Any]

    @property
    def records(self) -> dict[str, dict[str, Any]]:
        """Its records by id."""
        return {record["id"]: record for record in self.content["records"]}


def main(arguments: Sequence[str]) -> int:
    """Run the command.

    Returns:
        0, or 2 if something that is named is no report.
    """
    parser = argparse.ArgumentParser("helpers.report merge", description="Put several reports side by side.")
    parser.add_argument(
        "reports", nargs="+", type=Path, metavar="DIR", help="folder of a report, with its summary.json"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to write index.html")
    options = parser.parse_args(arguments)
    try:
        content = merge(options.reports, options.out)
    except MergeError as error:
        print(f"report merge: {error}", file=sys.stderr)
        return 2
    print(closing_line(content, options.out))
    return 0


def merge(folders: Sequence[Path], out: Path) -> dict[str, Any]:
    """Write ``index.html`` and ``summary.json`` about several reports.

    Args:
        folders: of the reports. One that is named twice counts once; two of the same hardware are two reports.
        out: folder to write to. It may hold the reports, but be none of them.

    Returns:
        what :func:`summary` says.

    Raises:
        MergeError: when a folder holds no report, before anything is written.
    """
    distinct = list({folder.resolve(): folder for folder in folders}.values())
    if out.resolve() in {folder.resolve() for folder in distinct}:
        raise MergeError(f"{out} is one of the reports and would be overwritten; choose another --out")
    content = summary([Member(_seen_from(folder, out), read(folder)) for folder in distinct])
    out.mkdir(parents=True, exist_ok=True)
    output.write_json(content, out / "summary.json")
    (out / "index.html").write_text(output.render("merged.html.j2", content), encoding="utf-8")
    return content


def read(folder: Path) -> dict[str, Any]:
    """The ``summary.json`` in a report's folder.

    Raises:
        MergeError: when it is not there, or is not what this version of the command writes.
    """
    path = folder / "summary.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MergeError(f"{folder} holds no report: {path.name} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise MergeError(f"{path} is not JSON: {error}") from error
    complaint = _complaint(content)
    if complaint:
        raise MergeError(f"{path} {complaint}")
    return dict(content)


def summary(members: Sequence[Member]) -> dict[str, Any]:
    """The merged report for machines, as its ``summary.json`` holds it.

    Args:
        members: the reports, in the order in which they are to be shown.

    Returns:
        ``schema``: as in the summary of a report.

        ``reports``: a list, each with ``name``, ``page`` (link to it), ``passed``, ``provenance`` and ``counts``.

        ``records``: a list, each with ``id``, ``kernel``, ``function``, ``error``, ``message`` (that of the latest
        report), ``best`` ("real", "stand-in", "disagrees" or "not run", over all reports) and ``seen``: for each
        report, in order, null where it does not know the record, else ``verdict``, ``refusal``, ``fix``,
        ``relative_error``, ``link`` and ``message`` (null where it is the same).

        ``counts``: ``reports``, ``records``, ``real``, ``stand_in``, ``not_run``, ``disagree``.
    """
    latest = sorted(members, key=lambda member: str(member.content["provenance"]["date"]), reverse=True)
    known = {identity: record for member in reversed(latest) for identity, record in member.records.items()}
    records = [_row(record, members) for record in known.values()]
    kinds = Counter(record["best"] for record in records)
    return {
        "schema": output.SCHEMA,
        "reports": [_report(member) for member in members],
        "records": records,
        "counts": {
            "reports": len(members),
            "records": len(records),
            "real": kinds["real"],
            "stand_in": kinds["stand-in"],
            "not_run": kinds[evidence.NOT_RUN],
            "disagree": kinds[evidence.DISAGREES],
        },
    }


def closing_line(content: dict[str, Any], out: Path) -> str:
    """What the command says last."""
    counts = content["counts"]
    disagree = f", {counts['disagree']} DISAGREE" if counts["disagree"] else ""
    return (
        f"{counts['reports']} reports, {counts['records']} records: {counts['real']} seen for real, "
        f"{counts['stand_in']} on stand-ins only, {counts['not_run']} not at all{disagree}. Open {out / 'index.html'}"
    )


def _seen_from(folder: Path, out: Path) -> str:
    return Path(os.path.relpath(folder.resolve(), out.resolve())).as_posix()


def _complaint(content: Any) -> str:
    """What keeps a file from being the summary of a report; empty if nothing does."""
    if not isinstance(content, dict) or "schema" not in content:
        return "is not the summary of a report"
    if content["schema"] != output.SCHEMA:
        return f"has schema {content['schema']}; this version reads {output.SCHEMA}"
    if "reports" in content:
        return "is itself merged; name the reports that it was made of"
    wrong = [name for name, kind in _KINDS.items() if not isinstance(content.get(name), kind)]
    if wrong:
        return f"lacks {', '.join(wrong)}"
    missing = _PROVENANCE - set(content["provenance"])
    for record in content["records"]:
        missing |= _RECORD - set(record)
    return f"lacks {', '.join(sorted(missing))}" if missing else ""


def _report(member: Member) -> dict[str, Any]:
    content = member.content
    return {
        "name": member.name,
        "page": f"{member.name}/index.html",
        "passed": content["passed"],
        "provenance": content["provenance"],
        "counts": content["counts"],
    }


def _row(record: dict[str, Any], members: Sequence[Member]) -> dict[str, Any]:
    seen = [_cell(record, member) for member in members]
    return {
        **{name: record[name] for name in ("id", "kernel", "function", "error", "message")},
        "best": _best([cell for cell in seen if cell is not None]),
        "seen": seen,
    }


def _cell(record: dict[str, Any], member: Member) -> dict[str, Any] | None:
    here = member.records.get(record["id"])
    if here is None:
        return None
    return {
        **{name: here[name] for name in ("verdict", "refusal", "fix", "relative_error")},
        "link": f"{member.name}/{here['link']}" if here["link"] else None,
        "message": here["message"] if here["message"] != record["message"] else None,
    }


def _best(cells: Sequence[dict[str, Any]]) -> str:
    """The strongest evidence for a record; one report that disagrees spoils it."""
    if any(cell["verdict"] == evidence.DISAGREES for cell in cells):
        return evidence.DISAGREES
    refusals = {cell["refusal"] for cell in cells}
    return next((how for how in ("real", "stand-in") if how in refusals), evidence.NOT_RUN)
