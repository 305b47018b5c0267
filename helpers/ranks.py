"""Start one process for each rank, as torchrun does, and bring back what became of them.

The processes talk to each other over this machine's loopback interface only, and find each other through a file.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
_PROGRAMS = Path(__file__).parent / "rank_programs"
_FRAME = re.compile(r"\[rank\d+\]:(?:  +| Traceback )")
_PATIENCE = 0.02
_SECONDS_TO_END = 5.0
_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
# Multicast over NVLink would speed up nothing here, and asks for more of a machine than two ranks should.
_NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0"}


@dataclass(frozen=True)
class RankRun:
    """What became of a program's ranks.

    Attributes:
        lines: what each rank printed, tracebacks included, line by line.
        exit_codes: of each rank's process: 0, 1 after an exception, negative for the signal that ended it.
        stopped: ranks that the launcher stopped, because they waited for one that had failed.
        timed_out: whether the launcher stopped them because it took too long.
        placements: the last placement that each rank showed: device by tensor.
        noise: what libraries below Python wrote, rank by rank.
    """

    lines: tuple[tuple[str, ...], ...]
    exit_codes: tuple[int, ...]
    stopped: tuple[int, ...] = ()
    timed_out: bool = False
    placements: tuple[dict[str, str], ...] = ()
    noise: tuple[str, ...] = field(default=(), repr=False)

    @property
    def succeeded(self) -> bool:
        """Whether every rank came to its end."""
        return not any(self.exit_codes)

    @property
    def log(self) -> str:
        """The log with rank prefixes. Ranks come one after the other: as they really mix differs from run to run."""
        return "\n".join(f"[rank{rank}]: {line}".rstrip() for rank, lines in enumerate(self.lines) for line in lines)

    @property
    def brief(self) -> str:
        """The log without the frames of tracebacks."""
        return "\n".join(line for line in self.log.splitlines() if not _FRAME.match(line))

    @property
    def endings(self) -> list[str]:
        """How each rank ended, in words."""
        return [self._ending(rank, code) for rank, code in enumerate(self.exit_codes)]

    def __str__(self) -> str:
        return "\n".join([self.log, "", *self.endings])

    def _ending(self, rank: int, code: int) -> str:
        if rank in self.stopped:
            why = "took too long" if self.timed_out else "waited for a rank that had failed"
            return f"rank {rank} {why} and was stopped"
        if code < 0:
            return f"rank {rank} was ended by {signal.Signals(-code).name}"
        return f"rank {rank} ended with exit code {code}"


def rank_program(name: str) -> Path:
    """A program that comes with this guide.

    Raises:
        KeyError: when there is none of that name.
    """
    path = _PROGRAMS / f"{name}.py"
    if not path.exists():
        raise KeyError(f"no rank program {name}")
    return path


def run_ranks(program: str | Path, *arguments: str, world_size: int = 2, timeout: float = 120.0) -> RankRun:
    """Run a program once for each rank, in processes of their own, and wait for all of them.

    The program is a file with a function ``main(rank, *arguments)``; ``rank`` is a
    :class:`helpers.rank_programs.rank.Rank`. When a rank fails, those that wait for it are stopped.

    Args:
        program: a file, or the name of a program that comes with this guide.
        *arguments: handed to the program.
        world_size: number of ranks.
        timeout: seconds after which the ranks are stopped.
    """
    path = (program if isinstance(program, Path) else rank_program(program)).resolve()
    with tempfile.TemporaryDirectory(prefix="ranks-") as name:
        folder = Path(name)
        processes = [_start(path, folder, rank, world_size, arguments) for rank in range(world_size)]
        try:
            stopped, timed_out = _watch(processes, folder, time.monotonic() + timeout)
        finally:
            # Whatever happened here, an interrupt included, no rank is left behind.
            for process in processes:
                _end(process)
        return RankRun(
            lines=tuple(tuple(_read(folder, rank, "out").splitlines()) for rank in range(world_size)),
            exit_codes=tuple(process.returncode for process in processes),
            stopped=stopped,
            timed_out=timed_out,
            placements=tuple(_word(folder, rank, "placement") for rank in range(world_size)),
            noise=tuple(_read(folder, rank, "noise") for rank in range(world_size)),
        )


def _start(
    program: Path, folder: Path, rank: int, world_size: int, arguments: tuple[str, ...]
) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        **_LOOPBACK,
        **_NO_MULTICAST,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    with _file(folder, rank, "noise").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "helpers.rank_programs.rank", str(program), str(folder), *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _watch(processes: list[subprocess.Popen[bytes]], folder: Path, deadline: float) -> tuple[tuple[int, ...], bool]:
    """Wait until each rank has ended, or has failed, or waits in vain; those that wait are stopped.

    Returns:
        The ranks that were stopped, and whether it was for want of time.
    """
    while True:
        running = [rank for rank, process in enumerate(processes) if process.poll() is None]
        states = {rank: _word(folder, rank, "state") for rank in range(len(processes))}
        failed = [rank for rank in states if _has_failed(processes[rank].returncode, states[rank])]
        open_ends = [rank for rank in running if rank not in failed]
        stuck = [rank for rank in open_ends if _waits_in_vain(states[rank], [states[other] for other in failed])]
        late = time.monotonic() > deadline
        if late or len(stuck) == len(open_ends):
            for rank in open_ends:
                processes[rank].terminate()
                _wait(processes[rank])
            return tuple(open_ends), late
        time.sleep(_PATIENCE)


def _has_failed(code: int | None, state: dict[str, Any]) -> bool:
    return bool(code) or state.get("failed", False)


def _waits_in_vain(state: dict[str, Any], failed: list[dict[str, Any]]) -> bool:
    """Whether a rank waits in a step that a failed one never came to."""
    return state.get("waits", False) and any(other.get("entered", 0) < state["entered"] for other in failed)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let a rank go that holds on, and see that it is gone."""
    if process.stdin is not None:
        process.stdin.close()
    _wait(process)


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        # With all that it has started: they share its session.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _file(folder: Path, rank: int, kind: str) -> Path:
    return folder / f"rank{rank}.{kind}"


def _read(folder: Path, rank: int, kind: str) -> str:
    path = _file(folder, rank, kind)
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _word(folder: Path, rank: int, kind: str) -> dict[str, Any]:
    return json.loads(_read(folder, rank, kind) or "{}")
