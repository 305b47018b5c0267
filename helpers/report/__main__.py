"""The command: ``python -m helpers.report [NOTEBOOK ...]``, ``... merge DIR [DIR ...]``, ``... slides``."""

from __future__ import annotations

import argparse
import ast
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from papermill import inspect_notebook
from tqdm import tqdm

from helpers.report import cluster, evidence, merge, normalise, output, slides
from helpers.report.jobs import PASSED, ROOT, Job, Result, begin, end_all, never_returned, run_notebook
from helpers.report.machine import Provenance, cores, provenance
from helpers.report.sources import UsageError, select

_OTHERS = {"merge": merge.main, "slides": slides.main}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        0 if everything passed, 1 if a notebook or a record did not, 2 if the command line is wrong.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in _OTHERS:
        return _OTHERS[given[0]](given[1:])
    options = _parser().parse_args(given)
    if threading.current_thread() is threading.main_thread():
        # Whoever ends the command, a time limit say, gets a report on what was done until then.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        jobs = jobs_for(options)
        with crew(options, jobs) as at_work:
            results = at_work.counted(run_all(jobs, at_work.executor))
    except (UsageError, cluster.ClusterError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    recorded = not options.record or record(jobs, results)
    report = output.Report(at_work.origin, jobs, results, evidence.verdicts(results))
    output.write(report, options.out)
    print(closing_line(report, options.out))
    return 0 if report.passed and recorded else 1


@contextmanager
def crew(options: argparse.Namespace, jobs: Sequence[Job]) -> Iterator[cluster.Crew]:
    """Who runs the jobs: this machine, or the workers of a cluster."""
    if options.cluster:
        with cluster.crew(options.cluster, jobs, options.commit) as workers:
            yield workers
    else:
        origin = provenance(options.commit)
        at_once = options.jobs or default_jobs(origin)
        # Notebooks side by side share the cores. With a thread for each core in each, they take 1.2 times as long.
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // at_once)))
        with ThreadPoolExecutor(at_once) as executor:
            yield cluster.Crew(origin, executor)


def jobs_for(options: argparse.Namespace) -> list[Job]:
    """The jobs that a command line asks for.

    Raises:
        UsageError: for notebooks or parameters that do not exist, before anything runs.
    """
    sources = select(options.notebooks, options.names)
    if options.record and options.parameter:
        raise UsageError("--record stores a notebook as it is; it does not go with parameters")
    if options.cluster and options.jobs:
        raise UsageError("--jobs is for this machine; a cluster runs as many notebooks at once as it has workers")
    given = {name: _value(text) for name, text in options.parameter}
    known = {name: parameters(path) if given else {} for name, path in sources.items()}
    unknown = sorted(set(given) - set().union(*known.values()))
    if unknown:
        listed = "; ".join(f"{name}: {', '.join(sorted(known[name])) or 'none'}" for name in sources)
        raise UsageError(f"no notebook has the parameter {', '.join(unknown)}. There are, by notebook: {listed}")
    for key, value in given.items():
        for default in (defaults[key] for defaults in known.values() if key in defaults):
            if isinstance(default, int | float) and not isinstance(value, int | float):
                raise UsageError(f"the parameter {key} is a number such as {default}, and {value!r} is none")
    return [
        Job(name, _source(path), {key: given[key] for key in sorted(set(known[name]) & set(given))}, options.timeout)
        for name, path in sources.items()
    ]


def parameters(notebook: Path) -> dict[str, Any]:
    """What the notebook's cell with the tag ``parameters`` sets, and to what."""
    try:
        return {name: _value(found["default"]) for name, found in inspect_notebook(notebook).items()}
    except ValueError as error:
        raise UsageError(f"cannot read the parameters of {notebook}: {error}") from error


def run_all(jobs: Sequence[Job], executor: Executor) -> list[Result]:
    """Run the jobs and say how each went.

    Args:
        jobs: what to run.
        executor: where; anything that speaks the interface of ``concurrent.futures``.

    Returns:
        the results in the order of the jobs. After an interruption, those that are not done count as failed.
    """
    begin()
    futures = {executor.submit(run_notebook, job): job for job in jobs}
    done: dict[str, Result] = {}
    try:
        for future in tqdm(as_completed(futures), total=len(jobs), unit="notebook", disable=None):
            error = future.exception()
            result = future.result() if error is None else never_returned(futures[future], error)
            done[result.name] = result
            tqdm.write("\n".join(_lines(result)))
    except KeyboardInterrupt as interruption:
        for future in futures:
            future.cancel()
        end_all()
        missing = [never_returned(job, interruption) for job in jobs if job.name not in done]
        done |= {result.name: result for result in missing}
        tqdm.write(f"interrupted: {', '.join(result.name for result in missing)} not done; the rest is written down")
    return [done[job.name] for job in jobs]


def default_jobs(origin: Provenance) -> int:
    """How many notebooks run at once: one beside a GPU, so that no timing is disturbed, else up to four."""
    return 1 if origin.gpus else min(4, cores())


def record(jobs: Sequence[Job], results: Sequence[Result]) -> bool:
    """Store the outputs of passed notebooks in the notebooks themselves.

    Returns:
        whether all were stored. One that shows a path of this machine is not.
    """
    stored = True
    for job, result in zip(jobs, results, strict=True):
        if result.verdict != PASSED:
            continue
        notebook = nbformat.reads(result.notebook, as_version=4)
        traces = normalise.machine_traces(notebook)
        if traces:
            stored = False
            print(f"{result.name} is not recorded, it shows paths of this machine: {'; '.join(traces)}")
        else:
            normalise.write(notebook, job.path)
    return stored


def closing_line(report: output.Report, out: Path) -> str:
    """What the command says last."""
    counts = output.summary(report)["counts"]
    loud = "".join(
        f", {counts[key]} {word}" for key, word in (("not_run", "NOT RUN"), ("disagree", "DISAGREE")) if counts[key]
    )
    return (
        f"{counts['notebooks_passed']} of {counts['notebooks']} notebooks passed; records: {counts['refused_real']} "
        f"refused for real, {counts['refused_stand_in']} on stand-ins{loud}. Open {out / 'index.html'}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "helpers.report",
        description="Execute the notebooks and write a report.",
        epilog="There are also: helpers.report merge, which puts several reports side by side, and "
        "helpers.report slides, which makes slides of the notebooks. Each has --help.",
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="NOTEBOOK", help="notebooks to run, such as mamba_scatter; all if left out")
    add("--notebooks", type=Path, default=ROOT / "notebooks", metavar="DIR", help="where the notebooks are")
    add("--out", type=Path, default=Path("report"), metavar="DIR", help="where to write the report (report/)")
    add("--jobs", type=_positive(int), metavar="N", help="notebooks at a time (1 beside a GPU, else up to 4)")
    add("--cluster", metavar="ADDRESS", help="hand the notebooks to a Dask cluster: address of its scheduler")
    add("--timeout", type=_positive(float), default=600.0, metavar="SECONDS", help="limit for one notebook (600)")
    add("-p", "--parameter", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), help="set a parameter")
    add("--record", action="store_true", help="store the outputs in the notebooks themselves")
    add("--commit", metavar="REVISION", help="the revision, for a copy of the files without their repository")
    return parser


def _positive(kind: type[int] | type[float]) -> Any:
    def read(text: str) -> int | float:
        value = kind(text)
        if value <= 0:
            raise argparse.ArgumentTypeError(f"must be positive, got {text}")
        return value

    # argparse names the function where a text is no number.
    read.__name__ = kind.__name__
    return read


def _source(path: Path) -> str:
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)


def _value(text: str) -> Any:
    """A parameter's value: a Python literal if it reads as one, else the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _lines(result: Result) -> Iterator[str]:
    """How a notebook went: a line, and what is known about a failure."""
    yield f"{result.name}: {result.verdict} after {result.seconds:.1f} s"
    if result.failure is not None:
        where = f"In [{result.failure.cell}]: " if result.failure.cell is not None else ""
        yield f"  {where}{result.failure.error}"
        yield from (f"  | {line}" for line in (result.failure.traceback or result.failure.source).splitlines())


if __name__ == "__main__":
    sys.exit(main())
