"""The process that drives one notebook's kernel: ``python -m helpers.report.execute FOLDER PARENT``.

It reads ``job.json`` in the folder and writes ``executed.ipynb`` and ``outcome.json`` there. It ends when its parent, a
process id, is gone.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import papermill
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from papermill.exceptions import PapermillExecutionError

from helpers.report.jobs import FAILED, KERNEL_DIED, PASSED, TIMED_OUT, Failure, Job


class Watch:
    """Tells nbclient how long a cell may take, so that the notebook as a whole ends in time; remembers the cell."""

    def __init__(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds
        self.cell: Any = None
        self.number = 0

    def __call__(self, cell: Any) -> int:
        """Seconds that are left, at least one: nbclient takes zero for no limit."""
        if cell is not self.cell:
            self.cell, self.number = cell, self.number + 1
        return max(1, round(self.deadline - time.monotonic()))

    def failure(self, error: str) -> Failure:
        """That the cell which ran last is to blame."""
        source = self.cell.source if self.cell is not None else ""
        return Failure(error, cell=self.number or None, source=source)


def execute(job: Job, target: Path) -> tuple[str, Failure | None]:
    """Run a job's notebook and store it at the target, as far as it came.

    Returns:
        the verdict, and the failure if there is one.
    """
    watch = Watch(job.timeout)
    try:
        papermill.execute_notebook(
            job.path,
            target,
            parameters=job.parameters,
            kernel_name="python3",
            cwd=job.path.parent,
            progress_bar=False,
            timeout_func=watch,
            coalesce_streams=True,
            record_timing=False,
        )
    except PapermillExecutionError as error:
        return FAILED, _cell_failure(error)
    except CellTimeoutError:
        return TIMED_OUT, watch.failure(f"not done after {job.timeout:g} s, the limit for a notebook")
    except DeadKernelError:
        return KERNEL_DIED, watch.failure("the kernel died")
    return PASSED, None


def _cell_failure(error: PapermillExecutionError) -> Failure:
    from nbconvert.filters.ansi import strip_ansi

    traceback = strip_ansi("\n".join(error.traceback))
    return Failure(f"{error.ename}: {strip_ansi(error.evalue)}", error.exec_count, error.source, traceback)


def end_with(parent: int) -> None:
    """End this process once its parent is gone. The kernel looks after itself in the same way."""
    while os.getppid() == parent:
        time.sleep(1)
    # Nobody waits for the result, and whoever does the job again wants the device for itself.
    os._exit(1)


def main(folder: Path, parent: int) -> None:
    """Do the job that the folder holds."""
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()
    job = Job(**json.loads((folder / "job.json").read_text(encoding="utf-8")))
    verdict, failure = execute(job, folder / "executed.ipynb")
    outcome = {"verdict": verdict, "failure": asdict(failure) if failure else None}
    (folder / "outcome.json").write_text(json.dumps(outcome), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
