"""One notebook, one job, one process: what goes in and what comes out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).resolve().parents[2]

PASSED = "passed"
FAILED = "failed"
TIMED_OUT = "timed out"
KERNEL_DIED = "kernel died"

# Starting a kernel and taking a stuck one down may take a minute each; only then is the process itself at fault.
_GRACE_SECONDS = 120

_under_way: set[subprocess.Popen[str]] = set()
_ending = threading.Event()


@dataclass(frozen=True)
class Job:
    """A notebook to execute.

    Attributes:
        name: path of the notebook below its folder of notebooks, without the suffix.
        source: path of the notebook, from the top of the checkout where it lies within it. So a job means the same to
            another machine that has the checkout elsewhere.
        parameters: what to set, by name; each is a variable of the cell that is tagged ``parameters``.
        timeout: seconds for the whole notebook.
    """

    name: str
    source: str
    parameters: dict[str, Any] = field(default_factory=dict)
    timeout: float = 600.0

    @property
    def path(self) -> Path:
        """Where the notebook is on this machine."""
        return ROOT / self.source


@dataclass(frozen=True)
class Failure:
    """Where and why a notebook stopped.

    Attributes:
        error: one line: class and message, or what became of the process.
        cell: number of the code cell, as in ``In [n]``; None when no cell is to blame.
        source: the cell.
        traceback: as text without colours.
    """

    error: str
    cell: int | None = None
    source: str = ""
    traceback: str = ""


@dataclass(frozen=True)
class Result:
    """What became of a job. It holds no paths, so it means the same on another machine.

    Attributes:
        name: the job's.
        verdict: "passed", "failed", "timed out" or "kernel died".
        seconds: from start to end, the kernel's start included.
        notebook: the executed notebook, in Jupyter's format. Cells that were not reached have no outputs.
        ledger: what the notebook's reproductions left word of, in order; see ``helpers.reproduce``.
        failure: None where the notebook passed.
        attempts: how often it was begun. More than once where a worker of a cluster was lost on the way.
    """

    name: str
    verdict: str
    seconds: float
    notebook: str
    ledger: tuple[dict[str, Any], ...] = ()
    failure: Failure | None = None
    attempts: int = 1


def never_returned(job: Job, error: BaseException) -> Result:
    """The result of a job whose executor gave up on it, so that the others still count."""
    reason = Failure(f"nothing came back: {type(error).__name__}: {error}")
    return Result(job.name, FAILED, 0.0, _without_outputs(job), failure=reason)


def run_notebook(job: Job) -> Result:
    """Execute a notebook by papermill, in a process of its own.

    It never raises for what the notebook does: an error in a cell, a kernel that dies and a cell that does not end are
    results.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="device-guards-") as name:
        folder = Path(name)
        (folder / "job.json").write_text(json.dumps(asdict(job)), encoding="utf-8")
        verdict, failure = _execute(job, folder)
        return Result(
            name=job.name,
            verdict=verdict,
            seconds=round(time.monotonic() - started, 2),
            notebook=_executed(job, folder / "executed.ipynb"),
            ledger=_entries(folder / "ledger.jsonl"),
            failure=failure,
        )


def begin() -> None:
    """Let notebooks start, also after earlier ones were ended."""
    _ending.clear()


def end_all() -> None:
    """End the notebooks that are under way in this process, and any that is about to start. Their kernels end too."""
    _ending.set()
    for process in list(_under_way):
        process.kill()


def _execute(job: Job, folder: Path) -> tuple[str, Failure | None]:
    command = [sys.executable, "-m", "helpers.report.execute", str(folder), str(os.getpid())]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=_environment(folder), stdout=pipe, stderr=pipe, text=True) as process:
        _under_way.add(process)
        if _ending.is_set():
            # It started while the others were ended.
            process.kill()
        try:
            _, errors = process.communicate(timeout=job.timeout + _GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return TIMED_OUT, Failure(f"nothing came back within {job.timeout:g} s; the process was ended")
        finally:
            _under_way.discard(process)
    outcome = folder / "outcome.json"
    if not outcome.exists():
        return FAILED, Failure(f"the process that ran it ended with code {process.returncode}", traceback=errors)
    seen = json.loads(outcome.read_text(encoding="utf-8"))
    return seen["verdict"], Failure(**seen["failure"]) if seen["failure"] else None


def _environment(folder: Path) -> dict[str, str]:
    """The variables of the process and of its kernel: where to leave word, and where this package is."""
    # Imported here because it loads torch, which the process that drives the kernel has no need of.
    from helpers.exercises.progress import STATE_VARIABLE
    from helpers.reproduce import LEDGER_VARIABLE

    # A checkout that was not installed works too, though the kernel runs in the notebook's folder.
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {
        **os.environ,
        LEDGER_VARIABLE: str(folder / "ledger.jsonl"),
        # A report shows the notebooks as they are, and not how far somebody has come with the exercises.
        STATE_VARIABLE: str(folder / "progress.json"),
        "PYTHONPATH": path,
    }


def _executed(job: Job, path: Path) -> str:
    if path.exists():
        return path.read_text(encoding="utf-8")
    return _without_outputs(job)


def _without_outputs(job: Job) -> str:
    notebook = nbformat.read(job.path, as_version=4)
    for cell in notebook.cells:
        # What was stored belongs to an earlier run.
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return str(nbformat.writes(notebook))


def _entries(path: Path) -> tuple[dict[str, Any], ...]:
    if not path.exists():
        return ()
    return tuple(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
