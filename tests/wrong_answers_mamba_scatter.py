"""Plausible wrong answers to the exercises of the scatter, with words that the check must use about each."""

from __future__ import annotations

from collections.abc import Callable

import torch

PREDICTIONS = {
    "A": "dst and src must be on the same device.",
    "B": "fused_mamba_state_scatter_with_mask only supports CUDA tensors.",
    "C": "src tensor must be contiguous",
    "D": "",
    "E": "step_indices_raw must be on dst's device cuda:0, got cpu",
}


def only_the_cpu(tensors: dict[str, torch.Tensor]) -> list[str]:
    return [name for name, tensor in tensors.items() if not tensor.is_cuda]


def not_on_the_first_gpu(tensors: dict[str, torch.Tensor]) -> list[str]:
    return [name for name, tensor in tensors.items() if tensor.device != torch.device("cuda:0")]


def without_an_index(tensors: dict[str, torch.Tensor]) -> list[str]:
    return [name for name, tensor in tensors.items() if tensor.device != torch.device("cuda")]


def refuse(device: bool, dtype: bool) -> Callable[[torch.Tensor, torch.Tensor], None]:
    def check_indices(dst: torch.Tensor, dst_indices_raw: torch.Tensor) -> None:
        if device:
            raise ValueError(f"dst_indices_raw must be on dst's device {dst.device}, got {dst_indices_raw.device}")
        if dtype:
            raise ValueError(f"dst_indices_raw must have an integer dtype, got {dst_indices_raw.dtype}")

    return check_indices


def any_gpu_will_do(dst: torch.Tensor, dst_indices_raw: torch.Tensor) -> None:
    refuse(not dst_indices_raw.is_cuda, dst_indices_raw.is_floating_point())(dst, dst_indices_raw)


def a_bool_is_an_index(dst: torch.Tensor, dst_indices_raw: torch.Tensor) -> None:
    refuse(dst_indices_raw.device != dst.device, dst_indices_raw.is_floating_point())(dst, dst_indices_raw)


def a_complex_is_an_index(dst: torch.Tensor, dst_indices_raw: torch.Tensor) -> None:
    no_integer = dst_indices_raw.is_floating_point() or dst_indices_raw.dtype == torch.bool
    refuse(dst_indices_raw.device != dst.device, False)(dst, dst_indices_raw)
    refuse(False, no_integer)(dst, dst_indices_raw)


def only_int64(dst: torch.Tensor, dst_indices_raw: torch.Tensor) -> None:
    refuse(dst_indices_raw.device != dst.device, dst_indices_raw.dtype != torch.int64)(dst, dst_indices_raw)


def dtype_first(dst: torch.Tensor, dst_indices_raw: torch.Tensor) -> None:
    integer = not dst_indices_raw.is_floating_point() and dst_indices_raw.dtype != torch.bool
    refuse(False, not integer)(dst, dst_indices_raw)
    refuse(dst_indices_raw.device != dst.device, False)(dst, dst_indices_raw)


def looks_at_values(dst: torch.Tensor, dst_indices_raw: torch.Tensor) -> None:
    if dst_indices_raw.max().item() >= dst.shape[1]:
        raise ValueError("index out of range")


def asserts(dst: torch.Tensor, dst_indices_raw: torch.Tensor) -> None:
    assert dst_indices_raw.device == dst.device


def of_another_class(dst: torch.Tensor, dst_indices_raw: torch.Tensor) -> None:
    if dst_indices_raw.device != dst.device:
        raise RuntimeError(f"dst_indices_raw must be on dst's device {dst.device}, got {dst_indices_raw.device}")


def on_the_current_gpu(pool: torch.Tensor, requests: int, steps: int) -> torch.Tensor:
    device = f"cuda:{torch.cuda.current_device()}"
    return torch.empty(pool.shape[0], requests, steps, *pool.shape[2:], dtype=pool.dtype, device=device)


def on_the_second_gpu(pool: torch.Tensor, requests: int, steps: int) -> torch.Tensor:
    return torch.empty(pool.shape[0], requests, steps, *pool.shape[2:], dtype=pool.dtype, device="cuda:1")


def on_no_device(pool: torch.Tensor, requests: int, steps: int) -> torch.Tensor:
    return torch.empty(pool.shape[0], requests, steps, *pool.shape[2:], dtype=pool.dtype)


def without_the_dtype(pool: torch.Tensor, requests: int, steps: int) -> torch.Tensor:
    return torch.empty(pool.shape[0], requests, steps, *pool.shape[2:], device=pool.device)


def steps_before_requests(pool: torch.Tensor, requests: int, steps: int) -> torch.Tensor:
    return pool.new_empty(pool.shape[0], steps, requests, *pool.shape[2:])


def moved_there(pool: torch.Tensor, requests: int, steps: int) -> torch.Tensor:
    layers, _, *state = pool.shape
    return torch.empty(layers, requests, steps, *state, dtype=pool.dtype, device="cuda").to(pool.device)


def forgets_to_return(pool: torch.Tensor, requests: int, steps: int) -> None:
    pool.new_empty(pool.shape[0], requests, steps, *pool.shape[2:])


WRONG_ANSWERS: dict[str, list[tuple[object, str]]] = {
    "mamba_scatter.misplaced": [
        (only_the_cpu, "src on cuda:1"),
        (not_on_the_first_gpu, "expected     []"),
        (without_an_index, "expected     []"),
        (lambda tensors: "src", "you answered src"),
    ],
    "mamba_scatter.guard": [
        (any_gpu_will_do, "on cuda:1\n  your guard said nothing"),
        (a_bool_is_an_index, "torch.bool"),
        (only_int64, "torch.int32"),
        (dtype_first, "your guard said dst_indices_raw must have an integer dtype"),
        (looks_at_values, "no CUDA graph could capture it"),
        (asserts, "raised AssertionError"),
        (a_complex_is_an_index, "torch.complex64"),
        (of_another_class, "it raised RuntimeError: dst_indices_raw must be on dst's device cuda:0, got cpu"),
    ],
    "mamba_scatter.predict": [
        ({**PREDICTIONS, "C": "dst_indices_raw must be on dst's device cuda:0, got cpu"}, "the layout of src"),
        ({**PREDICTIONS, "D": PREDICTIONS["A"]}, "returns before its checks"),
        ({**PREDICTIONS, "B": PREDICTIONS["A"]}, "all four agree"),
        ({**PREDICTIONS, "A": "dst"}, "A: you predicted 'dst'"),
        ({"A": PREDICTIONS["A"]}, "B is still open"),
        ({**PREDICTIONS, "A": f"DeviceError: {PREDICTIONS['A']}", "E": ...}, "E is still open"),
    ],
    "mamba_scatter.rank": [
        (on_the_second_gpu, "a pool on cuda:0 got a scratch on cuda:1"),
        (on_no_device, "got a scratch on cpu"),
        (on_the_current_gpu, "a pool on cuda:1 got a scratch on cuda:0"),
        (without_the_dtype, "a scratch of torch.float32"),
        (steps_before_requests, "src holds only 3"),
        (forgets_to_return, "it returned None"),
        (moved_there, "the scratch was made on cuda:0 and moved from there"),
    ],
}
