"""Plausible wrong answers to the exercises of the ReplaySSM decode, with words that the check must use about each."""

from __future__ import annotations

from typing import Any

import torch


def measured_against_mixed_qkv(arguments: dict[str, Any]) -> dict[str, torch.device]:
    home = arguments["mixed_qkv"].device
    tensors = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    return {name: tensor.device for name, tensor in tensors.items() if tensor.device != home}


def measured_against_the_first_gpu(arguments: dict[str, Any]) -> dict[str, torch.device]:
    tensors = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    return {name: tensor.device for name, tensor in tensors.items() if str(tensor.device) != "cuda:0"}


def everything_is_a_tensor(arguments: dict[str, Any]) -> dict[str, torch.device]:
    return {name: value.device for name, value in arguments.items() if value.device != arguments["out"].device}


def only_no_gpu_at_all(arguments: dict[str, Any]) -> dict[str, torch.device]:
    tensors = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    return {name: tensor.device for name, tensor in tensors.items() if not tensor.is_cuda}


def b_is_never_astray(arguments: dict[str, Any]) -> dict[str, torch.device]:
    tensors = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    return {name: tensor.device for name, tensor in tensors.items() if tensor.device != arguments["b"].device}


PREDICTED = {
    "A": "`g_cache` must have dtype",
    "B": "All inputs must be on",
    "C": "ReplaySSM inputs must be",
    "D": "",
    "E": "`write_pos` must be a 1D",
}


def pools(mixed_qkv: torch.Tensor, slots: int, H: int, HV: int, K: int, V: int, L: int) -> dict[str, torch.Tensor]:
    return {
        "initial_state": mixed_qkv.new_zeros(slots, HV, V, K, dtype=torch.float32),
        "d_cache": mixed_qkv.new_zeros(slots, HV, L, V),
        "k_cache": mixed_qkv.new_zeros(slots, H, L, K),
        "g_cache": mixed_qkv.new_zeros(slots, HV, L, K, dtype=torch.float32),
    }


def always_on_the_first_gpu(mixed_qkv: torch.Tensor, *sizes: int) -> dict[str, torch.Tensor]:
    return {name: torch.zeros_like(pool, device="cuda:0") for name, pool in pools(mixed_qkv, *sizes).items()}


def one_ring_forgotten(mixed_qkv: torch.Tensor, *sizes: int) -> dict[str, torch.Tensor]:
    made = pools(mixed_qkv, *sizes)
    return {**made, "k_cache": torch.zeros(made["k_cache"].shape, dtype=mixed_qkv.dtype)}


def gates_as_the_activations(mixed_qkv: torch.Tensor, *sizes: int) -> dict[str, torch.Tensor]:
    made = pools(mixed_qkv, *sizes)
    return {**made, "g_cache": made["g_cache"].to(mixed_qkv.dtype)}


def rings_in_float32(mixed_qkv: torch.Tensor, *sizes: int) -> dict[str, torch.Tensor]:
    return {name: pool.float() for name, pool in pools(mixed_qkv, *sizes).items()}


def always_bf16(mixed_qkv: torch.Tensor, *sizes: int) -> dict[str, torch.Tensor]:
    made = pools(mixed_qkv, *sizes)
    return {name: pool if pool.dtype == torch.float32 else pool.to(torch.bfloat16) for name, pool in made.items()}


def state_as_the_activations(mixed_qkv: torch.Tensor, *sizes: int) -> dict[str, torch.Tensor]:
    made = pools(mixed_qkv, *sizes)
    return {**made, "initial_state": made["initial_state"].to(mixed_qkv.dtype)}


def state_of_ones(mixed_qkv: torch.Tensor, *sizes: int) -> dict[str, torch.Tensor]:
    made = pools(mixed_qkv, *sizes)
    return {**made, "initial_state": made["initial_state"] + 1}


def never_back(write_pos: torch.Tensor, force_flush: torch.Tensor | None, length: int) -> torch.Tensor:
    return write_pos + 1


def in_place(write_pos: torch.Tensor, force_flush: torch.Tensor | None, length: int) -> torch.Tensor:
    flushed = write_pos == length - 1
    if force_flush is not None:
        flushed |= force_flush != 0
    return write_pos.add_(1).masked_fill(flushed, 0)


def forced_forgotten(write_pos: torch.Tensor, force_flush: torch.Tensor | None, length: int) -> torch.Tensor:
    return (write_pos + 1) % length


def flags_are_ones(write_pos: torch.Tensor, force_flush: torch.Tensor | None, length: int) -> torch.Tensor:
    flushed = write_pos == length - 1
    return (write_pos + 1).masked_fill(flushed if force_flush is None else flushed | (force_flush == 1), 0)


def back_too_early(write_pos: torch.Tensor, force_flush: torch.Tensor | None, length: int) -> torch.Tensor:
    return (write_pos + 1) % max(length - 1, 1)


def in_int64(write_pos: torch.Tensor, force_flush: torch.Tensor | None, length: int) -> torch.Tensor:
    return (write_pos.long() + 1) % length


def on_the_host(write_pos: torch.Tensor, force_flush: torch.Tensor | None, length: int) -> torch.Tensor:
    forced = [0] * len(write_pos) if force_flush is None else force_flush.tolist()
    moved = [
        0 if force or position == length - 1 else position + 1
        for position, force in zip(write_pos.tolist(), forced, strict=True)
    ]
    return torch.tensor(moved, dtype=torch.int32)


def left_on_the_cpu(write_pos: torch.Tensor, force_flush: torch.Tensor | None, length: int) -> torch.Tensor:
    flushed = write_pos == length - 1
    if force_flush is not None:
        flushed |= force_flush != 0
    return (write_pos + 1).masked_fill(flushed, 0).to("cpu")


WRONG_ANSWERS: dict[str, list[tuple[object, str]]] = {
    "kda_replayssm.strays": [
        (measured_against_mixed_qkv, "with the tensors on cuda:1 and mixed_qkv on cuda:0"),
        (measured_against_the_first_gpu, "with the tensors on cuda:1 and nothing elsewhere"),
        (everything_is_a_tensor, "it raised AttributeError"),
        (only_no_gpu_at_all, "with the tensors on cuda:0 and k_cache on cuda:1"),
        (b_is_never_astray, "and a on cuda:1, b on cuda:1, A_log on cuda:1"),
    ],
    "kda_replayssm.predict": [
        ({**PREDICTED, "A": "ReplaySSM inputs must be"}, "before their device"),
        ({**PREDICTED, "B": "ReplaySSM inputs must be"}, "the device of the state is checked long before"),
        ({**PREDICTED, "C": "`force_flush` must be on the same"}, "a sentence of its own, after it"),
        ({**PREDICTED, "D": "`ssm_state_indices` must"}, "guards read no values"),
        ({**PREDICTED, "A": "`g_cache` must have"}, "other messages begin like that too"),
        ({**PREDICTED, "E": "`write_pos` must"}, "other messages begin like that too"),
        ({letter: said for letter, said in PREDICTED.items() if letter != "D"}, "D is still open"),
        ({**PREDICTED, "A": "g_cache must have dtype"}, "your words are in it, but they have to be its beginning"),
        ({**PREDICTED, "E": "ReplaySSM decode only supports CUDA tensors."}, "before anybody asks for a GPU"),
    ],
    "kda_replayssm.pools": [
        (always_on_the_first_gpu, "All inputs must be on the same device."),
        (one_ring_forgotten, "k_cache on cpu"),
        (gates_as_the_activations, "`g_cache` must have dtype torch.float32."),
        (rings_in_float32, "d_cache is torch.float32 for activations of torch.bfloat16"),
        (always_bf16, "d_cache is torch.bfloat16 for activations of torch.float16"),
        (state_as_the_activations, "now it is torch.bfloat16"),
        (state_of_ones, "begins with a state of zeros"),
    ],
    "kda_replayssm.advance": [
        (in_place, "leave it as it is"),
        (never_back, "There is no entry 4, so the kernel will answer NaN"),
        (forced_forgotten, "apply them twice"),
        (flags_are_ones, "force_flush 7"),
        (back_too_early, "write_pos 2, force_flush 0: you went to 0, it should be 3"),
        (in_int64, "int32 tensor [B]"),
        (on_the_host, "no CUDA graph could hold it"),
        (left_on_the_cpu, "on cpu, where the next call refuses it"),
    ],
}
