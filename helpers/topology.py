"""Which devices this machine has, and stand-ins for those it lacks.

The guide talks about three places: ``HOME`` (cuda:0), ``OTHER`` (cuda:1) and the CPU. Where a device exists, tensors
on it are real. Where it does not, they are FakeTensors: shape, strides, dtype and device without memory. A guard reads
nothing else, so it says exactly the same about both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest import mock

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

HOME = torch.device("cuda", 0)
OTHER = torch.device("cuda", 1)
CPU = torch.device("cpu")


def exists(device: torch.device) -> bool:
    """Whether this machine has the device."""
    if device.type != "cuda":
        return True
    return torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()


def runnable() -> torch.device:
    """Where kernels can run on this machine: the first GPU, else the CPU by way of Triton's interpreter."""
    return HOME if exists(HOME) else CPU


def place(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on another device, with the same strides: a copy where the device exists, else a stand-in.

    Args:
        tensor: real or a stand-in. Its strides may leave gaps or overlap.
        device: where it should be.
    """
    if tensor.device == device:
        return tensor
    if isinstance(tensor, FakeTensor) or not exists(device):
        return stand_in(tensor.shape, tensor.stride(), tensor.dtype, device)
    if tensor.numel() == 0:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    flat = tensor.as_strided((span,), (1,))
    return flat.to(device).as_strided(tensor.shape, tensor.stride(), 0)


def stand_in(
    shape: tuple[int, ...], stride: tuple[int, ...] | None, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """A FakeTensor: everything about a tensor except its memory.

    Args:
        shape: its sizes.
        stride: its strides in elements, or None for a contiguous one.
        dtype: its dtype.
        device: any device, with an index where it is a GPU. It need not exist.
    """
    with stand_ins():
        if stride is None:
            return torch.empty(shape, dtype=dtype, device=device)
        return torch.empty_strided(shape, stride, dtype=dtype, device=device)


@contextmanager
def stand_ins() -> Iterator[None]:
    """Within this context, every tensor that is created is a stand-in, on any device one cares to name."""
    with _mode():
        yield


class StandInMode(FakeTensorMode):
    """What makes stand-ins, and what an operation on one runs through, inside :func:`stand_ins` or not."""

    @property
    def avoid_device_init(self) -> bool:
        """Whether values stay off devices. PyTorch lets them go where there is any GPU, though another is meant."""
        return True

    def dispatch(self, *args: Any, **kwargs: Any) -> Any:
        """Run an operation."""
        # PyTorch allocates a number on the device of a FakeTensor to wake it, which fails for a GPU that is not there.
        # It does so only on machines that have another one.
        with mock.patch.object(fake_tensor, "init_gpu_context", return_value=None):
            return super().dispatch(*args, **kwargs)


@cache
def _mode() -> FakeTensorMode:
    # One mode for all stand-ins, since FakeTensors of two modes do not mix.
    mode = StandInMode(allow_non_fake_inputs=True)
    # Its cache takes two calls that look the same for the same, but what "cuda" means may have changed between them.
    mode.cache_enabled = False
    return mode


def is_stand_in(tensor: torch.Tensor) -> bool:
    """Whether the tensor has no memory."""
    return isinstance(tensor, FakeTensor)


def describe() -> str:
    """One line about this machine, for headings and reports."""
    if not torch.cuda.is_available():
        return "no GPU: kernels run through Triton's interpreter, GPUs are stand-ins"
    count = torch.cuda.device_count()
    name = torch.cuda.get_device_name(0)
    missing = "" if exists(OTHER) else "; cuda:1 is a stand-in"
    return f"{count} x {name}{missing}"
