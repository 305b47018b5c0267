"""Is this machine fit for the guide? ``python -m helpers.doctor`` looks, and says what to do where it is not.

Nothing here is imported before it is looked at, so the doctor also speaks where torch or Triton are missing.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version
from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]
OLDEST = {"torch": "2.11", "triton": "3.6"}
OLDEST_PYTHON = (3, 11)
# Triton keeps every kernel that it compiles; a whole run of notebooks and tests leaves some hundred megabytes.
ENOUGH_DISK = 1 << 30

_SET_UP = "set the environment up anew: make clean-venv doctor"
OK, NOTE, PROBLEM = "ok", "note", "problem"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: what.
        status: "ok"; "note" for something to know; "problem" for something that keeps the guide from working.
        found: what was seen.
        remedy: what to do about it, empty where nothing is to be done.
    """

    name: str
    status: str
    found: str
    remedy: str = ""


def checks() -> list[Check]:
    """Look at everything. A check that itself fails is a problem, and the rest go on."""
    return [_guarded(name, look) for name, look in _CHECKS.items()]


def table(found: list[Check]) -> str:
    """The checks as text, each with its remedy below."""
    rows = []
    for check in found:
        rows.append((check.status, check.name, check.found))
        if check.remedy:
            rows.append(("", "", f"→ {check.remedy}"))
    return tabulate(rows, tablefmt="plain", disable_numparse=True)


def main() -> int:
    """Print the checks.

    Returns:
        1 if there is a problem, else 0.
    """
    found = checks()
    print(table(found))
    problems = sum(check.status == PROBLEM for check in found)
    print(f"\n{problems} problem(s)" if problems else "\nAll is well.")
    return 1 if problems else 0


def _guarded(name: str, look: Callable[[], tuple[str, ...]]) -> Check:
    try:
        return Check(name, *look())
    except Exception as error:
        # Whatever is broken is what the reader wants to hear about, along with everything else.
        return Check(name, PROBLEM, f"{type(error).__name__}: {error}", _SET_UP)


def _python() -> tuple[str, ...]:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST_PYTHON:
        return PROBLEM, version, "use Python 3.11 or newer: make PYTHON=python3.11"
    return OK, f"{version} at {sys.executable}"


def _release(package: str) -> tuple[str, ...]:
    try:
        found = metadata.version(package)
    except metadata.PackageNotFoundError:
        return PROBLEM, f"{package} is not installed", _SET_UP
    if Version(found) < Version(OLDEST[package]):
        return PROBLEM, found, f"the guide needs {package} {OLDEST[package]} or newer"
    pinned = pins().get(package)
    if pinned is not None and Version(found).public != pinned:
        return NOTE, f"{found}; the pinned one is {pinned}", f"none needed: the guide works from {OLDEST[package]} on"
    return OK, found


def pins() -> dict[str, str]:
    """Versions in the constraints file, by package in lower case; empty where the file is not there."""
    path = ROOT / "constraints.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    wanted = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {item.name.lower(): next(iter(item.specifier)).version for item in wanted}


def _gpus() -> tuple[str, ...]:
    import torch

    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        if shutil.which("nvidia-smi") and built is None:
            return NOTE, "there is a GPU, but this torch is a CPU build", "install a torch that is built for CUDA"
        return OK, "none: kernels run through Triton's interpreter"
    names = (
        f"cuda:{index} {torch.cuda.get_device_name(index)} (sm_{major}{minor})"
        for index in range(torch.cuda.device_count())
        for major, minor in [torch.cuda.get_device_capability(index)]
    )
    return OK, ", ".join(names)


def _driver() -> tuple[str, ...]:
    import torch

    from helpers.report.machine import driver

    found = driver()
    if found is None:
        return OK, "no NVIDIA driver"
    if torch.version.cuda is not None and not torch.cuda.is_available():
        return NOTE, f"{found}, but torch (built for CUDA {torch.version.cuda}) finds no GPU", "update the driver"
    return OK, found


def _peer_access() -> tuple[str, ...]:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count < 2:
        return OK, "does not arise: fewer than two GPUs"
    open_ways = [
        f"{a}→{b}" for a in range(count) for b in range(count) if a != b and torch.cuda.can_device_access_peer(a, b)
    ]
    if not open_ways:
        return OK, "none: a kernel that is given another GPU's memory faults"
    return OK, f"possible for {', '.join(open_ways)}: there a misplaced tensor may be read slowly instead of faulting"


def _real() -> tuple[str, ...]:
    from helpers import topology

    places = {"cuda:0": topology.HOME, "cuda:1": topology.OTHER, "cpu": topology.CPU}
    real = [name for name, device in places.items() if topology.exists(device)]
    missing = [name for name in places if name not in real]
    kernels = "natively" if topology.runnable().type == "cuda" else "in the interpreter"
    stand_ins = f"; stand-ins: {', '.join(missing)}" if missing else ""
    return OK, f"real: {', '.join(real)}{stand_ins}; kernels run {kernels}"


def _import_name() -> tuple[str, ...]:
    import kernels

    namesake = _namesake()
    if not hasattr(kernels, "GuardError"):
        return (
            PROBLEM,
            f"import kernels finds {kernels.__file__}, another package",
            "uninstall Hugging Face's kernels here, or use the project's own environment: make",
        )
    if namesake is not None:
        return (
            NOTE,
            f"ours is imported, but Hugging Face's kernels {namesake} is installed too and has the same import name",
            "whoever needs the other one in this environment will get ours: keep them apart",
        )
    return OK, "ours"


def _namesake() -> str | None:
    try:
        return metadata.version("kernels")
    except metadata.PackageNotFoundError:
        return None


def _notebook_kernel() -> tuple[str, ...]:
    from jupyter_client.kernelspec import KernelSpecManager

    # Raises NoSuchKernel, which says what there is.
    spec = KernelSpecManager().get_kernel_spec("python3")
    python = spec.argv[0]
    if Path(python).name == python or Path(python).resolve() == Path(sys.executable).resolve():
        return OK, "python3, of this environment"
    return (
        NOTE,
        f"python3 starts {python}, this is {sys.executable}",
        "if that one lacks the guide's packages: python -m ipykernel install --sys-prefix",
    )


def _interpreter() -> tuple[str, ...]:
    from helpers import probe, topology

    if probe.add_one(1.0, topology.CPU) != 2.0:
        return PROBLEM, "the interpreter gives wrong numbers", "reinstall triton in the pinned version"
    return OK, "runs a kernel of one element"


def _gpu_kernel() -> tuple[str, ...]:
    from helpers import probe, topology

    if not topology.exists(topology.HOME):
        return OK, "does not arise: no GPU"
    if probe.add_one(1.0, topology.HOME) != 2.0:
        return PROBLEM, "cuda:0 gives wrong numbers", "check the GPU with its maker's tools"
    return OK, "cuda:0 runs a kernel of one element"


def _compiler() -> tuple[str, ...]:
    if _is_set("TRITON_INTERPRET"):
        return NOTE, "not looked at: nothing is compiled while TRITON_INTERPRET is set", "unset TRITON_INTERPRET"
    from helpers import probe

    sizes = (f"{target} {probe.code_bytes(target)} bytes" for target in probe.TARGETS)
    return OK, ", ".join(sizes)


def _disk() -> tuple[str, ...]:
    cache = Path(os.environ.get("TRITON_CACHE_DIR") or Path(os.environ.get("TRITON_HOME", Path.home())) / ".triton")
    free = {place: shutil.disk_usage(_existing(place)).free for place in (cache, Path(tempfile.gettempdir()))}
    found = ", ".join(f"{size / 1e9:.1f} GB free at {place}" for place, size in free.items())
    if min(free.values()) < ENOUGH_DISK:
        return NOTE, found, "make room, or point TRITON_CACHE_DIR and TMPDIR elsewhere"
    return OK, found


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)


def _variables() -> tuple[str, ...]:
    from kernels.guards import INTERPRETER_VARIABLE

    if _is_set("TRITON_INTERPRET"):
        return (
            NOTE,
            "TRITON_INTERPRET is set: Triton then interprets every kernel, GPU or not, and compiles none",
            f"unset it; {INTERPRETER_VARIABLE}=1 opts CPU tensors in and leaves GPUs alone",
        )
    if _is_set(INTERPRETER_VARIABLE):
        return (
            NOTE,
            f"{INTERPRETER_VARIABLE} is set: calls with CPU tensors run instead of being refused",
            "unset it to see the guards that refuse CPU tensors",
        )
    return OK, "neither TRITON_INTERPRET nor " + INTERPRETER_VARIABLE + " is set"


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "0") not in ("", "0")


_CHECKS: dict[str, Callable[[], tuple[str, ...]]] = {
    "Python": _python,
    "torch": lambda: _release("torch"),
    "triton": lambda: _release("triton"),
    "environment variables": _variables,
    "GPUs": _gpus,
    "driver": _driver,
    "peer access": _peer_access,
    "what is real": _real,
    "import name kernels": _import_name,
    "notebook kernel": _notebook_kernel,
    "interpreter": _interpreter,
    "GPU kernel": _gpu_kernel,
    "compiler": _compiler,
    "disk": _disk,
}


if __name__ == "__main__":
    sys.exit(main())
