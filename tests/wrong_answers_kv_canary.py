"""Plausible wrong answers to the exercises of the kv-canary plan, with words that the check must use about each."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from kernels.guards import tensors_of

NAMES = {
    "lut_tensor": "full_to_swa_index_mapping",
    "out_write_offsets": "write_plan_out.write_offsets",
    "out_write_seed_slot_indices": "write_plan_out.write_seed_slot_indices",
    "out_verify_num_valid": "verify_plan_out.verify_num_valid",
    "out_verify_enable": "verify_plan_out.enable",
    "out_verify_prev_slot_indices": "verify_plan_out.verify_prev_slot_indices",
}
PREDICTED = {
    "A": "kv-canary: prefix_lens must have dtype",
    "B": "kv-canary: req_pool_indices must be on",
    "C": "kv-canary: launch_canary_plan_kernels requires full_to_swa",
    "D": "",
    "E": "kv-canary: launch_plan_entries_kernel requires",
}


def measured_against_the_plan(arguments: dict[str, Any]) -> list[str]:
    reference = arguments["verify_plan_out"].verify_slot_indices.device
    tensors = tensors_of(arguments)
    return sorted({name.partition(".")[0] for name, tensor in tensors.items() if tensor.device != reference})


def plans_not_looked_into(arguments: dict[str, Any]) -> list[str]:
    devices = {name: value.device for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    home = Counter(devices.values()).most_common(1)[0][0]
    return [name for name, device in devices.items() if device != home]


def inputs_alone_have_a_vote(arguments: dict[str, Any]) -> list[str]:
    tensors = tensors_of(arguments)
    home = Counter(t.device for name, t in tensors.items() if "." not in name).most_common(1)[0][0]
    return sorted({name.partition(".")[0] for name, tensor in tensors.items() if tensor.device != home})


def field_by_field(arguments: dict[str, Any]) -> list[str]:
    devices = {name: tensor.device for name, tensor in tensors_of(arguments).items()}
    home = Counter(devices.values()).most_common(1)[0][0]
    return [name for name, device in devices.items() if device != home]


def not_on_a_gpu(arguments: dict[str, Any]) -> list[str]:
    return sorted({name.partition(".")[0] for name, tensor in tensors_of(arguments).items() if not tensor.is_cuda})


def columns(requests: list[tuple[int, int, int]], **how: Any) -> list[torch.Tensor]:
    return [torch.tensor([request[i] for request in requests], **how) for i in range(3)]


def always_the_first_gpu(requests: list[tuple[int, int, int]], table: torch.Tensor) -> list[torch.Tensor]:
    device = torch.device("cuda", 0) if table.is_cuda else table.device
    return columns(requests, device=device, dtype=torch.int64)


def dtype_of_the_table(requests: list[tuple[int, int, int]], table: torch.Tensor) -> list[torch.Tensor]:
    return columns(requests, device=table.device, dtype=table.dtype)


def dtype_guessed(requests: list[tuple[int, int, int]], table: torch.Tensor) -> list[torch.Tensor]:
    return columns(requests, device=table.device)


def idle_step_forgotten(requests: list[tuple[int, int, int]], table: torch.Tensor) -> list[torch.Tensor]:
    rows, prefixes, extends = zip(*requests, strict=True)
    return [torch.tensor(column, device=table.device) for column in (rows, prefixes, extends)]


def columns_mixed_up(requests: list[tuple[int, int, int]], table: torch.Tensor) -> list[torch.Tensor]:
    swapped = [(row, extend, prefix) for row, prefix, extend in requests]
    return columns(swapped, device=table.device, dtype=torch.int64)


def one_matrix(requests: list[tuple[int, int, int]], table: torch.Tensor) -> torch.Tensor:
    return torch.tensor(requests, dtype=torch.int64, device=table.device)


def views_of_one_matrix(requests: list[tuple[int, int, int]], table: torch.Tensor) -> list[torch.Tensor]:
    matrix = torch.tensor(requests, dtype=torch.int64, device=table.device).view(-1, 3)
    return [matrix.select(1, i) for i in range(3)]


WRONG_ANSWERS: dict[str, list[tuple[object, str]]] = {
    "kv_canary.names": [
        ({**NAMES, "out_verify_enable": "verify_plan_out.verify_enable"}, "out_verify_enable: you answered"),
        ({**NAMES, "lut_tensor": "req_to_token"}, "the argument called full_to_"),
        ({**NAMES, "out_write_offsets": "write_offsets"}, "write_plan_out, and at its fields"),
        ({name: passed for name, passed in NAMES.items() if name != "lut_tensor"}, "you answered nothing"),
    ],
    "kv_canary.mend": [
        (measured_against_the_plan, "every field of verify_plan_out on cuda:1"),
        (plans_not_looked_into, "expected     ['verify_plan_out']"),
        (field_by_field, "you answered ['verify_plan_out.verify_slot_indices'"),
        (not_on_a_gpu, "every field of verify_plan_out on cuda:1"),
        (
            inputs_alone_have_a_vote,
            "expected     ['extend_seq_lens', 'prefix_lens', 'req_pool_indices', 'req_to_token']",
        ),
    ],
    "kv_canary.predict": [
        ({**PREDICTED, "A": "kv-canary: req_pool_indices must be on"}, "all dtypes are looked at before any device"),
        ({**PREDICTED, "B": "kv-canary: out_verify_num_valid must be on"}, "what the others are measured against"),
        ({**PREDICTED, "C": "kv-canary: req_to_token must be on"}, "refused before any tensor is looked at"),
        ({**PREDICTED, "D": "kv-canary: req_pool_indices must be on"}, "made in plain PyTorch"),
        ({**PREDICTED, "E": "kv-canary: req_to_verify_expected_tokens must be on"}, "whether the lengths are there"),
        ({**PREDICTED, "A": "kv-canary: "}, "A: you predicted 'kv-canary: '"),
        ({**PREDICTED, "A": "prefix_lens must have dtype"}, "your words are in it, but they have to be its beginning"),
        ({**PREDICTED, "B": "kv-canary: req_pool_indices must"}, "other messages begin like that too"),
        ({**PREDICTED, "C": "kv-canary: launch_canary_plan_kernels"}, "other messages begin like that too"),
        ({**PREDICTED, "C": ...}, "C is still open; all before it are right"),
        ({letter: said for letter, said in PREDICTED.items() if letter != "D"}, "D is still open"),
    ],
    "kv_canary.scheduler": [
        (always_the_first_gpu, "with req_to_token on cuda:1"),
        (dtype_of_the_table, "req_pool_indices must have dtype torch.int64, got torch.int32"),
        (dtype_guessed, "req_pool_indices must have dtype torch.int64, got torch.float32"),
        (idle_step_forgotten, "for the requests [] it raised ValueError"),
        (columns_mixed_up, "prefix_lens is [1, 4], not [7, 12]"),
        (one_matrix, "not three tensors"),
        (views_of_one_matrix, "req_pool_indices must be contiguous"),
    ],
}
