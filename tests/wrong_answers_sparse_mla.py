"""Plausible wrong answers to the exercises of the sparse MLA prefill, with words that the check must use about each."""

from __future__ import annotations

from typing import Any

import torch

import kernels

PREDICTIONS = {
    "A": "out must have dtype torch.bfloat16, got torch.float16",
    "B": "sparse_mla_q8kv8_prefill_fwd requires h_q padded to a positive multiple of 64, got 16",
    "C": "q_scale must be a CUDA tensor",
    "D": "",
    "E": "topk_length must be int32 with shape (2,), got (2,)/torch.int64",
}


def allocate(device: str | None, stats: torch.dtype = torch.float32, shared: bool = False) -> object:
    def allocate_outputs(q: torch.Tensor) -> dict[str, torch.Tensor]:
        where = q.device if device is None else device
        out = torch.empty(*q.shape[:2], 512, dtype=torch.bfloat16, device=where)
        max_logits = torch.empty(q.shape[:2], dtype=stats, device=where)
        return {"out": out, "max_logits": max_logits, "lse": max_logits if shared else torch.empty_like(max_logits)}

    return allocate_outputs


def as_wide_as_q(q: torch.Tensor) -> dict[str, torch.Tensor]:
    stats = {name: q.new_empty(q.shape[:2], dtype=torch.float32) for name in ("max_logits", "lse")}
    return {"out": torch.empty_like(q, dtype=torch.bfloat16), **stats}


def in_a_tuple(q: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(allocate(None)(q).values())  # type: ignore[operator]


def weights_of_zero(logits: torch.Tensor, values: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    weights = torch.exp(logits - logits.max()) * valid
    return weights @ torch.where(valid[:, None], values, 0.0) / weights.sum()


def minus_infinity(logits: torch.Tensor, values: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    weights = torch.softmax(logits.masked_fill(~valid, -torch.inf), 0)
    return weights @ torch.where(valid[:, None], values, 0.0)


def multiplied_by_zero(logits: torch.Tensor, values: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    weights = torch.softmax(logits.masked_fill(~valid, -torch.inf), 0).nan_to_num(0.0)
    return weights @ values


def only_the_values(logits: torch.Tensor, values: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    return torch.softmax(logits, 0) @ torch.where(valid[:, None], values, 0.0)


def nan_made_zero(logits: torch.Tensor, values: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    return logits.masked_fill(~valid, -torch.inf).softmax(0).nan_to_num() @ values.nan_to_num()


def masked_logits_looked_at(logits: torch.Tensor, values: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    if not valid.any():
        return values.new_zeros(values.shape[1])
    weights = torch.exp((logits - logits[valid].max()).clamp(max=0)) * valid
    return weights @ torch.where(valid[:, None], values, 0.0) / weights.sum()


def to_64_heads(q: torch.Tensor, attn_sink: torch.Tensor, **others: Any) -> torch.Tensor:
    heads = q.shape[1]
    padded = torch.nn.functional.pad(q.view(torch.uint8), (0, 0, 0, max(0, 64 - heads))).view(q.dtype)
    sinks = torch.nn.functional.pad(attn_sink, (0, max(0, 64 - heads)))
    return kernels.sparse_mla_q8kv8_prefill_fwd(padded, attn_sink=sinks, **others)[0][:, :heads]


def without_sinks(q: torch.Tensor, attn_sink: torch.Tensor, **others: Any) -> torch.Tensor:
    padded, _ = kernels.pad_q8kv8_heads(q)
    return kernels.sparse_mla_q8kv8_prefill_fwd(padded, **others)[0][:, : q.shape[1]]


def not_padded(q: torch.Tensor, attn_sink: torch.Tensor, **others: Any) -> torch.Tensor:
    return kernels.sparse_mla_q8kv8_prefill_fwd(q, attn_sink=attn_sink, **others)[0]


def sinks_not_padded(q: torch.Tensor, attn_sink: torch.Tensor, **others: Any) -> torch.Tensor:
    padded, _ = kernels.pad_q8kv8_heads(q)
    return kernels.sparse_mla_q8kv8_prefill_fwd(padded, attn_sink=attn_sink, **others)[0][:, : q.shape[1]]


def not_sliced(q: torch.Tensor, attn_sink: torch.Tensor, **others: Any) -> torch.Tensor:
    padded, sinks = kernels.pad_q8kv8_heads(q, attn_sink)
    return kernels.sparse_mla_q8kv8_prefill_fwd(padded, attn_sink=sinks, **others)[0]


def the_last_heads(q: torch.Tensor, attn_sink: torch.Tensor, **others: Any) -> torch.Tensor:
    return not_sliced(q, attn_sink, **others)[:, -q.shape[1] :]


WRONG_ANSWERS: dict[str, list[tuple[object, str]]] = {
    "sparse_mla.predict": [
        ({**PREDICTIONS, "A": "out must be on device cuda:0, got cuda:1"}, "checked before its device"),
        ({**PREDICTIONS, "B": "kv_scale must be a torch.Tensor"}, "before the scales"),
        ({**PREDICTIONS, "D": "out, max_logits and lse must not alias each other"}, "share no byte"),
        ({**PREDICTIONS, "E": "topk_length must be a CUDA tensor"}, "E: you predicted"),
        # Words with which two messages begin are no prediction.
        ({**PREDICTIONS, "E": "topk_length must be"}, "other messages begin like that too"),
        ({"A": PREDICTIONS["A"]}, "B is still open"),
    ],
    "sparse_mla.rank": [
        (allocate("cuda:1"), "out must be on device cuda:0, got cuda:1"),
        (allocate("cpu"), "out must be on device cuda:1, got cpu"),
        (allocate(None, shared=True), "out, max_logits and lse must not alias each other"),
        (allocate(None, stats=torch.bfloat16), "max_logits must have dtype torch.float32"),
        (as_wide_as_q, "out must have shape (2, 64, 512), got (2, 64, 576)"),
        (in_a_tuple, "expected a dict"),
    ],
    "sparse_mla.masked": [
        (only_the_values, "two of eight keys valid\n"),
        (weights_of_zero, "the valid keys far below the masked ones"),
        (minus_infinity, "no key valid"),
        (multiplied_by_zero, "NaN in the masked rows"),
        (nan_made_zero, "NaN in a valid row"),
        (masked_logits_looked_at, "NaN in the masked logits"),
    ],
    "sparse_mla.heads": [
        (not_padded, "requires h_q padded to a positive multiple of 64, got 16"),
        (sinks_not_padded, "attn_sink must be float32 with shape (64,), got (16,)"),
        (not_sliced, "expected out of shape (2, 16, 512), got (2, 64, 512)"),
        (to_64_heads, "requires h_q padded to a positive multiple of 64, got 96"),
        (without_sinks, "with their sinks"),
        (the_last_heads, "the shape is right, the numbers are not"),
    ],
}
