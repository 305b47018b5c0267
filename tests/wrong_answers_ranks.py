"""Plausible wrong answers to the exercises about ranks, with words that the check must use about each."""

from __future__ import annotations

from typing import Any

import torch

Requests = list[tuple[int, int, int]]
REFUSED: dict[str, list[int]] = {"A": [1, 2, 3], "B": [], "C": [1, 2, 3], "D": [], "E": [1, 3]}


def on_the_host(requests: Requests, pool: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.tensor(requests, dtype=torch.int64).reshape(-1, 3).t().contiguous().unbind())


def empty_lists_are_floats(requests: Requests, pool: torch.Tensor) -> list[torch.Tensor]:
    return [torch.tensor([request[place] for request in requests], device=pool.device) for place in range(3)]


def columns_of_a_table(requests: Requests, pool: torch.Tensor) -> list[torch.Tensor]:
    table = torch.tensor(requests, dtype=torch.int64, device=pool.device).reshape(-1, 3)
    return [table.select(1, place) for place in range(3)]


def nothing_for_nobody(requests: Requests, pool: torch.Tensor) -> list[torch.Tensor]:
    columns = zip(*requests, strict=True)
    return [torch.tensor(column, dtype=torch.int64, device=pool.device) for column in columns]


def device_alone(told: dict[str, Any], src: torch.Tensor) -> torch.Tensor:
    return torch.zeros(**{**told, "device": src.device})


def everything_from_the_scratch(told: dict[str, Any], src: torch.Tensor) -> torch.Tensor:
    return src.new_zeros(src.shape[0], *told["size"][1:])


def not_filled(told: dict[str, Any], src: torch.Tensor) -> torch.Tensor:
    return src.new_ones(src.shape[0], *told["size"][1:], dtype=told["dtype"])


WRONG_ANSWERS: dict[str, list[tuple[object, str]]] = {
    "ranks.refused": [
        ({**REFUSED, "A": [0, 1, 2, 3]}, "A: you answered [0, 1, 2, 3], the guards refuse [1, 2, 3]"),
        ({**REFUSED, "C": []}, "belongs to a thread"),
        ({**REFUSED, "D": [1, 2, 3]}, "sees one GPU"),
        ({**REFUSED, "E": [1, 2, 3]}, "the second rank"),
        ({"A": [1, 2, 3]}, "B: you answered None"),
    ],
    "ranks.idle": [
        (on_the_host, "must be on out_verify_offsets_scratch's device cuda:1, got cpu"),
        (empty_lists_are_floats, "for 0 requests and a pool on cuda:1 the kernel said"),
        (columns_of_a_table, "req_pool_indices must be contiguous"),
        (nothing_for_nobody, "not three tensors"),
    ],
    "ranks.stage": [
        (device_alone, "Layer dimension mismatch"),
        (everything_from_the_scratch, "told torch.bfloat16"),
        (not_filled, "begin with zeros"),
    ],
}
