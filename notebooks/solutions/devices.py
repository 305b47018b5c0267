"""One way to solve each exercise about devices."""

from __future__ import annotations

from collections.abc import Callable

import torch

from helpers.exercises.devices import Gpus


def is_where_asked(tensor: torch.Tensor, asked: str, current: int) -> bool:
    """Whether the tensor is on the device that the caller asked for."""
    wanted = torch.device(asked)
    if wanted.type == "cuda" and wanted.index is None:
        wanted = torch.device("cuda", current)
    return tensor.device == wanted


def launch_on(gpus: Gpus, index: int, launch: Callable[[], None]) -> None:
    """Launch with GPU `index` current, and leave the current device as it was."""
    before = gpus.current
    gpus.set_device(index)
    try:
        launch()
    finally:
        gpus.set_device(before)


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte of a tensor in its storage, and the byte after its last."""
    first = tensor.storage_offset()
    last = first + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first * tensor.element_size(), (last + 1) * tensor.element_size()


def share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the memory spans of two tensors have a byte in common."""
    if 0 in (a.numel(), b.numel()) or a.untyped_storage()._cdata != b.untyped_storage()._cdata:
        return False
    (first_a, end_a), (first_b, end_b) = span(a), span(b)
    return max(first_a, first_b) < min(end_a, end_b)
