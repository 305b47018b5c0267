"""Notebooks on a Dask cluster: each worker runs papermill on its own GPU and sends the executed notebook back.

The scheduler and its workers are started by whoever owns the machines, each worker in a checkout of the same commit::

    dask scheduler
    CUDA_VISIBLE_DEVICES=0 dask worker ADDRESS --nthreads 1
    python -m helpers.report --cluster ADDRESS

When a worker is lost, Dask hands its notebook to another one; the report says that it was begun again.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tqdm import tqdm

from helpers.report.jobs import Job, Result
from helpers.report.machine import Provenance, provenance

# What must be the same on all workers, so that one report speaks of one kind of machine.
_ALIKE = ("device", "gpus", "driver", "cuda", "torch", "triton", "python", "commit", "dirty")
_SECONDS_TO_CONNECT = 10


class ClusterError(Exception):
    """A cluster that cannot be used as it is."""


@dataclass(frozen=True)
class Crew:
    """Who runs the notebooks.

    Attributes:
        origin: the machine, or the kind of machine, that they run on.
        executor: takes the jobs.
        begun: how often each job was begun, by name; nothing is counted where no worker can be lost.
    """

    origin: Provenance
    executor: Executor
    begun: Counter[str] = field(default_factory=Counter)

    def counted(self, results: Sequence[Result]) -> list[Result]:
        """The results with the number of attempts."""
        return [replace(result, attempts=max(1, self.begun[result.name])) for result in results]


@dataclass(frozen=True)
class Worker:
    """What a worker says about itself.

    Attributes:
        origin: its machine and checkout.
        threads: how many notebooks it would run at once.
        missing: names of the jobs whose notebooks it does not have.
    """

    origin: Provenance
    threads: int
    missing: tuple[str, ...]


class ClusterExecutor(Executor):
    """The workers, behind the interface of ``concurrent.futures``.

    Args:
        client: of ``dask.distributed``.
        begun: where to count how often each job was begun.
    """

    def __init__(self, client: Any, begun: Counter[str]) -> None:
        # Two runs of the same notebook are two tasks: pure=False keeps Dask from handing out an earlier result.
        self._inner: Executor = client.get_executor(pure=False)
        self._begun = begun
        self._topic = f"device-guards-{uuid.uuid4().hex}"
        client.subscribe_topic(self._topic, self._note)

    def submit(self, task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Hand a task to some worker; its first argument is the job."""
        return self._inner.submit(_announced, self._topic, task, *args, **kwargs)

    def _note(self, event: tuple[float, str]) -> None:
        name = event[1]
        self._begun[name] += 1
        if self._begun[name] > 1:
            tqdm.write(f"{name}: its worker was lost; run again on another")


@contextmanager
def crew(address: str, jobs: Sequence[Job], commit: str | None = None) -> Iterator[Crew]:
    """The workers of a cluster, connected.

    Args:
        address: of the scheduler, such as ``tcp://127.0.0.1:8786``.
        jobs: what they are to do.
        commit: the revision, where the workers' checkouts came without their repository.

    Raises:
        ClusterError: when they cannot do it, before anything runs.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise ClusterError('--cluster needs Dask: pip install "device-guards[cluster]"') from error
    try:
        client = Client(address, timeout=_SECONDS_TO_CONNECT, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ClusterError(f"no Dask scheduler answers at {address}: {error}") from error
    with client:
        origin = agreed(introductions(client, jobs, commit))
        begun: Counter[str] = Counter()
        yield Crew(origin, ClusterExecutor(client, begun), begun)


def introductions(client: Any, jobs: Sequence[Job], commit: str | None) -> dict[str, Worker]:
    """What each worker says about itself, by address.

    Raises:
        ClusterError: when one cannot.
    """
    threads = client.nthreads()
    asked = {
        address: client.submit(_introduction, list(jobs), commit, count, workers=[address], pure=False)
        for address, count in threads.items()
    }
    try:
        return dict(client.gather(asked))
    except Exception as error:
        # Whatever happened there arrives as the class that it had there.
        raise ClusterError(f"a worker cannot run this checkout: {type(error).__name__}: {error}") from error


def agreed(workers: dict[str, Worker]) -> Provenance:
    """What all workers say about themselves.

    Args:
        workers: by address.

    Raises:
        ClusterError: when there are none, or they differ in more than load, or one is not fit for the jobs.
    """
    if not workers:
        raise ClusterError("the cluster has no workers")
    first, *others = workers
    for address, worker in workers.items():
        if worker.missing:
            raise ClusterError(f"worker {address} does not have the notebooks of {', '.join(worker.missing)}")
        if worker.origin.gpus and worker.threads > 1:
            raise ClusterError(
                f"worker {address} would run {worker.threads} notebooks at once beside its GPU and disturb every "
                "timing; start workers with --nthreads 1"
            )
    said = asdict(workers[first].origin)
    for address in others:
        differing = [name for name in _ALIKE if asdict(workers[address].origin)[name] != said[name]]
        if differing:
            raise ClusterError(
                f"workers {first} and {address} differ in {', '.join(differing)}; make a report of each kind of "
                "machine and put them side by side with: python -m helpers.report merge"
            )
    return replace(workers[first].origin, workers=len(workers))


def _introduction(jobs: list[Job], commit: str | None, threads: int) -> Worker:
    """Runs on the worker."""
    missing = tuple(job.name for job in jobs if not job.path.is_file())
    return Worker(provenance(commit), threads, missing)


def _announced(topic: str, task: Callable[[Job], Result], job: Job) -> Result:
    """Runs on the worker: say that the job begins, since a worker that is lost cannot say so afterwards."""
    from distributed import get_worker

    get_worker().log_event(topic, job.name)
    return task(job)
