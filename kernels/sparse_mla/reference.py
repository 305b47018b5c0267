"""Sparse MLA prefill in plain PyTorch and float64, for any device and for reading."""

from __future__ import annotations

import torch

VALUE_CHANNELS = 512
# Tokens at a time: the gathered rows of each are topk x d_qk float64 values.
_CHUNK = 32


def sparse_mla_prefill_reference(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    q_scale: torch.Tensor,
    kv_scale: torch.Tensor,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention of every token to the cache rows that its indices name, with nothing rounded on the way.

    Args: as :func:`kernels.sparse_mla_q8kv8_prefill_fwd`.

    Returns:
        out [s_q, h_q, 512], max_logits and lse [s_q, h_q] (natural logarithm), all float64.
    """
    s_q, h_q, _ = q.shape
    out = torch.empty(s_q, h_q, VALUE_CHANNELS, dtype=torch.float64, device=q.device)
    max_logits = torch.empty(s_q, h_q, dtype=torch.float64, device=q.device)
    lse = torch.empty_like(max_logits)
    for begin in range(0, s_q, _CHUNK):
        chunk = slice(begin, begin + _CHUNK)
        valid = _valid(indices[chunk, 0], kv.shape[0], None if topk_length is None else topk_length[chunk])
        keys = _rows(kv, indices[chunk, 0], valid) * kv_scale.double()
        queries = q[chunk].double() * q_scale.double() * sm_scale
        out[chunk], max_logits[chunk], lse[chunk] = _attend(queries, keys, valid, attn_sink)
    return out, max_logits, lse


def _valid(indices: torch.Tensor, s_kv: int, lengths: torch.Tensor | None) -> torch.Tensor:
    """Which of the indices [tokens, topk] name a row of the cache that counts."""
    valid = (indices >= 0) & (indices < s_kv)
    if lengths is not None:
        valid &= torch.arange(indices.shape[1], device=indices.device) < lengths[:, None]
    return valid


def _rows(kv: torch.Tensor, indices: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Rows [tokens, topk, d_qk] of the cache in float64, zeros where the index is not valid."""
    rows = torch.zeros(*indices.shape, kv.shape[2], dtype=torch.float64, device=kv.device)
    # As bytes, since PyTorch does not index every FP8 dtype on every device.
    picked = kv.view(torch.uint8)[indices[valid].long(), 0]
    rows[valid] = picked.view(kv.dtype).double()
    return rows


def _attend(
    queries: torch.Tensor, keys: torch.Tensor, valid: torch.Tensor, sink: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Softmax attention of [tokens, heads, d_qk] to [tokens, topk, d_qk]; the values are the keys' first channels."""
    logits = torch.einsum("thd,tkd->thk", queries, keys).masked_fill(~valid[:, None], -torch.inf)
    max_logits = logits.amax(-1)
    empty = ~valid.any(-1)[:, None].expand_as(max_logits)
    shift = max_logits.masked_fill(empty, 0.0)
    weights = torch.exp(logits - shift[..., None])
    total = weights.sum(-1)
    denominator = total if sink is None else total + torch.exp(sink.double() - shift)
    out = torch.einsum("thk,tkd->thd", weights, keys[..., :VALUE_CHANNELS]) / denominator[..., None]
    return out.masked_fill(empty[..., None], 0.0), max_logits, (shift + total.log()).masked_fill(empty, torch.inf)
