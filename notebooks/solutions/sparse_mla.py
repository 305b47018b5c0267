"""One way to solve each exercise of the FP8 sparse MLA prefill."""

from __future__ import annotations

from typing import Any

import torch

import kernels

predictions: dict[str, str] = {
    "A": "out must have dtype torch.bfloat16, got torch.float16",
    "B": "sparse_mla_q8kv8_prefill_fwd requires h_q padded to a positive multiple of 64, got 16",
    "C": "q_scale must be a CUDA tensor",
    "D": "",
    "E": "topk_length must be int32 with shape (2,), got (2,)/torch.int64",
}


def allocate_outputs(q: torch.Tensor) -> dict[str, torch.Tensor]:
    """Buffers for the results of one prefill of q [s_q, h_q, d_qk]."""
    s_q, h_q, _ = q.shape
    out = torch.empty(s_q, h_q, 512, dtype=torch.bfloat16, device=q.device)
    max_logits = torch.empty(s_q, h_q, dtype=torch.float32, device=q.device)
    return {"out": out, "max_logits": max_logits, "lse": torch.empty_like(max_logits)}


def attend(logits: torch.Tensor, values: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Attention of one head: logits [keys], values [keys, d], valid [keys] bool; returns [d]."""
    if not valid.any():
        return values.new_zeros(values.shape[1])
    kept = logits[valid]
    weights = torch.exp(kept - kept.max())
    return weights @ values[valid] / weights.sum()


def prefill_any_heads(q: torch.Tensor, attn_sink: torch.Tensor, **others: Any) -> torch.Tensor:
    """Attention of q [s_q, h_q, d_qk] with sinks [h_q], for any h_q."""
    padded, sinks = kernels.pad_q8kv8_heads(q, attn_sink)
    out, _, _ = kernels.sparse_mla_q8kv8_prefill_fwd(padded, attn_sink=sinks, **others)
    return out[:, : q.shape[1]]
