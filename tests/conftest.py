"""Where tests run, and a loud word about those that did not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from helpers import topology
from kernels.guards import interpreter

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    needs = {"gpu": 1, "two_gpus": 2}
    not_run = 0
    for item in items:
        wanted = max((count for marker, count in needs.items() if item.get_closest_marker(marker)), default=0)
        if wanted > GPUS:
            item.add_marker(pytest.mark.skip(reason=f"needs {wanted} GPU(s), this machine has {GPUS}"))
            not_run += 1
    config.stash[_NOT_RUN] = not_run


_NOT_RUN = pytest.StashKey[int]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if "GPU(s)" in str(report.longrepr)]
    if skipped:
        terminalreporter.section("not run here", yellow=True)
        terminalreporter.line(f"{len(skipped)} tests need more GPUs than the {GPUS} of this machine and were NOT run.")


@pytest.fixture
def device() -> Iterator[torch.device]:
    """Where kernels run on this machine; the interpreter is opted in where that is the CPU."""
    runnable = topology.runnable()
    with interpreter(runnable.type == "cpu"):
        yield runnable


@pytest.fixture
def interpreted() -> Iterator[torch.device]:
    """The CPU with the interpreter opted in, whatever else the machine has."""
    with interpreter():
        yield topology.CPU
