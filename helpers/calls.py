"""A call as a thing one can take apart: its arguments by name, where they live, and what it should produce."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch

import kernels
from helpers import topology
from helpers.atlas.record import Spec
from kernels.guards import tensors_of


@dataclass
class Call:
    """A call of one public function, not made yet.

    ``call["argument"]`` reads and writes an argument; ``call["argument.field"]`` and ``call["argument.0"]`` reach into
    dataclasses and lists.

    Attributes:
        spec: what is called.
        args: arguments by name.
        initial: the arguments of the valid call that it began as.
    """

    spec: Spec
    args: dict[str, Any] = field(default_factory=dict)
    initial: dict[str, Any] = field(default_factory=dict)
    home = topology.HOME
    other = topology.OTHER
    cpu = topology.CPU

    @classmethod
    def valid(cls, spec: Spec, *, on: torch.device = topology.HOME, seed: int = 0) -> Call:
        """A call that every guard accepts, all its tensors on one device (stand-ins where that does not exist)."""
        call = cls(spec, spec.sample(topology.runnable() if on.type == "cuda" else on, seed))
        call.move_all(on)
        call.initial = dict(call.args)
        return call

    def __getitem__(self, name: str) -> Any:
        owner, *path = name.split(".")
        return _item(self.args[owner], path)

    def __setitem__(self, name: str, value: Any) -> None:
        owner, *path = name.split(".")
        if owner not in self.args:
            raise KeyError(f"{self.spec.function} has no argument {owner}")
        self.args[owner] = _replaced(self.args[owner], path, value)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor of the call by name, in the order of the signature."""
        return tensors_of(self.args)

    @property
    def real(self) -> bool:
        """Whether every tensor has memory on a device of this machine; without tensors, whether it has a GPU."""
        if not self.tensors:
            return topology.exists(self.home)
        return not any(topology.is_stand_in(tensor) for tensor in self.tensors.values())

    def move(self, name: str, device: torch.device) -> None:
        """Put one tensor on a device, or a stand-in where the device does not exist."""
        self[name] = topology.place(self[name], device)

    def move_all(self, device: torch.device) -> None:
        """Put every tensor on a device."""
        for name in self.tensors:
            self.move(name, device)

    def restore(self, *names: str) -> None:
        """Take arguments back to what they were in the valid call."""
        for name in names:
            self.args[name] = self.initial[name]

    def run(self) -> Any:
        """Make the call."""
        return attrgetter(self.spec.function)(kernels)(**self.args)

    def written(self, returned: Any = None) -> dict[str, torch.Tensor]:
        """The outputs after the call."""
        return {name: _output(self, name, returned) for name in self.spec.outputs}


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Norm of the difference over the norm of the reference, in float64; infinite where NaN or infinity disagree.

    Integer and equal tensors give 0 only if they agree in every element.
    """
    if got.shape != want.shape:
        raise ValueError(f"cannot compare shapes {tuple(got.shape)} and {tuple(want.shape)}")
    if got.dtype == want.dtype and got.device == want.device and torch.equal(_as_bytes(got), _as_bytes(want)):
        # Found where the tensors are: a pool of gigabytes would take half a minute to bring to the host and compare.
        return 0.0
    got, want = got.detach().cpu().double(), want.detach().cpu().double()
    odd = ~(torch.isfinite(got) & torch.isfinite(want))
    agree = (got == want) | (got.isnan() & want.isnan())
    if not bool(agree[odd].all()):
        return float("inf")
    got, want = got.masked_fill(odd, 0), want.masked_fill(odd, 0)
    scale = want.norm().item()
    difference = (got - want).norm().item()
    return difference / scale if scale > 0 else difference


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors hold the same bytes, NaN payloads included."""
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(_as_bytes(a.cpu()), _as_bytes(b.cpu()))


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().reshape(-1)
    # reshape may give a view with gaps, which cannot be seen as bytes.
    packed = flat if flat.stride(0) == 1 else flat.clone(memory_format=torch.contiguous_format)
    return packed.view(torch.uint8)


def snapshot(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies of the real tensors among these, to compare with later."""
    return {name: tensor.clone() for name, tensor in tensors.items() if not topology.is_stand_in(tensor)}


def _item(owner: Any, path: list[str]) -> Any:
    """What lies at ``path`` in a nest of dataclasses, lists and tuples."""
    for step in path:
        owner = owner[int(step)] if step.isdigit() else getattr(owner, step)
    return owner


def _replaced(owner: Any, path: list[str], value: Any) -> Any:
    """A copy of a nest of dataclasses and lists with the item at ``path`` exchanged."""
    if not path:
        return value
    step, *rest = path
    if step.isdigit():
        return [_replaced(item, rest, value) if i == int(step) else item for i, item in enumerate(owner)]
    return dataclasses.replace(owner, **{step: _replaced(getattr(owner, step), rest, value)})


def _output(call: Call, name: str, returned: Any) -> torch.Tensor:
    if not name.startswith("return."):
        return call[name]
    return _item(returned, name.split(".")[1:])
