"""Sparse MLA prefill as one Triton kernel: FP8 scores, online softmax, 16-bit weighted sum of values.

One program serves one query token, 64 of its heads and one half of the 512 value channels. The halves repeat the
scores, which are cheap, so that the accumulator [64, 256] fits into the registers of four warps: nothing spills, and
on Hopper two programs share a multiprocessor, one of them multiplying while the other waits.
"""

from __future__ import annotations

import triton
import triton.language as tl

VALUE_CHANNELS = 512
BLOCK_HEADS = 64

# Keys per step and launch options. On Hopper five stages hide the gather behind the products of the step before.
# Elsewhere a pipeline costs spills; with other matrix instructions the accumulator wants eight warps.
# tests/test_sparse_mla_compiles.py shows the figures.
HOPPER_TILE = {"BLOCK_K": 32, "num_warps": 4, "num_stages": 5}
NVIDIA_TILE = {"BLOCK_K": 32, "num_warps": 8, "num_stages": 1}
AMD_TILE = {"BLOCK_K": 32, "num_warps": 4, "num_stages": 1}

_LOG2_E = tl.constexpr(1.4426950408889634)
_LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _gather(rows_ptr, row_size, rows, channels, exists):
    """FP8 values [rows, channels] of a pool. A row that does not exist is not read and counts as zeros."""
    # int64: a cache may hold more than 2^31 elements.
    offsets = rows.to(tl.int64)[:, None] * row_size + channels[None, :]
    return tl.load(rows_ptr + offsets, mask=exists[:, None], other=0.0)


# A cache of another size is no reason to compile again.
@triton.jit(do_not_specialize=["s_kv"])
def sparse_mla_prefill_kernel(
    q_ptr,
    kv_ptr,
    indices_ptr,
    q_scale_ptr,
    kv_scale_ptr,
    attn_sink_ptr,
    topk_length_ptr,
    out_ptr,
    max_logits_ptr,
    lse_ptr,
    sm_scale,
    s_kv,
    topk,
    HEADS: tl.constexpr,
    D_TAIL: tl.constexpr,
    D_V: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Attention of one token's block of heads to the token's own keys, for one half of the value channels.

    Shapes as in :func:`kernels.sparse_mla_q8kv8_prefill_fwd`, everything contiguous; D_TAIL = d_qk - D_V. Without a
    sink or lengths their pointers are None.

    Grid: (tokens x blocks of heads x 2 halves,).
    """
    HALF: tl.constexpr = D_V // 2
    D_QK: tl.constexpr = D_V + D_TAIL
    half = tl.program_id(0) % 2
    block = tl.program_id(0) // 2
    token = (block // (HEADS // BLOCK_H)).to(tl.int64)
    heads = (block % (HEADS // BLOCK_H)) * BLOCK_H + tl.arange(0, BLOCK_H)
    rows = token * HEADS + heads
    everywhere = tl.full([BLOCK_H], True, tl.int1)
    # The channels whose values this program sums, those it needs for scores only, and the tail that has no values.
    own = half * HALF + tl.arange(0, HALF)
    other = (1 - half) * HALF + tl.arange(0, HALF)

    q_own = _gather(q_ptr, D_QK, rows, own, everywhere)
    q_other = _gather(q_ptr, D_QK, rows, other, everywhere)
    if D_TAIL:
        tail = D_V + tl.arange(0, D_TAIL)
        q_tail = _gather(q_ptr, D_QK, rows, tail, everywhere)
    kv_scale = tl.load(kv_scale_ptr)
    # Logits in base 2, because exp2 is the instruction. The factor may be negative, so the maximum below is taken of
    # the scaled logits: the largest raw score would be the smallest logit.
    logit_scale = sm_scale * tl.load(q_scale_ptr) * kv_scale * _LOG2_E
    num_keys = topk
    if topk_length_ptr is not None:
        # Lengths are not checked by default, since reading them would stall the host; a wrong one must stay harmless.
        num_keys = tl.minimum(tl.load(topk_length_ptr + token), topk)

    top = tl.full([BLOCK_H], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([BLOCK_H, HALF], tl.float32)
    for start in range(0, num_keys, BLOCK_K):
        place = start + tl.arange(0, BLOCK_K)
        index = tl.load(indices_ptr + token * topk + place, mask=place < num_keys, other=-1)
        valid = (index >= 0) & (index < s_kv)
        k_own = _gather(kv_ptr, D_QK, index, own, valid)
        # The second product runs in fp16: every e4m3 value is exact there, and its values need no transposition,
        # which FP8 matrix instructions would. Converted before the scores exist, while registers are free.
        values = k_own.to(tl.float16)

        scores = tl.dot(q_own, tl.trans(k_own))
        k_other = _gather(kv_ptr, D_QK, index, other, valid)
        scores = tl.dot(q_other, tl.trans(k_other), scores)
        if D_TAIL:
            k_tail = _gather(kv_ptr, D_QK, index, tail, valid)
            scores = tl.dot(q_tail, tl.trans(k_tail), scores)
        logits = tl.where(valid[None, :], scores * logit_scale, float("-inf"))

        new_top = tl.maximum(top, tl.max(logits, 1))
        # Before the first valid key the maximum is -inf, and -inf - -inf is NaN.
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)
        keep = tl.exp2(top - shift)
        weights = tl.exp2(logits - shift[:, None])
        total = total * keep + tl.sum(weights, 1)
        acc = tl.dot(weights.to(tl.float16), values, acc * keep[:, None])
        top = new_top

    # Where any key is valid, the largest weight is 1. A NaN in q or in a valid key is not empty and stays visible.
    empty = total == 0.0
    max_logits = tl.where(total == total, top * _LN_2, total)
    lse = tl.where(empty, float("inf"), max_logits + tl.log(tl.where(empty, 1.0, total)))
    denominator = tl.where(empty, 1.0, total)
    if attn_sink_ptr is not None:
        denominator += tl.exp2(tl.load(attn_sink_ptr + heads) * _LOG2_E - tl.where(empty, 0.0, top))
    out = acc * tl.where(empty, 0.0, kv_scale / denominator)[:, None]
    tl.store(out_ptr + rows[:, None] * D_V + own[None, :], out.to(tl.bfloat16))
    # Both halves hold the same statistics; one of them writes.
    writes = everywhere & (half == 0)
    tl.store(max_logits_ptr + rows, max_logits, mask=writes)
    tl.store(lse_ptr + rows, lse, mask=writes)
