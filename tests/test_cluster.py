"""Notebooks on a cluster: a worker that dies on the way loses nothing, and the report says that it died."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from notebook_files import code, text, write

from helpers.report import __main__ as command
from helpers.report import cluster, machine
from helpers.report.jobs import FAILED, PASSED, ROOT, Job

pytestmark = pytest.mark.cluster

REPRODUCED = "mamba_scatter.state.device/src"

# The first time, kill the worker: it started the process that started this kernel.
KILLER = """import os, time, psutil
from pathlib import Path
with Path("kernels.txt").open("a") as file:
    print(os.getpid(), file=file)
if len(Path("kernels.txt").read_text().split()) == 1:
    psutil.Process().parent().parent().kill()
    time.sleep(600)
print("second time")"""


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """Address of a scheduler with two workers, each a process of its own, all on the loopback interface."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0", silence_logs=50
    ) as local:
        local.wait_for_workers(2, timeout=60)
        yield local.scheduler_address


@pytest.fixture(scope="module")
def made(scheduler: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str, Path, Path]:
    """Exit code, output, folder of the notebooks and folder of a report, one of whose workers was killed."""
    base = tmp_path_factory.mktemp("cluster")
    reproduction = code(f"from helpers.reproduce import reproduce\nreproduce({REPRODUCED!r})")
    write(base / "notebooks", "killer", text("# Killer"), code(KILLER))
    write(base / "notebooks", "steady", text("# Steady"), reproduction)
    arguments = ["--cluster", scheduler, "--notebooks", str(base / "notebooks"), "--out", str(base / "out")]
    with redirect_stdout(io.StringIO()) as said:
        status = command.main(arguments)
    return status, said.getvalue(), base / "notebooks", base / "out"


@pytest.fixture(scope="module")
def summary(made: tuple[int, str, Path, Path]) -> dict[str, Any]:
    assert made[0] == 0, made[1]
    return json.loads((made[3] / "summary.json").read_text(encoding="utf-8"))


def test_the_notebook_of_a_lost_worker_is_run_again(summary: dict[str, Any], made: tuple[int, str, Path, Path]) -> None:
    notebooks = {item["name"]: item for item in summary["notebooks"]}
    assert {name: item["verdict"] for name, item in notebooks.items()} == {"killer": PASSED, "steady": PASSED}
    assert (notebooks["killer"]["attempts"], len((made[2] / "kernels.txt").read_text().split())) == (2, 2)
    assert "second time" in nbformat.writes(nbformat.read(made[3] / "killer.ipynb", as_version=4))


def test_the_report_says_so(made: tuple[int, str, Path, Path]) -> None:
    assert "killer: its worker was lost; run again on another" in made[1]
    index = (made[3] / "index.html").read_text(encoding="utf-8")
    assert index.count("a worker was lost on the way") == 1
    assert "run 2 times" in index
    assert "2 workers like this" in index


def test_what_the_notebook_saw_comes_back_with_it(summary: dict[str, Any]) -> None:
    [seen] = [item for item in summary["records"] if item["verdict"] == "reproduced"]
    assert (seen["id"], seen["seen_in"]) == (REPRODUCED, ["steady"])


def test_the_lost_attempt_does_not_run_on(made: tuple[int, str, Path, Path]) -> None:
    first = int((made[2] / "kernels.txt").read_text().split()[0])
    deadline = time.monotonic() + 20
    while psutil.pid_exists(first) and psutil.Process(first).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the kernel of the killed worker is still there"
        time.sleep(0.2)


def test_a_notebook_that_the_workers_do_not_have_is_refused(scheduler: str, tmp_path: Path) -> None:
    with (
        pytest.raises(cluster.ClusterError, match=r"worker tcp://127.* does not have the notebooks of gone"),
        cluster.crew(scheduler, [Job("gone", str(tmp_path / "gone.ipynb"))]),
    ):
        pytest.fail("it was accepted")


def test_an_address_without_a_scheduler_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cluster, "_SECONDS_TO_CONNECT", 0.5)
    write(tmp_path, "a", text("# A"))
    for address in ("tcp://127.0.0.1:9", "nonsense://127.0.0.1:9"):
        assert command.main(["--notebooks", str(tmp_path), "--cluster", address, "--out", str(tmp_path / "out")]) == 2
        assert f"no Dask scheduler answers at {address}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_without_dask_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    write(tmp_path, "a", text("# A"))
    assert command.main(["--notebooks", str(tmp_path), "--cluster", "tcp://127.0.0.1:9"]) == 2
    assert "device-guards[cluster]" in capsys.readouterr().err


def test_jobs_are_for_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "a", text("# A"))
    assert command.main(["--notebooks", str(tmp_path), "--cluster", "tcp://127.0.0.1:9", "--jobs", "2"]) == 2
    assert "--jobs is for this machine" in capsys.readouterr().err


def worker(**changes: Any) -> cluster.Worker:
    return cluster.Worker(replace(machine.provenance("abc"), **changes), threads=1, missing=())


def test_workers_that_are_alike_speak_with_one_voice() -> None:
    here = worker(cores=1, date="2026-01-01", system="Linux 6")
    agreed = cluster.agreed({"a": here, "b": worker(cores=2, date="2026-01-02", system="Linux 7")})
    assert agreed == replace(here.origin, workers=2)


@pytest.mark.parametrize("changes", [{"torch": "1.0"}, {"commit": "def"}, {"device": "1 x H200"}])
def test_workers_that_differ_make_no_report_together(changes: dict[str, Any]) -> None:
    with pytest.raises(cluster.ClusterError, match=f"workers a and b differ in {next(iter(changes))};"):
        cluster.agreed({"a": worker(), "b": worker(**changes)})


def test_one_notebook_at_a_time_beside_a_gpu() -> None:
    beside = replace(worker(gpus=("H200",)), threads=4)
    with pytest.raises(cluster.ClusterError, match="--nthreads 1"):
        cluster.agreed({"a": beside})
    assert cluster.agreed({"a": replace(beside, threads=1)}).workers == 1
    assert cluster.agreed({"a": replace(worker(), threads=4)}).workers == 1


def test_a_cluster_without_workers_is_an_error() -> None:
    with pytest.raises(cluster.ClusterError, match="no workers"):
        cluster.agreed({})


def test_a_job_means_the_same_where_the_checkout_is_elsewhere(tmp_path: Path) -> None:
    inside = command.jobs_for(command._parser().parse_args(["mamba_scatter"]))[0]
    assert inside.source == "notebooks/mamba_scatter.ipynb"
    assert inside.path == ROOT / "notebooks" / "mamba_scatter.ipynb"
    path = write(tmp_path, "a", text("# A"))
    [outside] = command.jobs_for(command._parser().parse_args(["--notebooks", str(tmp_path)]))
    assert (outside.path, os.path.isabs(outside.source)) == (path.resolve(), True)


def test_a_job_that_nobody_returned_is_a_failure_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def lose(job: Job) -> None:
        raise ConnectionError(f"{job.name} was lost")

    monkeypatch.setattr(command, "run_notebook", lose)
    job = Job("a", str(write(tmp_path, "a", code("1", count=1))))
    with ThreadPoolExecutor() as executor:
        [result] = command.run_all([job], executor)
    assert result.verdict == FAILED
    assert "nothing came back: ConnectionError: a was lost" in capsys.readouterr().out
    assert nbformat.reads(result.notebook, as_version=4).cells[0].execution_count is None
