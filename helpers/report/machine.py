"""Where a report comes from: hardware, driver, versions, commit, date."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata

from helpers.report.jobs import ROOT


@dataclass(frozen=True)
class Provenance:
    """What a reader needs to know to trust a report, or to repeat it.

    Attributes:
        device: one line about what kernels run on.
        gpus: name of each GPU.
        driver: version of NVIDIA's driver, None without one.
        cuda: version of CUDA (or of HIP) that torch was built with, None for a CPU build.
        torch: version.
        triton: version.
        python: version.
        system: kernel and processor.
        cores: CPU cores that this process may use.
        commit: revision of the repository, None outside of one.
        dirty: whether tracked files differ from the commit. False where the commit was given: there is nothing to ask.
        date: start of the run in UTC, ISO 8601.
        workers: how many machines like this shared the work; 0 if this one did it alone.
    """

    device: str
    gpus: tuple[str, ...]
    driver: str | None
    cuda: str | None
    torch: str
    triton: str
    python: str
    system: str
    cores: int
    commit: str | None
    dirty: bool
    date: str
    workers: int = 0


def provenance(commit: str | None = None) -> Provenance:
    """This machine and this checkout, now.

    Args:
        commit: the revision, where the checkout came without its repository.
    """
    import torch

    from helpers import topology

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    changed = None if commit else _git("status", "--porcelain", "--untracked-files=no")
    return Provenance(
        device=topology.describe(),
        gpus=tuple(torch.cuda.get_device_name(index) for index in range(count)),
        driver=driver(),
        cuda=torch.version.cuda or torch.version.hip,
        torch=torch.__version__,
        triton=metadata.version("triton"),
        python=platform.python_version(),
        # Of the release only its number: the rest is the builder's.
        system=f"{platform.system()} {platform.release().partition('-')[0]}, {platform.machine()}",
        cores=cores(),
        commit=commit or _git("rev-parse", "HEAD"),
        dirty=bool(changed),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def driver() -> str | None:
    """Version of NVIDIA's driver as ``nvidia-smi`` says it, None where there is none."""
    if shutil.which("nvidia-smi") is None:
        return None
    said = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return said.splitlines()[0] if said else None


def cores() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _git(*arguments: str) -> str | None:
    # A copy of the files inside some other repository is not this project's checkout.
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        return None
    return _output("git", "-C", str(ROOT), *arguments)


def _output(*command: str) -> str | None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
