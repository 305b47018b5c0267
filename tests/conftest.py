"""Where tests run, and a loud word about those that did not."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator

import pytest
import torch

from helpers import topology
from kernels.guards import interpreter

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0


CHROMIUM = shutil.which("chromium")
NO_BROWSER = ", ".join(
    name
    for name, there in (("Chromium", CHROMIUM), ("Playwright", importlib.util.find_spec("playwright")))
    if not there
)

# Why the tests with a marker cannot run here; empty if they can.
LACKING = {
    "gpu": "" if GPUS >= 1 else f"needs 1 GPU(s), this machine has {GPUS}",
    "two_gpus": "" if GPUS >= 2 else f"needs 2 GPU(s), this machine has {GPUS}",
    "browser": f"needs {NO_BROWSER}, which this machine lacks" if NO_BROWSER else "",
}

# DEVICE_GUARDS_REQUIRE=browser,gpu makes a failure of what would be skipped: for machines that are meant to have it.
REQUIRED = set(filter(None, os.environ.get("DEVICE_GUARDS_REQUIRE", "").split(",")))


def pytest_configure() -> None:
    unknown = REQUIRED - set(LACKING)
    if unknown:
        raise pytest.UsageError(f"DEVICE_GUARDS_REQUIRE: {', '.join(unknown)} is none of {', '.join(LACKING)}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, reason in LACKING.items():
        if reason and item.get_closest_marker(marker):
            if marker in REQUIRED:
                pytest.fail(f"{reason}, and DEVICE_GUARDS_REQUIRE says that it must be there", pytrace=False)
            pytest.skip(reason)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    without_gpus = sum("GPU(s)" in reason for reason in reasons)
    without_browser = sum(bool(NO_BROWSER) and LACKING["browser"] in reason for reason in reasons)
    if without_gpus or without_browser:
        terminalreporter.section("not run here", yellow=True)
    if without_gpus:
        terminalreporter.line(f"{without_gpus} tests need more GPUs than the {GPUS} of this machine and were NOT run.")
    if without_browser:
        terminalreporter.line(f"{without_browser} tests need a browser and were NOT run: there is no {NO_BROWSER}.")


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
