"""Where tests run, and a loud word about those that did not."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from helpers import topology
from kernels.guards import interpreter
from kernels.known_calls import forget_known_calls

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0


def _missing(*packages: str, programs: tuple[str, ...] = ()) -> str:
    """Why what needs these cannot run here; empty if it can."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    missing += [name for name in programs if shutil.which(name) is None]
    return f"needs {', '.join(missing)}, which this machine lacks" if missing else ""


# Why the tests with a marker cannot run here; empty if they can.
LACKING = {
    "gpu": "" if GPUS >= 1 else f"needs 1 GPU(s), this machine has {GPUS}",
    "two_gpus": "" if GPUS >= 2 else f"needs 2 GPU(s), this machine has {GPUS}",
    "browser": _missing("playwright", "sphinx_revealjs", programs=("chromium",)),
    "cluster": _missing("distributed"),
    "sanitizer": _missing(programs=("compute-sanitizer",)),
    "slides": _missing("sphinx_revealjs"),
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
    # Whatever the reason is: a test that asks for something else in its own way is not run either.
    skipped = terminalreporter.stats.get("skipped", [])
    counts = Counter(str(report.longrepr[-1]).removeprefix("Skipped: ") for report in skipped)
    if counts:
        terminalreporter.section("not run here", yellow=True)
    for reason, count in counts.most_common():
        terminalreporter.line(f"{count} NOT run: {reason}.")


@pytest.fixture(autouse=True)
def _checked_anew() -> None:
    """No test profits from a call that another one made, and each may change how calls are checked and launched."""
    forget_known_calls()


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
