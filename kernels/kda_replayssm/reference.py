"""The decode step in plain PyTorch, one row after the other: what the kernel is compared with."""

from __future__ import annotations

import torch


def _gates(a: torch.Tensor, A_log: torch.Tensor, dt_bias: torch.Tensor, lower_bound: float | None) -> torch.Tensor:
    """The log decays [HV, K] of one row from its ``a`` [HV, K]."""
    A = A_log.exp()[:, None]
    x = a + dt_bias
    if lower_bound is not None:
        return lower_bound * torch.sigmoid(A * x)
    return -A * torch.where(x > 20.0, x, torch.log1p(torch.exp(x.clamp(max=20.0))))


def _unit(x: torch.Tensor) -> torch.Tensor:
    """Rows of ``x`` divided by their Euclidean length (1e-6 under the root keeps a zero row at zero)."""
    return x / torch.sqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def _replayed(state: torch.Tensor, d: torch.Tensor, k: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """The recurrence over the ring entries [c, HV, ...], oldest first, from the checkpoint ``state`` [HV, V, K]."""
    for d_j, k_j, g_j in zip(d, k, g, strict=True):
        state = state * g_j.exp()[:, None, :] + d_j[:, :, None] * k_j[:, None, :]
    return state


def kda_replayssm_decode_reference(
    mixed_qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    scale: float,
    initial_state: torch.Tensor,
    d_cache: torch.Tensor,
    k_cache: torch.Tensor,
    g_cache: torch.Tensor,
    out: torch.Tensor,
    ssm_state_indices: torch.Tensor,
    write_pos: torch.Tensor,
    force_flush: torch.Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    lower_bound: float | None = None,
    *,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One decode step of Kimi Delta Attention over a checkpoint and a ring, written as the plain recurrence.

    The kernel unrolls the replay into one matrix product; here the ring's entries are applied one after the other, so
    that the two have little in common but the result. Like the kernel it updates ``out``, ``initial_state`` and the
    caches in place. Unlike the kernel it reads the indices on the host and checks nothing. See Kimi Linear
    (arXiv:2510.26692) for the recurrence.

    Args:
        mixed_qkv: [B, 2 * H * K + HV * V], packed query, key and value heads.
        a: [B, HV * K] or [B, HV, K], gate pre-activation per key channel.
        b: [B, HV], pre-activation of the write strength; its sigmoid is rounded to this dtype.
        A_log: [HV], log of the gate's slope.
        dt_bias: [HV * K] or [HV, K], added to ``a``.
        scale: Factor on the query, usually ``K ** -0.5``.
        initial_state: [slots, HV, V, K], the checkpoint.
        d_cache: [slots, HV, L, V], ring of updates.
        k_cache: [slots, H, L, K], ring of keys.
        g_cache: [slots, HV, L, K], ring of log decays.
        out: [B, 1, HV, V], written.
        ssm_state_indices: [B], the slot of each row; negative for padding.
        write_pos: [B], how many ring entries are in use.
        force_flush: [B], nonzero to fold the ring into the checkpoint before it is full, or None.
        use_qk_l2norm_in_kernel: Whether queries and keys are scaled to unit length.
        lower_bound: None for the softplus gate, else the least log decay of the sigmoid gate.
        dtype: What everything is computed in.

    Returns:
        ``out`` and ``initial_state``, the tensors that were passed.
    """
    if out.numel() == 0:
        return out, initial_state
    batch = mixed_qkv.shape[0]
    slots, value_heads, V, K = initial_state.shape
    key_heads, L = k_cache.shape[1:3]
    group = value_heads // key_heads
    forced = [0] * batch if force_flush is None else force_flush.tolist()
    for row, (slot, cursor) in enumerate(zip(ssm_state_indices.tolist(), write_pos.tolist(), strict=True)):
        if slot < 0:
            out[row] = 0.0
            continue
        if slot >= slots or not 0 <= cursor < L:
            out[row] = float("nan")
            continue

        q, k, v = mixed_qkv[row].to(dtype).split([key_heads * K, key_heads * K, value_heads * V])
        q, k, v = q.view(key_heads, K), k.view(key_heads, K), v.view(value_heads, V)
        if use_qk_l2norm_in_kernel:
            q, k = _unit(q), _unit(k)
        q_v, k_v = q.repeat_interleave(group, 0), k.repeat_interleave(group, 0)
        beta = torch.sigmoid(b[row].to(dtype)).to(b.dtype).to(dtype)[:, None]
        g = _gates(
            a[row].reshape(value_heads, K).to(dtype),
            A_log.to(dtype),
            dt_bias.reshape(value_heads, K).to(dtype),
            lower_bound,
        )

        ring_d = d_cache[slot, :, :cursor].to(dtype).transpose(0, 1)
        ring_k = k_cache[slot, :, :cursor].to(dtype).transpose(0, 1).repeat_interleave(group, 1)
        ring_g = g_cache[slot, :, :cursor].to(dtype).transpose(0, 1)
        S = _replayed(initial_state[slot].to(dtype), ring_d, ring_k, ring_g) * g.exp()[:, None, :]
        delta = beta * (v - torch.einsum("hvk,hk->hv", S, k_v))
        S = S + delta[:, :, None] * k_v[:, None, :]
        out[row, 0] = (scale * torch.einsum("hvk,hk->hv", S, q_v)).to(out.dtype)

        if cursor == L - 1 or forced[row] != 0:
            initial_state[slot] = S.to(initial_state.dtype)
        else:
            d_cache[slot, :, cursor] = delta.to(d_cache.dtype)
            k_cache[slot, :, cursor] = k.to(k_cache.dtype)
            g_cache[slot, :, cursor] = g.to(g_cache.dtype)
    return out, initial_state
