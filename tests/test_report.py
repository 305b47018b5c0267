"""The report: notebooks are executed whatever becomes of the others, and what is written down is true."""

from __future__ import annotations

import html
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from datetime import datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat
import pytest
from junitparser import JUnitXml
from notebook_files import code, notebook, printed, shown, text, write

from helpers.atlas import record, records
from helpers.report import __main__ as command
from helpers.report import evidence, jobs, machine, normalise, output, pages
from helpers.report.jobs import FAILED, KERNEL_DIED, PASSED, ROOT, TIMED_OUT, Failure, Job, Result, run_notebook

REPRODUCED = "mamba_scatter.state.device/src"
REFUSED = "mamba_scatter.state.device/dst"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

LESSON = (
    text("# A lesson\n\n## What it refuses\n\n"),
    text(
        "Inline $x_{<i}$, and $$\\begin{aligned} a &= b \\\\ c &= d \\end{aligned}$$\n\n"
        "| formula | code |\n|---|---|\n| $\\frac{1}{2}$ | `$HOME` |\n\n- an item $y$\n\n```\nprice = $5 + $6\n```\n\n"
        "[next](fails.ipynb#The-end) [here](#What-it-refuses) [file](../README.md) [out](https://example.org/a.ipynb)"
    ),
    code("seed = 1", "parameters"),
    code("print('seed', seed)"),
    code(
        "from pathlib import Path\nfrom helpers.atlas import record\nfrom helpers.calls import Call\n"
        "from helpers.reproduce import refusal, reproduce\nprint(Path.cwd().name)"
    ),
    code(f"print(reproduce({REPRODUCED!r}).fixed)"),
    code(
        "from helpers.atlas import spec\n"
        f"call = Call.valid(spec(record({REFUSED!r}).function))\nrecord({REFUSED!r}).provoke(call)\n"
        f"with refusal(of={REFUSED!r}):\n    call.run()"
    ),
    code(
        "from IPython.display import display\n"
        f"display({{'image/png': {PIXEL!r}}}, metadata={{'image/png': {{'alt': 'one pixel'}}}}, raw=True)\n"
        'drawing = \'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"/>\'\n'
        "display({'image/svg+xml': drawing}, metadata={'image/svg+xml': {'alt': 'a \"drawing\"'}}, raw=True)"
    ),
)
FAILS = (
    text("# The end"),
    code("print('before')", outputs=[printed("stale\n")], count=1),
    code("1 / 0", outputs=[printed("stale\n")], count=2),
    code("print('after')", outputs=[printed("stale\n")], count=3),
)
DIES = (code("import os\nos._exit(3)"),)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three notebooks, of which one passes, and a file that they link to."""
    base = tmp_path_factory.mktemp("checkout")
    (base / "README.md").write_text("# Read me\n", encoding="utf-8")
    write(base / "notebooks", "lesson", *LESSON)
    write(base / "notebooks", "fails", *FAILS)
    write(base / "notebooks", "deep/dies", *DIES)
    return base


@pytest.fixture(scope="module")
def made(folder: Path) -> tuple[int, str, Path]:
    """Exit code, standard output and folder of a report on those notebooks, by the command itself."""
    out = folder / "out"
    arguments = ["--notebooks", str(folder / "notebooks"), "--out", str(out), "--jobs", "2"]
    arguments += ["-p", "seed", "5", "--commit", "abc123"]
    done = subprocess.run(
        [sys.executable, "-m", "helpers.report", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr, out


@pytest.fixture(scope="module")
def summary(made: tuple[int, str, Path]) -> dict[str, Any]:
    return json.loads((made[2] / "summary.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def lesson(made: tuple[int, str, Path]) -> str:
    return (made[2] / "lesson.html").read_text(encoding="utf-8")


def test_a_failing_notebook_stops_no_other_and_the_command_exits_1(
    made: tuple[int, str, Path], summary: dict[str, Any]
) -> None:
    assert made[0] == 1
    verdicts = {item["name"]: item["verdict"] for item in summary["notebooks"]}
    assert verdicts == {"lesson": PASSED, "fails": FAILED, "deep/dies": KERNEL_DIED}
    assert not summary["passed"]
    assert summary["counts"]["notebooks_passed"] == 1


def test_a_failure_is_shown_with_cell_and_traceback(made: tuple[int, str, Path], summary: dict[str, Any]) -> None:
    failure = next(item["failure"] for item in summary["notebooks"] if item["name"] == "fails")
    assert (failure["cell"], failure["source"]) == (2, "1 / 0")
    assert failure["error"] == "ZeroDivisionError: division by zero"
    assert "Traceback (most recent call last)" in failure["traceback"]
    assert "\x1b" not in failure["traceback"]
    assert "fails: failed" in made[1]
    assert "In [2]: ZeroDivisionError: division by zero" in made[1]
    index = (made[2] / "index.html").read_text(encoding="utf-8")
    assert "In [2]: ZeroDivisionError: division by zero" in index
    assert "Traceback (most recent call last)" in index


def test_the_cell_that_killed_the_kernel_is_named(summary: dict[str, Any]) -> None:
    failure = next(item["failure"] for item in summary["notebooks"] if item["name"] == "deep/dies")
    assert (failure["cell"], failure["source"]) == (1, "import os\nos._exit(3)")


def test_stored_outputs_of_an_earlier_run_are_not_shown(made: tuple[int, str, Path]) -> None:
    executed = nbformat.read(made[2] / "fails.ipynb", as_version=4)
    assert "stale" not in nbformat.writes(executed)
    cells = [cell for cell in executed.cells if cell.cell_type == "code"]
    assert cells[0].outputs[0].text == "before\n"
    assert cells[2].outputs == []
    assert "stale" not in (made[2] / "fails.html").read_text(encoding="utf-8")


def test_parameters_reach_the_notebook_that_has_them(made: tuple[int, str, Path], summary: dict[str, Any]) -> None:
    assert [item["parameters"] for item in summary["notebooks"]] == [{}, {}, {"seed": 5}]
    executed = nbformat.read(made[2] / "lesson.ipynb", as_version=4)
    assert "seed 5\n" in nbformat.writes(executed).replace("\\n", "\n")


def test_a_notebook_runs_in_its_own_folder(made: tuple[int, str, Path]) -> None:
    executed = nbformat.read(made[2] / "lesson.ipynb", as_version=4)
    assert any(item.get("text") == "notebooks\n" for cell in executed.cells for item in cell.get("outputs", ()))


def test_records_say_how_they_were_seen(summary: dict[str, Any]) -> None:
    import torch

    both_real = torch.cuda.is_available() and torch.cuda.device_count() > 1
    by_id = {item["id"]: item for item in summary["records"]}
    assert list(by_id) == list(records())
    how = "real" if both_real else "stand-in"
    fix = "real" if torch.cuda.is_available() else "interpreter"
    assert (by_id[REPRODUCED]["verdict"], by_id[REPRODUCED]["refusal"], by_id[REPRODUCED]["fix"]) == (
        "reproduced",
        how,
        fix,
    )
    assert (by_id[REFUSED]["verdict"], by_id[REFUSED]["refusal"], by_id[REFUSED]["fix"]) == ("reproduced", how, None)
    assert by_id[REFUSED]["seen_in"] == ["lesson"]
    assert summary["counts"]["not_run"] == len(by_id) - 2


def test_what_was_not_run_is_loud(made: tuple[int, str, Path]) -> None:
    missing = len(records()) - 2
    assert f"{missing} NOT RUN" in made[1]
    index = (made[2] / "index.html").read_text(encoding="utf-8")
    assert f"<b>{missing}</b> records NOT RUN" in index
    meaning = html.escape(record(REPRODUCED).meaning.replace("`", ""), quote=True)
    assert meaning in html.escape(html.unescape(index), quote=True)
    assert index.count("NOT RUN</span>") == missing


def test_provenance_is_written_down(summary: dict[str, Any], made: tuple[int, str, Path]) -> None:
    import torch

    seen = summary["provenance"]
    assert seen["torch"] == torch.__version__
    assert seen["commit"] == "abc123"
    assert datetime.fromisoformat(seen["date"]).utcoffset() == timedelta(0)
    index = (made[2] / "index.html").read_text(encoding="utf-8")
    for value in (seen["torch"], seen["triton"], seen["python"], seen["date"], "abc123"):
        assert value in index


def test_junit_has_a_case_for_every_notebook_and_record(made: tuple[int, str, Path]) -> None:
    suites = {suite.name: suite for suite in JUnitXml.fromfile(str(made[2] / "junit.xml"))}
    assert {case.name for case in suites["notebooks"]} == {"lesson", "fails", "deep/dies"}
    assert suites["notebooks"].failures == 2
    assert {case.name for case in suites["records"]} == set(records())
    assert suites["records"].skipped == len(records()) - 2
    reproduced = next(case for case in suites["records"] if case.name == REPRODUCED)
    assert "refusal: " in reproduced.system_out


class References(HTMLParser):
    """Collects what a page fetches by itself, where its links lead, its anchors and its pictures."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.alts: list[str | None] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "a" and found.get("href"):
            self.links.append(str(found["href"]))
        elif tag != "a":
            self.fetched += [str(found[name]) for name in ("src", "href", "data", "poster", "srcset") if name in found]
        if found.get("id"):
            self.anchors.add(str(found["id"]))
        if tag == "img":
            self.alts.append(found.get("alt"))


@pytest.mark.parametrize("name", ["index", "lesson", "fails", "deep/dies"])
def test_a_page_fetches_nothing(made: tuple[int, str, Path], name: str) -> None:
    page = (made[2] / f"{name}.html").read_text(encoding="utf-8")
    assert all(target.startswith("data:") for target in References(page).fetched)
    assert not re.search(r"@import|url\(\s*['\"]?(?!['\"]?data:)[a-z]*:?//", page)
    scripts = "".join(re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL))
    assert not re.search(r"https?:|import\(|fetch\(|XMLHttpRequest", scripts)
    assert "MathJax" not in page


def test_formulas_are_mathml_and_code_is_left_alone(lesson: str) -> None:
    assert lesson.count("<math ") == 4
    assert lesson.count('display="block"') == 1
    assert "<mtable" in lesson
    assert "<code>$HOME</code>" in lesson
    assert "price = $5 + $6" in lesson
    assert "$x_" not in lesson


def test_links_lead_somewhere_from_the_page(lesson: str, made: tuple[int, str, Path]) -> None:
    links = References(lesson).links
    assert "fails.html#The-end" in links
    assert "#What-it-refuses" in links
    assert "https://example.org/a.ipynb" in links
    assert "index.html" in links
    there = next(link for link in links if link.endswith("README.md"))
    assert (made[2] / there).resolve().exists()
    deep = References((made[2] / "deep" / "dies.html").read_text(encoding="utf-8"))
    assert "../index.html" in deep.links


def test_headings_have_anchors_in_both_cases(lesson: str) -> None:
    assert {"What-it-refuses", "what-it-refuses"} <= References(lesson).anchors


def test_pictures_keep_their_description(lesson: str) -> None:
    assert References(lesson).alts == ["one pixel", 'a "drawing"']


def test_links_of_the_index_exist(made: tuple[int, str, Path]) -> None:
    links = References((made[2] / "index.html").read_text(encoding="utf-8")).links
    assert {"lesson.html", "fails.html", "deep/dies.html", "summary.json", "junit.xml"} <= set(links)
    assert all((made[2] / link.partition("#")[0]).exists() for link in links)


def test_executed_notebooks_hold_no_trace_of_papermill(made: tuple[int, str, Path]) -> None:
    for path in made[2].rglob("*.ipynb"):
        assert '"papermill"' not in path.read_text(encoding="utf-8")


def test_a_cell_that_does_not_end_is_a_result(tmp_path: Path) -> None:
    stuck = code("import time\nprint('here', flush=True)\ntime.sleep(600)")
    path = write(tmp_path, "stuck", code("x = 1"), stuck)
    result = run_notebook(Job("stuck", str(path), timeout=6))
    assert (result.verdict, result.seconds < 60) == (TIMED_OUT, True)
    assert result.failure is not None
    assert (result.failure.cell, result.failure.source) == (2, stuck.source)
    assert "here" in result.notebook


def test_a_process_that_is_killed_is_a_result(tmp_path: Path) -> None:
    killer = code("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)", outputs=[printed("stale")], count=1)
    path = write(tmp_path, "killer", killer)
    result = run_notebook(Job("killer", str(path), timeout=60))
    assert result.verdict == FAILED
    assert result.failure is not None
    assert "code -9" in result.failure.error
    assert "stale" not in result.notebook


def test_a_ledger_is_kept_however_the_notebook_ends(tmp_path: Path) -> None:
    cells = [code(f"from helpers.reproduce import reproduce\nreproduce({REPRODUCED!r})"), code("1 / 0")]
    result = run_notebook(Job("half", str(write(tmp_path, "half", *cells))))
    assert result.verdict == FAILED
    assert [entry["record"] for entry in result.ledger] == [REPRODUCED]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["-p", "seed", "abc"], "the parameter seed is a number such as 1, and 'abc' is none"),
        (["-p", "sead", "5"], "no notebook has the parameter sead. There are, by notebook: lesson: seed"),
        (["-p", "seed", "5", "-p", "x", "1"], "no notebook has the parameter x."),
        (["nothing"], "there is no notebook nothing. There are: lesson"),
        (["--record", "-p", "seed", "5"], "does not go with parameters"),
    ],
)
def test_a_wrong_command_line_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    write(tmp_path / "notebooks", "lesson", *LESSON)
    out = tmp_path / "out"
    assert command.main([*arguments, "--notebooks", str(tmp_path / "notebooks"), "--out", str(out)]) == 2
    assert complaint in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("arguments", [["--jobs", "0"], ["--timeout", "-1"], ["--timeout", "soon"]])
def test_numbers_must_make_sense(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(arguments)


def test_no_notebooks_at_all_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--notebooks", str(tmp_path)]) == 2
    assert "there are no notebooks" in capsys.readouterr().err


def test_notebooks_run_in_the_order_they_are_named_and_once(tmp_path: Path) -> None:
    for name in ("a", "b", "c", ".ipynb_checkpoints/a"):
        write(tmp_path, name, *DIES)
    assert list(command.select(tmp_path, [])) == ["a", "b", "c"]
    assert list(command.select(tmp_path, ["c.ipynb", "a", "c"])) == ["c", "a"]


def test_recording_stores_outputs_and_nothing_of_the_run(tmp_path: Path) -> None:
    good = write(
        tmp_path, "good", text("# Good"), code("print('new')", outputs=[printed("old")], count=7), code("2 + 2")
    )
    bad = write(tmp_path, "bad", code("1 / 0"))
    before = bad.read_bytes()
    arguments = ["--notebooks", str(tmp_path), "--out", str(tmp_path / "out"), "--record"]
    assert command.main(arguments) == 1
    first = good.read_bytes()
    assert bad.read_bytes() == before
    assert command.main([*arguments, "good"]) == 0
    assert good.read_bytes() == first
    stored = nbformat.read(good, as_version=4)
    assert [cell.get("execution_count") for cell in stored.cells] == [None, 1, 2]
    assert stored.cells[1].outputs[0].text == "new\n"
    assert stored == normalise.normalise(stored)


def test_a_path_of_this_machine_is_not_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "leaks", code("from pathlib import Path\nprint(Path.cwd() / 'x')"))
    before = path.read_bytes()
    result = Result("leaks", PASSED, 1.0, nbformat.writes(notebook(code("", outputs=[printed("/tmp/a/x\n")]))))
    assert not command.record([Job("leaks", str(path))], [result])
    assert path.read_bytes() == before
    assert "cell 1: /tmp/a/x" in capsys.readouterr().out


def test_machine_traces_are_found_wherever_they_are() -> None:
    cells = [
        text("see /home/me/notes"),
        code("open('/mnt/x')", outputs=[printed("a\n/var/b:3\n"), shown({"text/html": "<p>/Users/me</p>"})]),
        code("1", outputs=[nbformat.v4.new_output("error", ename="E", evalue="", traceback=["File /tmp/a.py:1"])]),
    ]
    found = normalise.machine_traces(notebook(*cells))
    assert [item.partition(":")[0] for item in found] == ["cell 1", "cell 2", "cell 2", "cell 2", "cell 3"]


@pytest.mark.parametrize("words", ["https://example.org/home/x", "../tmp/x", "a/work/b", "~/tmp/x", "tokens/home-made"])
def test_ordinary_text_is_no_machine_trace(words: str) -> None:
    assert normalise.machine_traces(notebook(text(words))) == []


def test_normalising_keeps_what_matters() -> None:
    given = notebook(code("x", "parameters", "nbval-ignore-output", count=3, outputs=[shown({"text/plain": "x"})]))
    given.metadata["widgets"] = {"state": 1}
    given.cells[0].metadata.update(papermill={"duration": 1.0}, execution={"iopub.status.busy": "now"})
    got = normalise.normalise(given)
    assert set(got.metadata) == {"kernelspec", "language_info"}
    assert got.cells[0].metadata == {"tags": ["parameters", "nbval-ignore-output"]}
    assert (got.cells[0].execution_count, got.cells[0].outputs) == (3, given.cells[0].outputs)
    assert "papermill" in given.cells[0].metadata


def test_a_widget_is_stored_as_what_stands_in_for_it() -> None:
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "gone"}, "text/plain": "a table"}
    given = notebook(code("playground()", count=1, outputs=[shown(view)]))
    assert normalise.normalise(given).cells[0].outputs[0].data == {"text/plain": "a table"}


@pytest.mark.parametrize("latex", [r"\notacommand x", r"\frac", "x^", "}", r"a & b"])
def test_what_cannot_be_converted_is_an_error_and_is_shown_as_source(latex: str) -> None:
    with pytest.raises(pages.FormulaError):
        pages.mathml(latex)
    assert "<code" in pages.PageRenderer(name="a", pages=(), folder=Path(), target=Path()).inline_math(latex)


@pytest.mark.parametrize(
    "latex",
    [r"\%\,\$\,\&", r"\{a\}", r"\text{dst}[:, d_i] = \text{src}[:, i, s_i]", r"\begin{cases}1 & x \\ 0 & y\end{cases}"],
)
def test_ordinary_formulas_are_converted(latex: str) -> None:
    assert pages.mathml(latex).startswith("<math")


def _entry(how: str, *, fixed_how: str | None = None, raised: str | None = None, error: float = 0.0) -> dict[str, Any]:
    said = raised or f"{record(REPRODUCED).error}: {record(REPRODUCED).example}"
    entry: dict[str, Any] = {"record": REPRODUCED, "raised": said, "how": how}
    return entry | ({"fixed": True, "fixed_how": fixed_how, "error": error} if fixed_how else {})


def _seen(*ledgers: list[dict[str, Any]]) -> evidence.Verdict:
    results = [Result(f"n{i}", PASSED, 1.0, "", tuple(ledger)) for i, ledger in enumerate(ledgers)]
    return evidence.verdicts(results, {REPRODUCED: record(REPRODUCED)})[0]


def test_the_strongest_evidence_counts_where_all_agree() -> None:
    seen = _seen(
        [_entry("stand-in", fixed_how="interpreter", error=1e-3)], [_entry("real", fixed_how="real", error=1e-7)]
    )
    assert (seen.verdict, seen.refusal, seen.fix, seen.relative_error) == ("reproduced", "real", "real", 1e-3)
    assert seen.seen_in == ("n0", "n1")


def test_the_same_refusal_with_other_devices_agrees() -> None:
    other = f"{record(REPRODUCED).error}: {record(REPRODUCED).example}".replace("index=1", "index=3")
    assert _seen([_entry("real")], [_entry("stand-in", raised=other)]).refusal == "real"


@pytest.mark.parametrize("raised", ["ValueError: dst and src", "RankError: {}", "{}: and more"])
def test_one_that_saw_something_else_spoils_the_record(raised: str) -> None:
    said = raised.format(record(REPRODUCED).example)
    seen = _seen([_entry("real", fixed_how="real")], [_entry("real", raised=said)])
    assert (seen.verdict, seen.refusal, seen.fix) == ("disagrees", None, None)
    assert said in seen.complaint


def test_a_refusal_alone_verifies_no_fix() -> None:
    seen = _seen([_entry("real")])
    assert (seen.verdict, seen.refusal, seen.fix, seen.relative_error) == ("reproduced", "real", None, None)


def test_a_record_that_nobody_ran_is_not_run() -> None:
    seen = _seen([{"record": None, "raised": "x", "how": "real"}])
    assert (seen.verdict, seen.refusal, seen.seen_in) == ("not run", None, ())


def _report(*verdicts: evidence.Verdict, **changes: Any) -> output.Report:
    result = replace(Result("n", PASSED, 1.0, nbformat.writes(notebook(text("# N")))), **changes)
    return output.Report(machine.provenance(), [Job("n", "n.ipynb")], [result], verdicts)


def test_a_disagreeing_record_fails_the_report(tmp_path: Path) -> None:
    report = _report(_seen([_entry("real", raised="RankError: other <words>")]))
    assert not report.passed
    assert "1 DISAGREE" in command.closing_line(report, tmp_path)
    page = output.index(output.summary(report))
    assert "DISAGREES" in page
    assert "other &lt;words&gt;" in page
    suite = next(suite for suite in output.junit(report) if suite.name == "records")
    assert suite.failures == 1


def test_records_that_were_not_run_do_not_fail_the_report() -> None:
    assert _report(_seen([])).passed
    assert not _report(_seen([]), verdict=TIMED_OUT, failure=Failure("late")).passed


def test_a_report_links_records_to_the_notebooks_it_holds() -> None:
    verdict = _seen([_entry("real")])
    assert output.summary(_report(verdict))["records"][0]["link"] is None
    with_page = _report(verdict, name=verdict.notebook)
    link = f"{verdict.notebook}.html#{verdict.section}"
    assert output.summary(with_page)["records"][0]["link"] == link
    assert f'href="{link}"' in output.index(output.summary(with_page))


class Backwards(Executor):
    """Runs what it is given at once, and holds the result back until the next one is there."""

    def __init__(self) -> None:
        self.held: list[tuple[Future[Any], Any]] = []

    def submit(self, task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.held.append((future, task(*args, **kwargs)))
        if len(self.held) == 2:
            for waiting, value in reversed(self.held):
                waiting.set_result(value)
        return future


def test_any_executor_will_do_and_the_order_is_that_of_the_jobs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "run_notebook", lambda job: Result(job.name, PASSED, 1.0, ""))
    results = command.run_all([Job("a", ""), Job("b", "")], Backwards())
    assert [result.name for result in results] == ["a", "b"]
    assert "b: passed after 1.0 s" in capsys.readouterr().out


def test_jobs_and_results_travel_as_plain_data() -> None:
    import pickle

    result = Result("a", FAILED, 1.0, "{}", ({"record": "x"},), Failure("e", 1, "s", "t"))
    assert pickle.loads(pickle.dumps(result)) == result
    job = Job("a", "a.ipynb", {"seed": 1}, 3.0)
    assert pickle.loads(pickle.dumps(job)) == job


def test_one_notebook_at_a_time_beside_a_gpu() -> None:
    origin = machine.provenance()
    assert command.default_jobs(replace(origin, gpus=("H200",))) == 1
    assert command.default_jobs(replace(origin, gpus=())) == min(4, machine.cores())


def test_provenance_without_a_repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    assert (machine.provenance().commit, machine.provenance().dirty) == (None, False)
    assert machine.provenance("1234").commit == "1234"


def test_provenance_knows_the_commit_and_whether_files_differ(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        return subprocess.run(
            ["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q")
    (tmp_path / "a").write_text("1", encoding="utf-8")
    git("add", "a")
    git("commit", "-q", "-m", "a")
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    assert (machine.provenance().commit, machine.provenance().dirty) == (git("rev-parse", "HEAD"), False)
    (tmp_path / "a").write_text("2", encoding="utf-8")
    assert machine.provenance().dirty


def test_an_interrupted_report_keeps_what_was_done(tmp_path: Path) -> None:
    lesson = write(tmp_path / "notebooks", "a_lesson", *LESSON)
    write(tmp_path / "notebooks", "b_sleeps", code("import time\ntime.sleep(600)"))
    write(tmp_path / "notebooks", "c_waits", code("1"))
    out = tmp_path / "out"
    options = ["--notebooks", str(tmp_path / "notebooks"), "--out", str(out), "--jobs", "1", "--record"]
    started = [sys.executable, "-u", "-m", "helpers.report", *options]
    with subprocess.Popen(started, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "a_lesson: passed" in line:
                break
        os.kill(process.pid, signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 1, said
    assert "interrupted: b_sleeps, c_waits not done" in said
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    verdicts = {entry["name"]: entry["verdict"] for entry in summary["notebooks"]}
    assert verdicts == {"a_lesson": PASSED, "b_sleeps": FAILED, "c_waits": FAILED}
    assert (out / "index.html").exists()
    assert any(cell.get("outputs") for cell in nbformat.read(lesson, as_version=4).cells)


def test_a_report_does_not_touch_the_progress_of_a_learner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DEVICE_GUARDS_STATE", "/somewhere/else.json")
    assert jobs._environment(tmp_path)["DEVICE_GUARDS_STATE"] == str(tmp_path / "progress.json")
