"""The Triton kernel: one decode step of Kimi Delta Attention over a checkpoint and a ring of rank-one updates.

Writing the whole [V, K] state back at every token is what makes a plain recurrent decode slow. Here the state is only a
*checkpoint*; every step appends one rank-one update (``d``, ``k`` and its log decay ``g``) to a short ring, and replays
the ring on top of the checkpoint. Replaying one entry after the other would be the recurrence itself,
``S <- S * exp(g_j) + d_j ⊗ k_j``. Unrolled, entry j has decayed by everything that came after it, which turns the
replay into one matrix product:

    S = checkpoint * exp(g_0 + ... + g_{c-1})  +  d^T . (k * decay),   decay_j = exp(g_{j+1} + ... + g_{c-1})

Each program owns one row of the batch, one value head and one tile of its value channels, so no two programs share a
piece of the state. They do share the ring: all tiles of a head read its keys and gates, and all heads of a group read
the same keys. Only entries before the cursor are read and only the entry at the cursor is written, by exactly one
program, so the order in which programs run cannot matter.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _round_to(x, dtype: tl.constexpr, INTERPRETED: tl.constexpr):
    """Casts fp32 to ``dtype``, rounding to nearest even as GPUs do.

    Triton's interpreter truncates casts to bf16 and loses the carry in casts to FP8, so under it the value is rounded
    beforehand, by carrying into the bits that the cast will keep.
    """
    if INTERPRETED:
        if dtype.is_bf16() or dtype.is_fp8():
            dropped = 23 - dtype.fp_mantissa_width
            bits = x.to(tl.int32, bitcast=True)
            bits += (1 << (dropped - 1)) - 1 + ((bits >> dropped) & 1)
            x = ((bits >> dropped) << dropped).to(tl.float32, bitcast=True)
    return x.to(dtype)


@triton.jit
def _sigmoid(x):
    """1 / (1 + exp(-x)) without the overflow that exp(-x) has for large negative x."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x < 0, e, 1.0) / (1.0 + e)


@triton.jit
def _softplus(x):
    """log(1 + exp(x)) to full relative precision, also for large negative x.

    ``tl.log`` is an approximation with an absolute error near 1, which would leave nothing of softplus(-20) = 2e-9.
    With e = exp(-|x|) the series of log1p(e) = 2 atanh(e / (2 + e)) has a ratio of at most 1/9 per term.
    """
    e = tl.exp(-tl.abs(x))
    s = e / (2.0 + e)
    series = tl.full(x.shape, 1.0 / 15, tl.float32)
    for n in tl.static_range(13, 0, -2):
        series = series * s * s + 1.0 / n
    return tl.maximum(x, 0.0) + 2.0 * s * series


@triton.jit
def _log_decay(x, A, lower_bound):
    """The log of the decay of each key channel, always <= 0: -A softplus(x), or lower_bound * sigmoid(A x)."""
    if lower_bound is None:
        return -A * _softplus(x)
    else:
        return lower_bound * _sigmoid(A * x)


@triton.jit
def _load_head(ptr, offsets, mask, NORMALISE: tl.constexpr):
    """A query or key row as fp32, scaled to unit length if asked for."""
    x = tl.load(ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    if NORMALISE:
        x = x / tl.sqrt(tl.sum(x * x) + 1e-6)
    return x


@triton.jit
def _halves(x, dtype: tl.constexpr, INTERPRETED: tl.constexpr):
    """``x`` as a sum of two tiles of ``dtype``.

    Triton's interpreter multiplies bf16 wrongly; under it both are widened again.
    """
    first = _round_to(x, dtype, INTERPRETED)
    second = _round_to(x - first.to(tl.float32), dtype, INTERPRETED)
    if INTERPRETED:
        first, second = first.to(tl.float32), second.to(tl.float32)
    return first, second


@triton.jit
def _add_product(acc, d, k, OPERAND: tl.constexpr, INTERPRETED: tl.constexpr):
    """Adds d . k to ``acc`` on the matrix units, whose operands have the dtype of the output.

    Rounding an operand to 16 bits costs as much accuracy as storing the state in 16 bits would, so what the rounding
    cut off goes in as a further product; for ``d`` only if it comes from a ring of another dtype.
    """
    d_first, d_second = _halves(d.to(tl.float32), OPERAND, INTERPRETED)
    k_first, k_second = _halves(k, OPERAND, INTERPRETED)
    acc = tl.dot(d_first, k_first, acc, input_precision="ieee")
    if OPERAND != tl.float32:
        acc = tl.dot(d_first, k_second, acc, input_precision="ieee")
        if d.dtype != OPERAND:
            acc = tl.dot(d_second, k_first, acc, input_precision="ieee")
    return acc


@triton.jit
def _replay(
    checkpoint, cursor, channels, values, in_k, in_v,
    d_base, d_entry_stride, d_v_stride,
    k_base, k_entry_stride, k_k_stride,
    g_base, g_entry_stride, g_k_stride,
    RING_BLOCKS: tl.constexpr, BLOCK_L: tl.constexpr, OPERAND: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """The state [BLOCK_V, BLOCK_K] after the ``cursor`` entries of the ring.

    The ring is walked in blocks, newest first, because an entry's decay needs only what is newer than itself. Summing
    just those gates, instead of subtracting two long sums, also keeps small decays exact. Entries at and past the
    cursor may hold anything, NaN included: they are masked, never multiplied by zero.
    """
    update = tl.zeros(checkpoint.shape, tl.float32)
    newer = tl.zeros(channels.shape, tl.float32)
    for block in tl.range(RING_BLOCKS, num_stages=1):
        entry = ((RING_BLOCKS - 1 - block) * BLOCK_L + tl.arange(0, BLOCK_L)).to(tl.int64)
        k_ring = tl.load(
            k_base + entry[:, None] * k_entry_stride + channels[None, :] * k_k_stride,
            mask=(entry < cursor)[:, None] & in_k[None, :],
            other=0.0,
        ).to(tl.float32)
        d_ring = tl.load(
            d_base + entry[None, :] * d_entry_stride + values[:, None] * d_v_stride,
            mask=(entry < cursor)[None, :] & in_v[:, None],
            other=0.0,
        )
        g_next = tl.load(
            g_base + (entry + 1)[:, None] * g_entry_stride + channels[None, :] * g_k_stride,
            mask=(entry + 1 < cursor)[:, None] & in_k[None, :],
            other=0.0,
        )
        decay = tl.exp(newer[None, :] + tl.cumsum(g_next, 0, reverse=True))
        newer += tl.sum(g_next, 0)
        update = _add_product(update, d_ring, k_ring * decay, OPERAND, INTERPRETED)
    total = newer + tl.load(g_base + channels * g_k_stride, mask=in_k & (cursor > 0), other=0.0)
    return checkpoint * tl.exp(total)[None, :] + update


@triton.jit
def kda_replayssm_decode_kernel(
    mixed_qkv_ptr, a_ptr, b_ptr, A_log_ptr, dt_bias_ptr, scale, lower_bound,
    initial_state_ptr, d_cache_ptr, k_cache_ptr, g_cache_ptr, out_ptr,
    ssm_state_indices_ptr, write_pos_ptr, force_flush_ptr, slots,
    mixed_qkv_stride, b_stride, state_slot_stride, state_head_stride, state_v_stride,
    d_slot_stride, d_head_stride, d_entry_stride, d_v_stride,
    k_slot_stride, k_head_stride, k_entry_stride, k_k_stride,
    g_slot_stride, g_head_stride, g_entry_stride, g_k_stride,
    ssm_state_indices_stride, write_pos_stride, force_flush_stride,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, L: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_L: tl.constexpr, RING_BLOCKS: tl.constexpr,
    NORMALISE: tl.constexpr, OPERAND: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """One (row, value head, value tile) of the batch; the grid is B * HV * ceil(V / BLOCK_V) programs.

    Shapes and dtypes are those of ``kernels.kda_replayssm.api``. Strides count elements. ``lower_bound`` and
    ``force_flush_ptr`` may be None, which compiles the other branch away.
    """
    TILES: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    program = tl.program_id(0)
    tile = program % TILES
    # int64 from here on: a pool may hold more than 2^31 elements, whichever of its dims is the outermost.
    head = ((program // TILES) % HV).to(tl.int64)
    row = (program // (TILES * HV)).to(tl.int64)
    key_head = head // (HV // H)
    channels = tl.arange(0, BLOCK_K).to(tl.int64)
    values = (tile * BLOCK_V + tl.arange(0, BLOCK_V)).to(tl.int64)
    in_k = channels < K
    in_v = values < V

    # Judged in the index's own dtype: a huge unsigned value is out of range, not negative. A dead row goes on with slot
    # and cursor 0 and every access masked; an early return would only put one more round trip before the loads.
    index = tl.load(ssm_state_indices_ptr + row * ssm_state_indices_stride)
    cursor = tl.load(write_pos_ptr + row * write_pos_stride)
    padding = index < 0
    live = (index >= 0) & (index < slots) & (cursor >= 0) & (cursor < L)
    slot = tl.where(live, index.to(tl.int64), 0)
    cursor = tl.where(live, cursor, 0)

    qkv = mixed_qkv_ptr + row * mixed_qkv_stride
    q = _load_head(qkv, key_head * K + channels, in_k, NORMALISE)
    k = _load_head(qkv, (H + key_head) * K + channels, in_k, NORMALISE)
    v = tl.load(qkv + 2 * H * K + head * V + values, mask=in_v, other=0.0).to(tl.float32)
    x = tl.load(a_ptr + (row * HV + head) * K + channels, mask=in_k, other=0.0).to(tl.float32)
    x += tl.load(dt_bias_ptr + head * K + channels, mask=in_k, other=0.0).to(tl.float32)
    g = _log_decay(x, tl.exp(tl.load(A_log_ptr + head).to(tl.float32)), lower_bound)
    beta = _sigmoid(tl.load(b_ptr + row * b_stride + head).to(tl.float32))
    beta = _round_to(beta, b_ptr.dtype.element_ty, INTERPRETED).to(tl.float32)

    state_base = initial_state_ptr + slot * state_slot_stride + head * state_head_stride
    state_ptrs = state_base + values[:, None] * state_v_stride + channels[None, :]
    in_state = in_v[:, None] & in_k[None, :]
    checkpoint = tl.load(state_ptrs, mask=in_state & live, other=0.0).to(tl.float32)
    d_base = d_cache_ptr + slot * d_slot_stride + head * d_head_stride
    k_base = k_cache_ptr + slot * k_slot_stride + key_head * k_head_stride
    g_base = g_cache_ptr + slot * g_slot_stride + head * g_head_stride
    S = _replay(
        checkpoint, cursor, channels, values, in_k, in_v,
        d_base, d_entry_stride, d_v_stride,
        k_base, k_entry_stride, k_k_stride,
        g_base, g_entry_stride, g_k_stride,
        RING_BLOCKS, BLOCK_L, OPERAND, INTERPRETED,
    )  # fmt: skip

    decayed = S * tl.exp(g)[None, :]
    delta = beta * (v - tl.sum(decayed * k[None, :], 1))
    o = scale * (tl.sum(decayed * q[None, :], 1) + delta * tl.sum(k * q))
    o = tl.where(live, o, tl.where(padding, 0.0, float("nan")))
    tl.store(out_ptr + (row * HV + head) * V + values, _round_to(o, out_ptr.dtype.element_ty, INTERPRETED), mask=in_v)

    flush = cursor == L - 1
    if force_flush_ptr is not None:
        flush = flush | (tl.load(force_flush_ptr + row * force_flush_stride) != 0)
    if live & flush:
        state = decayed + delta[:, None] * k[None, :]
        tl.store(state_ptrs, _round_to(state, initial_state_ptr.dtype.element_ty, INTERPRETED), mask=in_state)
    if live & (flush == 0):
        entry = cursor.to(tl.int64)
        d_entry = _round_to(delta, d_cache_ptr.dtype.element_ty, INTERPRETED)
        tl.store(d_base + entry * d_entry_stride + values * d_v_stride, d_entry, mask=in_v)
        if tile == 0:
            tl.store(g_base + entry * g_entry_stride + channels * g_k_stride, g, mask=in_k)
            if head % (HV // H) == 0:
                k_entry = _round_to(k, k_cache_ptr.dtype.element_ty, INTERPRETED)
                tl.store(k_base + entry * k_entry_stride + channels * k_k_stride, k_entry, mask=in_k)
