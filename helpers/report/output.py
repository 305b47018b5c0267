"""The report's files: executed notebooks, their pages, ``index.html``, ``summary.json``, ``junit.xml``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jinja2
import nbformat
from junitparser import Failure as JUnitFailure
from junitparser import JUnitXml, Skipped, TestCase, TestSuite

from helpers.report import evidence, normalise, pages
from helpers.report.evidence import Verdict
from helpers.report.jobs import PASSED, Job, Result
from helpers.report.machine import Provenance

SCHEMA = 1


@dataclass(frozen=True)
class Report:
    """Everything that a report says.

    Attributes:
        provenance: where it was made.
        jobs: what was asked for.
        results: what came of it, in the same order.
        records: a verdict for each.
    """

    provenance: Provenance
    jobs: Sequence[Job]
    results: Sequence[Result]
    records: Sequence[Verdict]

    @property
    def passed(self) -> bool:
        """Whether every notebook passed and no record was seen to be otherwise. Records not run do not fail it."""
        notebooks = all(result.verdict == PASSED for result in self.results)
        return notebooks and not any(item.verdict == evidence.DISAGREES for item in self.records)


def summary(report: Report) -> dict[str, Any]:
    """The report for machines, as ``summary.json`` holds it.

    Returns:
        ``schema``: 1; a higher number means that something here changed its meaning.

        ``passed``: whether every notebook passed and no record disagrees.

        ``provenance``: the attributes of :class:`helpers.report.machine.Provenance`.

        ``notebooks``: a list in the order of the report, each with ``name``, ``verdict`` ("passed", "failed", "timed
        out", "kernel died"), ``seconds``, ``attempts`` (more than 1 where a worker of a cluster was lost), ``page``
        (its HTML file), ``parameters`` (those that were set) and ``failure`` (null, or ``error``, ``cell``, ``source``,
        ``traceback``).

        ``records``: a list in the order of the atlas, each with the attributes of
        :class:`helpers.report.evidence.Verdict` and ``link`` (where its notebook's page explains it, or null).

        ``counts``: ``notebooks``, ``notebooks_passed``, ``records``, ``refused_real``, ``refused_stand_in``,
        ``fixed_real``, ``fixed_interpreter``, ``not_run``, ``disagree``.
    """
    names = {result.name for result in report.results}
    return {
        "schema": SCHEMA,
        "passed": report.passed,
        "provenance": asdict(report.provenance),
        "notebooks": [_notebook(job, result) for job, result in zip(report.jobs, report.results, strict=True)],
        "records": [asdict(item) | {"link": _link(item, names)} for item in report.records],
        "counts": {
            "notebooks": len(report.results),
            "notebooks_passed": Counter(result.verdict for result in report.results)[PASSED],
            **evidence.counts(report.records),
        },
    }


def write(report: Report, out: Path) -> None:
    """Write the report's files into a folder, over those of an earlier report."""
    out.mkdir(parents=True, exist_ok=True)
    content = summary(report)
    write_json(content, out / "summary.json")
    (out / "index.html").write_text(index(content), encoding="utf-8")
    junit(report).write(str(out / "junit.xml"), pretty=True)
    # Last, because it is the only part that depends on what is in the notebooks.
    write_pages(report, out)


def write_pages(report: Report, out: Path) -> None:
    """Write every executed notebook and its HTML page."""
    names = [result.name for result in report.results]
    for job, result in zip(report.jobs, report.results, strict=True):
        target = out.resolve() / f"{result.name}.html"
        folder = job.path.resolve().parent
        notebook = normalise.normalise(nbformat.reads(result.notebook, as_version=4))
        normalise.write(notebook, target.with_suffix(".ipynb"))
        html = pages.page(notebook, name=result.name, pages=names, folder=folder, target=target.parent)
        target.write_text(html, encoding="utf-8")


def write_json(content: dict[str, Any], path: Path) -> None:
    """Store a summary in a form that differs only where it changed."""
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def index(content: dict[str, Any]) -> str:
    """The first page.

    Args:
        content: what :func:`summary` returns.
    """
    return render("index.html.j2", content)


def render(template: str, content: dict[str, Any]) -> str:
    """A page made from a template. A template that asks for something which is not there is an error.

    Args:
        template: file name in the folder of templates.
        content: what the page is about.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(pages.TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(template).render(content)


def junit(report: Report) -> JUnitXml:
    """The report for CI systems: a test case for each notebook and one for each record."""
    xml = JUnitXml("device-guards report")
    notebooks, records = TestSuite("notebooks"), TestSuite("records")
    for result in report.results:
        notebooks.add_testcase(_notebook_case(result))
    for item in report.records:
        records.add_testcase(_record_case(item))
    xml.add_testsuite(notebooks)
    xml.add_testsuite(records)
    return xml


def _notebook(job: Job, result: Result) -> dict[str, Any]:
    return {
        "name": result.name,
        "verdict": result.verdict,
        "seconds": result.seconds,
        "attempts": result.attempts,
        "page": f"{result.name}.html",
        "parameters": job.parameters,
        "failure": asdict(result.failure) if result.failure else None,
    }


def _link(item: Verdict, names: set[str]) -> str | None:
    return f"{item.notebook}.html#{item.section}" if item.notebook in names else None


def _notebook_case(result: Result) -> TestCase:
    case = TestCase(result.name, classname="notebooks", time=result.seconds)
    if result.failure is not None:
        failure = JUnitFailure(result.failure.error, result.verdict)
        failure.text = "\n\n".join(filter(None, (result.failure.source, result.failure.traceback)))
        case.result = [failure]
    return case


def _record_case(item: Verdict) -> TestCase:
    case = TestCase(item.id, classname=f"records.{item.kernel}")
    if item.verdict == evidence.NOT_RUN:
        case.result = [Skipped("no notebook of this report provoked it")]
    elif item.verdict == evidence.DISAGREES:
        case.result = [JUnitFailure(item.complaint, item.verdict)]
    else:
        case.system_out = f"refusal: {item.refusal}; fix: {item.fix or 'not verified'}"
    return case
