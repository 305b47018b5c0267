"""Plausible wrong answers to the exercises about devices, with words that the check must use about each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import torch

from helpers.exercises.devices import Gpus


def as_written(tensor: torch.Tensor, asked: str, current: int) -> bool:
    return tensor.device == torch.device(asked)


def cuda_is_the_first_gpu(tensor: torch.Tensor, asked: str, current: int) -> bool:
    return tensor.device == torch.device("cuda:0" if asked == "cuda" else asked)


def any_gpu_will_do(tensor: torch.Tensor, asked: str, current: int) -> bool:
    return tensor.device.type == torch.device(asked).type


def by_the_beginning(tensor: torch.Tensor, asked: str, current: int) -> bool:
    return str(tensor.device).startswith(f"cuda:{current}" if asked == "cuda" else asked)


def not_put_back(gpus: Gpus, index: int, launch: Callable[[], None]) -> None:
    gpus.set_device(index)
    launch()


def back_to_the_first(gpus: Gpus, index: int, launch: Callable[[], None]) -> None:
    gpus.set_device(index)
    try:
        launch()
    finally:
        gpus.set_device(0)


def not_after_a_failure(gpus: Gpus, index: int, launch: Callable[[], None]) -> None:
    before = gpus.current
    gpus.set_device(index)
    launch()
    gpus.set_device(before)


def on_the_current_device(gpus: Gpus, index: int, launch: Callable[[], None]) -> None:
    launch()


def silent(gpus: Gpus, index: int, launch: Callable[[], None]) -> None:
    before = gpus.current
    gpus.set_device(index)
    with suppress(Exception):
        launch()
    gpus.set_device(before)


def twice(gpus: Gpus, index: int, launch: Callable[[], None]) -> None:
    for device in (index, gpus.current):
        gpus.set_device(device)
        launch()


def same_address(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.data_ptr() == b.data_ptr()


def same_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def by_address(a: torch.Tensor, b: torch.Tensor) -> bool:
    first_a, first_b = a.data_ptr(), b.data_ptr()
    return max(first_a, first_b) < min(first_a + a.nbytes, first_b + b.nbytes)


def _spans_meet(a: torch.Tensor, b: torch.Tensor, size_a: int, size_b: int, unit_a: int, unit_b: int) -> bool:
    first_a, first_b = a.storage_offset() * unit_a, b.storage_offset() * unit_b
    return same_storage(a, b) and max(first_a, first_b) < min(first_a + size_a * unit_a, first_b + size_b * unit_b)


def without_strides(a: torch.Tensor, b: torch.Tensor) -> bool:
    return _spans_meet(a, b, a.numel(), b.numel(), a.element_size(), b.element_size())


def _extent(tensor: torch.Tensor) -> int:
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def in_elements(a: torch.Tensor, b: torch.Tensor) -> bool:
    return _spans_meet(a, b, _extent(a), _extent(b), 1, 1)


def up_to_the_start_of_the_last(a: torch.Tensor, b: torch.Tensor) -> bool:
    return _spans_meet(a, b, _extent(a) - 1, _extent(b) - 1, a.element_size(), b.element_size())


def empty_like_any_other(a: torch.Tensor, b: torch.Tensor) -> bool:
    return _spans_meet(a, b, _extent(a), _extent(b), a.element_size(), b.element_size())


WRONG_ANSWERS: dict[str, list[tuple[object, str]]] = {
    "devices.resolve": [
        (as_written, "a tensor on cuda:0, wanted on 'cuda' while cuda:0 is current"),
        (cuda_is_the_first_gpu, "a tensor on cuda:1, wanted on 'cuda' while cuda:1 is current"),
        (any_gpu_will_do, "a tensor on cuda:1, wanted on 'cuda:0'"),
        (by_the_beginning, "a tensor on cuda:10, wanted on 'cuda:1'"),
    ],
    "devices.launch": [
        (not_put_back, "cuda:0 was current, and after a launch on cuda:1 cuda:1 is"),
        (back_to_the_first, "cuda:1 was current, and after a launch on cuda:0 cuda:0 is"),
        (not_after_a_failure, "after a launch that fails on cuda:3 cuda:3 is"),
        (on_the_current_device, "the tensors are on cuda:1: launched on [0]"),
        (silent, "never reached the caller"),
        (twice, "launched on [1, 0]"),
    ],
    "devices.overlap": [
        (same_address, "from element 0 to 64 and from 32 to 96"),
        (same_storage, "from element 0 to 48 and from 48 to 96"),
        (by_address, "two stand-ins, each with its own storage"),
        (without_strides, "every eighth element"),
        (in_elements, "as uint8"),
        (up_to_the_start_of_the_last, "from element 0 to 33 and from 32 to 96"),
        (empty_like_any_other, "an empty view of shape (4, 0)"),
    ],
}
