"""The few ways in which records break a call and mend it. Importable without torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from helpers.calls import Call

    Change = Callable[[Call], None]


def move(name: str, where: str) -> Change:
    """Move one tensor to ``call.home``, ``call.other`` or ``call.cpu``."""
    return lambda call: call.move(name, getattr(call, where))


def move_all(where: str) -> Change:
    """Move every tensor to ``call.home``, ``call.other`` or ``call.cpu``."""
    return lambda call: call.move_all(getattr(call, where))


def follow(name: str, anchor: str) -> Change:
    """``name = name.to(anchor.device)``."""
    return lambda call: call.move(name, call[anchor].device)


def change(name: str, how: Callable[[torch.Tensor], object]) -> Change:
    """``name = how(name)``."""

    def apply(call: Call) -> None:
        call[name] = how(call[name])

    return apply


def replace(name: str, value: object) -> Change:
    """``name = value``."""
    return change(name, lambda _: value)


def restore(*names: str) -> Change:
    """Take arguments back to what they were in the valid call."""
    return lambda call: call.restore(*names)


def to_dtype(name: str, dtype: str) -> Change:
    """``name = name.to(torch.<dtype>)``."""

    def apply(call: Call) -> None:
        import torch

        call[name] = call[name].to(getattr(torch, dtype))

    return apply


def in_order(*changes: Change) -> Change:
    """Several changes, one after the other."""

    def apply(call: Call) -> None:
        for step in changes:
            step(call)

    return apply


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same sizes and values with the last two dims laid out the other way round, as after a transpose."""
    return contiguous(tensor.transpose(-1, -2)).transpose(-1, -2)


def contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """A packed copy. Unlike ``Tensor.contiguous`` it also works on a stand-in where PyTorch has no CUDA."""
    import torch

    return tensor.clone(memory_format=torch.contiguous_format)
