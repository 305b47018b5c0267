"""What a rank's program sees of its surroundings: its number, its GPU, and the other ranks.

Run as a module, this file is one rank: ``python -m helpers.rank_programs.rank PROGRAM FOLDER [ARGUMENT ...]``, with
RANK and WORLD_SIZE in the environment, as torchrun sets them.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from helpers import topology
from kernels.guards import tensors_of

_ROOT = Path(__file__).resolve().parents[2]
_TIMEOUT = timedelta(minutes=2)


class Rank:
    """One process of several that serve one model.

    Attributes:
        index: number of this rank.
        size: number of ranks.
        device: the GPU that belongs to this rank, whether this machine has it or not.
        numbers: where this rank can compute: its GPU if every rank has one, else what the machine has.
    """

    def __init__(self, index: int, size: int, folder: Path) -> None:
        self.index = index
        self.size = size
        self.device = torch.device("cuda", index)
        self.nccl = topology.exists(torch.device("cuda", size - 1))
        self.numbers = self.device if self.nccl else topology.runnable()
        self._folder = folder
        self._current = 0
        self._entered = 0

    @contextmanager
    def gpus(self) -> Iterator[None]:
        """Within this context, code may name any GPU: all is real if this rank's GPU exists, else stand-ins.

        ``torch.cuda.set_device`` is remembered for this rank also where there is nothing to set. The other ranks cannot
        be talked to from inside.
        """
        with ExitStack() as stack:
            if not topology.exists(self.device):
                stack.enter_context(topology.stand_ins())
                for name, value in self._stand_in_gpu().items():
                    stack.enter_context(mock.patch.object(torch.cuda, name, value))
            yield

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on this rank's GPU, or a stand-in."""
        return topology.place(tensor, self.device)

    def show(self, **tensors: Any) -> None:
        """Print where tensors are, and keep it for pictures."""
        placement = {name: str(tensor.device) for name, tensor in tensors_of(tensors).items()}
        print(", ".join(f"{name} on {device}" for name, device in placement.items()))
        self._leave_word("placement", placement)

    def barrier(self) -> None:
        """Wait until every rank is here."""
        with self._together():
            # dist.barrier would take NCCL where there is NCCL, and guess at a GPU.
            dist.all_reduce(torch.zeros(1))

    def broadcast(self, value: Any, source: int) -> Any:
        """A Python object of one rank, on all ranks."""
        values = [value]
        with self._together():
            dist.broadcast_object_list(values, source, device=topology.CPU)
        return values[0]

    def all_to_all(
        self, tensor: torch.Tensor, sent: Sequence[int] | None = None, received: Sequence[int] | None = None
    ) -> torch.Tensor:
        """Send a part of a CPU tensor to every rank and receive a part from each, on the CPU.

        Args:
            tensor: [n, ...], the parts one after the other.
            sent: rows for each rank; left out, equally many.
            received: rows from each rank; likewise.

        Returns:
            The parts that arrived, in the order of the ranks that sent them.
        """
        rows = tensor.shape[0] if received is None else sum(received)
        arrived = tensor.new_empty(rows, *tensor.shape[1:])
        with self._together():
            dist.all_to_all_single(
                arrived, tensor, None if received is None else list(received), None if sent is None else list(sent)
            )
        return arrived

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of all ranks, which have one shape, on the CPU. Through NCCL where every rank has its GPU."""
        # As bytes, since not every backend knows every dtype.
        own = (tensor if self.nccl else tensor.cpu()).clone(memory_format=torch.contiguous_format)
        parts = [torch.empty_like(own).view(torch.uint8) for _ in range(self.size)]
        with self._together():
            dist.all_gather(parts, own.view(torch.uint8))
        return [part.view(tensor.dtype).cpu() for part in parts]

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Be one of the ranks, until the end. After a failure nothing is taken down: the others may be waiting."""
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if self.nccl else "gloo",
            init_method=(self._folder / "rendezvous").as_uri(),
            rank=self.index,
            world_size=self.size,
            timeout=_TIMEOUT,
        )
        yield
        dist.destroy_process_group()

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Note that this rank waits for the others, so that whoever watches knows when it waits in vain."""
        self._entered += 1
        self._leave_word("state", {"entered": self._entered, "waits": True})
        yield
        self._leave_word("state", {"entered": self._entered, "waits": False})

    def failed(self) -> None:
        """Note that this rank has failed."""
        self._leave_word("state", {"entered": self._entered, "waits": False, "failed": True})

    def _stand_in_gpu(self) -> dict[str, Any]:
        def set_device(device: torch.device | str | int) -> None:
            self._current = device if isinstance(device, int) else torch.device(device).index

        return {"set_device": set_device, "current_device": lambda: self._current, "is_initialized": lambda: True}

    def _leave_word(self, kind: str, word: dict[str, Any]) -> None:
        target = self._folder / f"rank{self.index}.{kind}"
        # Renamed into place, so that nobody reads half of it.
        fresh = target.with_suffix(".fresh")
        fresh.write_text(json.dumps(word), encoding="utf-8")
        fresh.replace(target)


def traceback_text(error: BaseException, program: Path) -> str:
    """A traceback that begins in the program, with paths below the project's root and without markers of columns."""
    frames = traceback.extract_tb(error.__traceback__)
    names = [frame.filename for frame in frames]
    first = names.index(str(program)) if str(program) in names else 0
    plain = [(_short(frame.filename), frame.lineno or 0, frame.name, frame.line) for frame in frames[first:]]
    lines = ["Traceback (most recent call last):\n", *traceback.StackSummary.from_list(plain).format()]
    return "".join(lines + traceback.format_exception_only(error))


def _short(filename: str) -> str:
    path = Path(filename)
    return path.relative_to(_ROOT).as_posix() if path.is_relative_to(_ROOT) else path.name


def _end_with_launcher() -> threading.Thread:
    """A thread that ends this process when the launcher closes its end of standard input, or dies."""

    def wait() -> None:
        # Not through sys.stdin, whose lock Python wants for itself at its end.
        os.read(0, 1)
        os._exit(1)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def _run(program: Path, folder: Path, arguments: Sequence[str]) -> None:
    launcher = _end_with_launcher()
    rank = Rank(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), folder)
    # What the program prints, apart from what libraries below Python write to the process's own outputs.
    # Line by line, so that it is there also if this process is stopped.
    sys.stdout = sys.stderr = (folder / f"rank{rank.index}.out").open("w", encoding="utf-8", buffering=1)
    try:
        main = runpy.run_path(str(program))["main"]
        with rank.joined():
            main(rank, *arguments)
    except Exception as error:
        print(traceback_text(error, program), end="")
        rank.failed()
        # A rank that is gone takes its connections along, and the others would fail in turn, sometimes in other words
        # than before. So it stays until the launcher has stopped those who wait for it.
        launcher.join()


if __name__ == "__main__":
    _run(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
