"""Run code whose guards are switched off, in a process of its own.

After an illegal memory access a process can use CUDA no more, and a wild write may kill it. So such code never runs in
the notebook's process: a fresh Python runs it, and what became of it comes back.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Kind = Literal["completed", "not run", "exception", "illegal access", "killed", "timeout"]

_ROOT = Path(__file__).resolve().parents[1]
_EXPERIMENTS = Path(__file__).parent / "experiments"
_ILLEGAL = ("illegal memory access", "misaligned address", "CUDA_ERROR_ILLEGAL_ADDRESS")
_KEPT_OUTPUT = 4000


@dataclass(frozen=True)
class Outcome:
    """What became of a process.

    Attributes:
        kind: "completed", "not run" (the code found that the machine lacks something), "exception", "illegal access"
            (an exception that says so), "killed" (by a signal) or "timeout".
        told: what the code had to say for itself, or what is missing, or the exception's message, or the signal.
        error: class of the exception.
        poisoned: whether CUDA was unusable in that process afterwards; None where CUDA was not in use.
        seconds: how long it took, start of Python included.
        output: the end of what it printed.
    """

    kind: Kind
    told: str = ""
    error: str = ""
    poisoned: bool | None = None
    seconds: float = 0.0
    output: str = ""

    @property
    def verdict(self) -> str:
        """One line."""
        if self.kind == "completed":
            return f"completed: {self.told}" if self.told else "completed"
        if self.kind == "not run":
            return f"not run: {self.told}"
        if self.kind == "killed":
            return f"the process was killed by {self.told}"
        if self.kind == "timeout":
            return f"no end after {self.told}; the process was killed"
        after = "; after that, CUDA was unusable in that process" if self.poisoned else ""
        return f"{self.error}: {(self.told.splitlines() or [''])[0]}{after}"

    def __str__(self) -> str:
        return self.verdict


def run_unguarded(code: str | Path | Callable[[], object], *, timeout: float = 120.0) -> Outcome:
    """Run code in a fresh Python and see what becomes of it.

    Args:
        code: source text, a file, or a function that takes nothing and imports what it needs (its source is sent). A
            variable ``told`` that the code leaves behind, or what the function returns, goes into the outcome. A
            variable ``missing`` says instead what the machine lacks to run it.
        timeout: seconds after which the process is killed, with all it has started.
    """
    with tempfile.TemporaryDirectory(prefix="unguarded-") as folder:
        script, result, log = (Path(folder) / name for name in ("script.py", "result.json", "output.txt"))
        script.write_text(_source(code), encoding="utf-8")
        started = time.perf_counter()
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "helpers.unguarded", str(script), str(result)],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status: int | None = process.wait(timeout)
            except subprocess.TimeoutExpired:
                status = None
                # With all that it has started: they share its session, and it is still there to be named.
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        seconds = time.perf_counter() - started
        printed = log.read_text(encoding="utf-8", errors="replace")[-_KEPT_OUTPUT:]
        reported = json.loads(result.read_text(encoding="utf-8")) if result.exists() else None
    return _judge(status, reported, timeout, seconds, printed)


def experiments() -> dict[str, Path]:
    """The experiments that come with this guide, by name."""
    return {path.stem: path for path in sorted(_EXPERIMENTS.glob("*.py")) if not path.stem.startswith("_")}


def experiment(name: str, *, timeout: float = 120.0) -> Outcome:
    """Run one of the experiments that come with this guide. Each is safe to run on any machine.

    Args:
        name: see :func:`experiments`.
        timeout: in seconds.

    Raises:
        KeyError: when there is none of that name.
    """
    found = experiments()
    if name not in found:
        raise KeyError(f"no experiment {name}; there are {', '.join(found)}")
    missing = _missing(found[name])
    return Outcome("not run", missing) if missing else run_unguarded(found[name], timeout=timeout)


def _missing(script: Path) -> str:
    """What this machine lacks for an experiment, as the experiment would say it; "" if nothing.

    An experiment that needs GPUs is one ``if topology.exists(...)`` whose ``else`` says what is missing. Read off here,
    that takes no process of its own, which would need a second to start.
    """
    from helpers import topology

    match ast.parse(script.read_text(encoding="utf-8")).body[-1]:
        case ast.If(
            test=ast.Call(func=ast.Attribute(attr="exists"), args=[ast.Attribute(attr=("HOME" | "OTHER") as device)]),
            orelse=[ast.Assign(targets=[ast.Name(id="missing")], value=ast.Constant(value=str(told)))],
        ) if not topology.exists(getattr(topology, device)):
            return told
    return ""


def _source(code: str | Path | Callable[[], object]) -> str:
    if isinstance(code, Path):
        return code.read_text(encoding="utf-8")
    if isinstance(code, str):
        return textwrap.dedent(code)
    source = textwrap.dedent(inspect.getsource(code))
    if not source.startswith("def "):
        raise ValueError("only a plain function can be sent to another process: no lambda, no decorator")
    return f"{source}\n\ntold = {code.__name__}()\n"


def _judge(
    status: int | None, reported: dict[str, Any] | None, timeout: float, seconds: float, printed: str
) -> Outcome:
    if status is None:
        return Outcome("timeout", f"{timeout:g} s", seconds=seconds, output=printed)
    if reported is not None:
        missing = reported.pop("missing")
        kind: Kind = "exception" if reported["error"] else "not run" if missing else "completed"
        if reported["error"] and any(words in reported["told"] for words in _ILLEGAL):
            kind = "illegal access"
        return Outcome(kind, **reported, seconds=seconds, output=printed)
    if status < 0:
        return Outcome("killed", signal.Signals(-status).name, seconds=seconds, output=printed)
    return Outcome("exception", f"exit status {status}", "SystemExit", seconds=seconds, output=printed)


# The other side: what the fresh Python does.


def _child(script: str, result: str) -> None:
    """Run the script and leave word of how it ended, before anything else can go wrong."""
    report: dict[str, object] = {"told": "", "error": "", "missing": False}
    try:
        left = runpy.run_path(script, run_name="__main__")
        _wait_for_device()
        told = left.get("missing", left.get("told"))
        report |= {"told": "" if told is None else str(told), "missing": "missing" in left}
    except Exception as error:
        report |= {"told": str(error), "error": type(error).__name__}
    report["poisoned"] = _cuda_is_poisoned()
    Path(result).write_text(json.dumps(report), encoding="utf-8")


def _cuda() -> Any:
    """``torch.cuda`` if the script has used it."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def _wait_for_device() -> None:
    # A kernel's fault shows only when somebody waits for it.
    if cuda := _cuda():
        cuda.synchronize()


def _cuda_is_poisoned() -> bool | None:
    cuda = _cuda()
    if cuda is None:
        return None
    try:
        cuda.synchronize()
        sys.modules["torch"].zeros(1, device="cuda").item()
    except RuntimeError:
        return True
    return False


if __name__ == "__main__":
    _child(*sys.argv[1:])
