"""Sparse MLA prefill for Hopper GPUs (sm_90): both products in FP8, three roles that work side by side.

The portable kernel multiplies the weights with the values in fp16, because FP8 matrix instructions want the values
transposed. Here the product is turned round instead: ``outᵀ = Vᵀ · Pᵀ`` takes Vᵀ from registers, and a transposing
load of 16-bit words brings it there without rewriting it: a word holds two channels of one key, and a byte permutation
splits even and odd channels. (Keys arrive permuted within each group of 16; the weights are stored in the same order.)

One program per multiprocessor takes (token, 64 heads) after (token, 64 heads). Its warps have three roles:

- the *producer* (4 warps) copies the query block, then the token's cache rows, 128 a tile, into a ring of stages;
- the *scorer* (4 warps) keeps the queries in registers, computes 64 x 128 scores a tile, and hands on their softmax
  weights in FP8 together with the factor by which a new running maximum shrinks what was summed before;
- the *accumulator* (8 warps) sums weighted values, 64 heads x 512 channels, all in registers.

The weights are multiplied by 2^8, so that e4m3 keeps its three bits for weights down to 2^-14 of the largest. A tile's
weights take the place of its tail channels in the ring, which only the scores need, so up to three tiles of weights may
be under way and neither consumer waits for the other.

What it takes on chip is exact: 24 + 168 + 2 x 160 registers (per thread of a warp group) are the whole register file,
and the scorer at 168 and the accumulator at 160 are the least with which ptxas still overlaps matrix instructions
(it says so in notes C7511 and C7512 otherwise). The order of loads in the accumulator is chosen for that.

Measured on an H200 (torch 2.11, Triton 3.6): 1024 tokens x 64 heads, 576 channels, topk 2048 take 276 µs, which is 1056
TFLOP/s, with a relative error of 1.41e-2 (docs/performance.md has the rest). The accumulator is what limits it: the
scorer alone would take 223 µs, and leaving the softmax out saves 2.
"""

from __future__ import annotations

from functools import cache

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere.async_copy import async_copy_global_to_shared
from triton.experimental.gluon.language.nvidia.ampere.async_copy import mbarrier_arrive as arrive_when_copied
from triton.experimental.gluon.language.nvidia.ampere.async_copy import wait_group as wait_for_copies
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.launch import Launched, launch

# Gluon is experimental and its names change from release to release. Where one that is needed is missing, importing
# this module fails, and the portable kernel runs instead.
try:
    from triton.experimental.gluon.language import barrier
except ImportError:
    from triton.experimental.gluon.language import thread_barrier as barrier  # Triton 3.6
_REINTERPRET = gl.shared_memory_descriptor._reinterpret  # used as a method below; `reinterpret` in later releases

# Found on an H200 with Triton 3.6: see docs/performance.md.
TUNED = {"STAGES": 3, "SCORER_REGISTERS": 168, "PRODUCER_REGISTERS": 24, "num_warps": 8}

BLOCK_HEADS = 64

_HEADS = gl.constexpr(BLOCK_HEADS)
_TILE = gl.constexpr(128)
_HALF = gl.constexpr(64)
_VALUES = gl.constexpr(512)
_TAIL = gl.constexpr(64)
_PRODUCER_WARPS = gl.constexpr(4)
_SCORER_WARPS = gl.constexpr(4)
_ACCUMULATOR_WARPS = gl.constexpr(8)

_FP8 = gl.constexpr(gl.float8e4nv)
_VALUES_SHARED = gl.constexpr(gl.NVMMASharedLayout(128, 8, 2))
_TAILS_SHARED = gl.constexpr(gl.NVMMASharedLayout(64, 8, 2))
_WORDS_SHARED = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
_VECTOR_SHARED = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))

_LOG2_E = gl.constexpr(1.4426950408889634)
_LN_2 = gl.constexpr(0.6931471805599453)
# Weights are at most 2^8; e4m3 ends at 448.
_WEIGHT_BITS = gl.constexpr(8)
_WEIGHT_UNIT = gl.constexpr(2.0**-8)
# A score is a sum of 576 products of numbers up to 448. Infinity would become NaN in a difference.
_BELOW_ANY_SCORE = gl.constexpr(-(2.0**28))
_SMALLEST_SCALE = gl.constexpr(2.0**-126)


@gluon.jit
def _keys_of(token, topk_length_ptr, topk):
    """Number of a token's indices that count, and of the tiles they fill."""
    num_keys = topk
    if topk_length_ptr is not None:
        # Lengths are not checked by default, since reading them would stall the host; a wrong one must stay harmless.
        num_keys = gl.minimum(gl.maximum(gl.load(topk_length_ptr + token), 0), topk)
    return num_keys, (num_keys + _TILE - 1) // _TILE


@gluon.jit
def _copy_rows(shared, rows_ptr, rows, exists, D_QK: gl.constexpr, FIRST: gl.constexpr, layout: gl.constexpr):
    """Start copying channels FIRST ... of global rows into shared memory; rows that do not exist become zeros."""
    channels = FIRST + gl.arange(0, shared.shape[1], gl.SliceLayout(0, layout))
    # int64: a cache may hold more than 2^31 elements.
    pointers = rows_ptr + (rows.to(gl.int64) * D_QK)[:, None] + channels[None, :]
    async_copy_global_to_shared(shared, pointers, mask=exists[:, None] & (channels[None, :] >= 0))


@gluon.jit
def _copy_cache_rows(shared, kv_ptr, index, s_kv, D_QK: gl.constexpr, FIRST: gl.constexpr, layout: gl.constexpr):
    exists = (index >= 0) & (index < s_kv)
    _copy_rows(shared, kv_ptr, gl.where(exists, index, 0), exists, D_QK, FIRST, layout)


@gluon.jit
def _producer(
    q_ptr,
    kv_ptr,
    indices_ptr,
    topk_length_ptr,
    ring,
    s_kv,
    topk,
    head_blocks,
    work,
    D_QK: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Fill the ring: for each item of work one stage with the query block, then one per tile of keys."""
    ROWS: gl.constexpr = gl.BlockedLayout([1, 16], [4, 8], [_PRODUCER_WARPS, 1], [1, 0])
    TAIL_ROWS: gl.constexpr = gl.BlockedLayout([1, 16], [8, 4], [_PRODUCER_WARPS, 1], [1, 0])
    values, tails, full, half_empty, empty = ring
    row = gl.arange(0, _HALF, gl.SliceLayout(1, ROWS))
    tail_row = gl.arange(0, _HALF, gl.SliceLayout(1, TAIL_ROWS))
    step = 0
    for item in range(gl.program_id(0), work, gl.num_programs(0)):
        token = (item // head_blocks).to(gl.int64)
        num_keys, tiles = _keys_of(token, topk_length_ptr, topk)
        places = indices_ptr + token * topk
        index = gl.load(places + row, mask=row < num_keys, other=-1)

        stage, free = step % STAGES, ((step // STAGES) & 1) ^ 1
        block_ptr = q_ptr + gl.cast(item, gl.int64) * (_HEADS * D_QK)
        mbarrier.wait(half_empty.index(stage), free)
        _copy_rows(values.index(stage).slice(0, _HEADS), block_ptr, row, row >= 0, D_QK, 0, ROWS)
        mbarrier.wait(empty.index(stage), free)
        if D_QK > _VALUES:
            tail = tails.index(stage).slice(0, _HEADS)
            _copy_rows(tail, block_ptr, tail_row, tail_row >= 0, D_QK, _VALUES, TAIL_ROWS)
        arrive_when_copied(full.index(stage), increment_count=False)
        step += 1

        for tile in range(tiles):
            stage, free = step % STAGES, ((step // STAGES) & 1) ^ 1
            for half in gl.static_range(2):
                current = index
                # One half ahead, so that its latency is hidden.
                place = (2 * tile + half + 1) * _HALF + row
                index = gl.load(places + place, mask=place < num_keys, other=-1)
                mbarrier.wait(half_empty.index(stage) if half == 0 else empty.index(stage), free)
                _copy_cache_rows(values.index(stage).slice(half * _HALF, _HALF), kv_ptr, current, s_kv, D_QK, 0, ROWS)
            if D_QK > _VALUES:
                for half in gl.static_range(2):
                    # Read once more, from the L1 cache: there are no registers to keep them in.
                    place = (2 * tile + half) * _HALF + tail_row
                    current = gl.load(places + place, mask=place < num_keys, other=-1)
                    tail = tails.index(stage).slice(half * _HALF, _HALF)
                    _copy_cache_rows(tail, kv_ptr, current, s_kv, D_QK, _VALUES, TAIL_ROWS)
            arrive_when_copied(full.index(stage), increment_count=False)
            step += 1
    wait_for_copies(0)


@gluon.jit
def _scores(q, q_tail, values, tail, D_QK: gl.constexpr, layout: gl.constexpr):
    """Start the raw scores [64 heads, 128 keys] of a tile."""
    scores = gl.zeros([_HEADS, _TILE], gl.float32, layout)
    scores = warpgroup_mma(q, values.permute([1, 0]), scores, use_acc=False, is_async=True)
    if D_QK > _VALUES:
        scores = warpgroup_mma(q_tail, tail.permute([1, 0]), scores, is_async=True)
    return scores


@gluon.jit
def _by_thread(rows):
    """[64, 128] as [64, .., 4, ..]: in the third dim from the end lie the four threads that share a row."""
    return rows.reshape([_HEADS, 4, 4, 4, 2])


@gluon.jit
def _partial_sums(weights):
    """[64, 4]: the sum of a row's weights that each of its four threads holds."""
    return gl.sum(gl.sum(gl.sum(_by_thread(weights), 4), 1), 1)


@gluon.jit
def _row_max(scores):
    # As a tree: one after the other, each would wait for the one before.
    return gl.max(gl.max(gl.max(gl.max(_by_thread(scores), 4), 1), 1), 1)


@gluon.jit
def _in_value_order(weights):
    """Weights in FP8, keys ordered within each group of 16 as the accumulator finds them in its registers."""
    keys = weights.to(_FP8).reshape([_HEADS, 8, 2, 4, 2]).permute([0, 1, 3, 2, 4])
    return keys.reshape([_HEADS, _TILE])


@gluon.jit
def _logit_scale(sm_scale, q_scale, kv_scale):
    """Factor from raw scores to logits in base 2, as a positive number and a sign."""
    signed = sm_scale * q_scale * kv_scale * _LOG2_E
    sign = gl.where(signed < 0, -1.0, 1.0)
    scale = signed * sign
    # Zero times the -inf of an invalid key would be NaN.
    return gl.where(scale < _SMALLEST_SCALE, _SMALLEST_SCALE, scale), sign


@gluon.jit
def _finish(top, total, scale, kv_scale, sink_ptr, max_logits_ptr, lse_ptr, ending, phase):
    """Hand on the factor for an item's output; store its statistics. All for 64 heads."""
    final, finished, stored = ending
    head = gl.arange(0, _HEADS, top.type.layout)
    # Where any key is valid, the largest weight is 1. A NaN is not empty and stays visible.
    nothing = total == 0.0
    max_logit = top * scale * _LN_2
    denominator = total
    if sink_ptr is not None:
        denominator += gl.exp(gl.load(sink_ptr + head) - max_logit)
    mbarrier.wait(stored, phase ^ 1)
    final.store(gl.where(nothing, 0.0, kv_scale * _WEIGHT_UNIT / denominator))
    barrier()
    mbarrier.arrive(finished, count=1)
    max_logit = gl.where(total == total, max_logit, total)
    gl.store(max_logits_ptr + head, gl.where(nothing, float("-inf"), max_logit))
    gl.store(lse_ptr + head, gl.where(nothing, float("inf"), max_logit + gl.log(total)))


@gluon.jit
def _scorer(
    indices_ptr, q_scale_ptr, kv_scale_ptr, topk_length_ptr, attn_sink_ptr, max_logits_ptr, lse_ptr,
    ring, handover, ending, bias, sm_scale, s_kv, topk, head_blocks, work, D_QK: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Scores and their softmax weights; at the end of an item its statistics and the factor for its output."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [_SCORER_WARPS, 1], [16, 128, 32])
    QUERIES: gl.constexpr = gl.DotOperandLayout(0, SCORES, 4)
    HEADS: gl.constexpr = gl.SliceLayout(1, SCORES)
    KEYS: gl.constexpr = gl.SliceLayout(0, SCORES)
    PLACES: gl.constexpr = gl.BlockedLayout([4], [32], [_SCORER_WARPS], [0])
    values, tails, full, half_empty, empty = ring
    weights, factors, ready = handover
    column = gl.arange(0, _TILE, PLACES)
    kv_scale = gl.load(kv_scale_ptr)
    scale, sign = _logit_scale(sm_scale, gl.load(q_scale_ptr), kv_scale)

    step = 0
    tiles_done = 0
    items_done = 0
    for item in range(gl.program_id(0), work, gl.num_programs(0)):
        token = (item // head_blocks).to(gl.int64)
        num_keys, tiles = _keys_of(token, topk_length_ptr, topk)
        places = indices_ptr + token * topk

        stage = step % STAGES
        mbarrier.wait(full.index(stage), (step // STAGES) & 1)
        q = values.index(stage).slice(0, _HEADS).load(QUERIES)
        q_tail = q
        if D_QK > _VALUES:
            q_tail = tails.index(stage).slice(0, _HEADS).load(QUERIES)
        barrier()
        mbarrier.arrive(half_empty.index(stage), count=1)
        mbarrier.arrive(empty.index(stage), count=1)
        step += 1

        top = gl.full([_HEADS], _BELOW_ANY_SCORE, gl.float32, HEADS)
        sums = _partial_sums(gl.zeros([_HEADS, _TILE], gl.float32, SCORES))
        for tile in range(tiles):
            stage = step % STAGES
            mbarrier.wait(full.index(stage), (step // STAGES) & 1)
            # The rows came by ordinary copies; matrix instructions read through another path.
            fence_async_shared()
            scores = _scores(q, q_tail, values.index(stage), tails.index(stage), D_QK, SCORES)
            place = tile * _TILE + column
            index = gl.load(places + place, mask=place < num_keys, other=-1)
            exists = (index >= 0) & (index < s_kv)
            plain = (gl.min(exists.to(gl.int32), 0) != 0) & (sign > 0)
            scores = warpgroup_mma_wait(0, [scores])
            if not plain:
                # With a negative factor the smallest score is the largest logit, hence the sign.
                bias.store(gl.where(exists, 0.0, float("-inf")))
                scores = scores * sign + bias.load(KEYS)[None, :]

            new_top = gl.maximum(top, gl.convert_layout(_row_max(scores), HEADS))
            # The weights go where the tail channels were, once all warps have multiplied those.
            barrier()
            keep = gl.exp2((top - new_top) * scale)
            top = new_top
            p = gl.exp2(scores * scale - (top * scale - _WEIGHT_BITS)[:, None])
            weights.index(stage).store(_in_value_order(p))
            factors.index(stage).store(keep)
            fence_async_shared()
            barrier()
            mbarrier.arrive(ready.index(tiles_done % STAGES), count=1)
            sums = sums * gl.convert_layout(keep, gl.SliceLayout(1, sums.type.layout))[:, None] + _partial_sums(p)
            step += 1
            tiles_done += 1

        total = gl.convert_layout(gl.sum(sums, 1), HEADS) * _WEIGHT_UNIT
        row = gl.cast(item, gl.int64) * _HEADS
        sink_ptr = attn_sink_ptr
        if attn_sink_ptr is not None:
            sink_ptr = attn_sink_ptr + (item % head_blocks) * _HEADS
        phase = items_done & 1
        _finish(top, total, scale, kv_scale, sink_ptr, max_logits_ptr + row, lse_ptr + row, ending, phase)
        items_done += 1


@gluon.jit
def _words(values, group: gl.constexpr, side: gl.constexpr):
    """Words [128 pairs of channels, 32 keys] of one side (half of the channels) and one group of keys of a tile."""
    # What the transposing matrix load of 16-bit words gives each thread.
    LOADED: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 8], [8, 0], [0, 16]],
        [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]],
        [[16, 0], [32, 0], [64, 0]],
        [],
        [128, 32],
    )
    words = values._reinterpret(gl.int16, [_TILE, _VALUES // 2], _WORDS_SHARED)
    return words.slice(32 * group, 32).slice(128 * side, 128, dim=1).permute([1, 0]).load(LOADED)


@gluon.jit
def _as_operand(channels, layout: gl.constexpr):
    """Bytes [128 channels, 32 keys] as the FP8 operand that they already are, were the keys in another order."""
    channels = channels.reshape([128, 2, 2, 4, 2]).permute([0, 1, 3, 2, 4]).reshape([128, 32])
    return gl.convert_layout(channels.to(_FP8, bitcast=True), layout, assert_trivial=True)


@gluon.jit
def _even(words, layout: gl.constexpr):
    even = gl.inline_asm_elementwise(
        "prmt.b32 $0, $1, $2, 0x6420;", "=r,r,r", [words], dtype=gl.int8, is_pure=True, pack=4
    )
    return _as_operand(even, layout)


@gluon.jit
def _odd(words, layout: gl.constexpr):
    odd = gl.inline_asm_elementwise(
        "prmt.b32 $0, $1, $2, 0x7531;", "=r,r,r", [words], dtype=gl.int8, is_pure=True, pack=4
    )
    return _as_operand(odd, layout)


@gluon.jit
def _multiply(values, weights, half_empty, a0, b0, a1, b1, layout: gl.constexpr):
    """Add a tile's weighted values to even and odd channels of the first (a0, b0) and second side (a1, b1).

    One product at a time, with the next words on their way meanwhile: more at once would need registers that are not
    there, and the other warp group fills the gaps.
    """
    first = _words(values, 0, 0)
    for group in gl.static_range(4):
        weight = weights.slice(32 * group, 32, dim=1).permute([1, 0])
        a0 = warpgroup_mma(_even(first, layout), weight, a0, is_async=True)
        a0 = warpgroup_mma_wait(0, [a0])
        b0 = warpgroup_mma(_odd(first, layout), weight, b0, is_async=True)
        second = _words(values, group, 1)
        if group == 1:
            barrier()
            mbarrier.arrive(half_empty, count=1)
        b0 = warpgroup_mma_wait(0, [b0])
        a1 = warpgroup_mma(_even(second, layout), weight, a1, is_async=True)
        a1 = warpgroup_mma_wait(0, [a1])
        b1 = warpgroup_mma(_odd(second, layout), weight, b1, is_async=True)
        if group < 3:
            first = _words(values, group + 1, 0)
        b1 = warpgroup_mma_wait(0, [b1])
    return a0, b0, a1, b1


@gluon.jit
def _store(pairs_ptr, even, odd, factor, side: gl.constexpr, layout: gl.constexpr):
    """Store one side of the output [64 heads, 256 pairs of channels], two bfloat16 in a word."""
    # One instruction for two channels; a cast to bfloat16 alone takes a slow one for each.
    words = gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;",
        "=r,f,f",
        [even * factor[None, :], odd * factor[None, :]],
        dtype=gl.int32,
        is_pure=True,
        pack=1,
    )
    pair = side * 128 + gl.arange(0, 128, gl.SliceLayout(1, layout))
    head = gl.arange(0, _HEADS, gl.SliceLayout(0, layout))
    gl.store(pairs_ptr + head[None, :] * (_VALUES // 2) + pair[:, None], words)


@gluon.jit
def _accumulator(
    out_ptr, topk_length_ptr, ring, handover, ending, topk, head_blocks, work, STAGES: gl.constexpr
):  # fmt: skip
    """Sum the weighted values of an item and store them."""
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [_ACCUMULATOR_WARPS, 1], [16, 64, 32])
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, SUMS, 4)
    HEADS: gl.constexpr = gl.SliceLayout(0, SUMS)
    values, _tails, full, half_empty, empty = ring
    weights, factors, ready = handover
    final, finished, stored = ending
    pairs_ptr = out_ptr.to(gl.pointer_type(gl.int32), bitcast=True)
    step = 0
    tiles_done = 0
    items_done = 0
    for item in range(gl.program_id(0), work, gl.num_programs(0)):
        _num_keys, tiles = _keys_of((item // head_blocks).to(gl.int64), topk_length_ptr, topk)
        a0 = gl.zeros([128, _HEADS], gl.float32, SUMS)
        b0 = gl.zeros([128, _HEADS], gl.float32, SUMS)
        a1 = gl.zeros([128, _HEADS], gl.float32, SUMS)
        b1 = gl.zeros([128, _HEADS], gl.float32, SUMS)
        # The stage with the queries is the scorer's alone.
        step += 1
        for _tile in range(tiles):
            stage = step % STAGES
            mbarrier.wait(ready.index(tiles_done % STAGES), (tiles_done // STAGES) & 1)
            # Every warp has seen that they are ready. That is enough, but racecheck follows it only through a barrier
            # of the whole role, which costs nothing that could be measured.
            barrier()
            keep = factors.index(stage).load(HEADS)
            a0 = a0 * keep[None, :]
            b0 = b0 * keep[None, :]
            a1 = a1 * keep[None, :]
            b1 = b1 * keep[None, :]
            # Long since full, else there were no weights. This makes the copies visible, and its branch keeps ptxas
            # from loading values while the factors still take up registers.
            mbarrier.wait(full.index(stage), (step // STAGES) & 1)
            a0, b0, a1, b1 = _multiply(
                values.index(stage), weights.index(stage), half_empty.index(stage), a0, b0, a1, b1, OPERAND
            )
            barrier()
            mbarrier.arrive(empty.index(stage), count=1)
            step += 1
            tiles_done += 1

        mbarrier.wait(finished, items_done & 1)
        factor = final.load(HEADS)
        barrier()
        mbarrier.arrive(stored, count=1)
        items_done += 1
        block_ptr = pairs_ptr + gl.cast(item, gl.int64) * (_HEADS * _VALUES // 2)
        _store(block_ptr, a0, b0, factor, 0, SUMS)
        _store(block_ptr, a1, b1, factor, 1, SUMS)


@gluon.jit
def _barriers(number: gl.constexpr, count: gl.constexpr):
    """A row of barriers that ``count`` arrivals complete."""
    barriers = gl.allocate_shared_memory(gl.int64, [number, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(number):
        mbarrier.init(barriers.index(i), count=count)
    return barriers


# One compiled form for every size: nothing is gained from knowing that one is 1 or a multiple of 16.
@gluon.jit(do_not_specialize=["s_kv", "topk_tiles", "head_blocks", "work"])
def sparse_mla_hopper_kernel(
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
    topk_tiles,
    head_blocks,
    work,
    D_QK: gl.constexpr,
    STAGES: gl.constexpr,
    SCORER_REGISTERS: gl.constexpr,
    PRODUCER_REGISTERS: gl.constexpr,
):
    """Attention of every (token, 64 heads) to the token's own keys.

    Shapes as in :func:`kernels.sparse_mla_q8kv8_prefill_fwd`, everything contiguous, q and kv at multiples of 16 bytes;
    topk_tiles = topk / 128, head_blocks = h_q / 64, work = tokens x head_blocks. Without a sink or lengths their
    pointers are None.

    Grid: (at most one program per multiprocessor,).
    """
    topk = topk_tiles * _TILE
    values = gl.allocate_shared_memory(_FP8, [STAGES, _TILE, _VALUES], _VALUES_SHARED)
    tails = gl.allocate_shared_memory(_FP8, [STAGES, _TILE, _TAIL], _TAILS_SHARED)
    full = _barriers(STAGES, 32 * _PRODUCER_WARPS)
    ring = (values, tails, full, _barriers(STAGES, 1), _barriers(STAGES, 1))
    # A tile's weights take the place of its tail channels, which only the scores need: the same number of bytes.
    weights = tails._reinterpret(_FP8, [STAGES, _HEADS, _TILE], _VALUES_SHARED)
    factors = gl.allocate_shared_memory(gl.float32, [STAGES, _HEADS], _VECTOR_SHARED)
    handover = (weights, factors, _barriers(STAGES, 1))
    final = gl.allocate_shared_memory(gl.float32, [_HEADS], _VECTOR_SHARED)
    ending = (final, _barriers(1, 1).index(0), _barriers(1, 1).index(0))
    bias = gl.allocate_shared_memory(gl.float32, [_TILE], _VECTOR_SHARED)
    barrier()
    # The tuples stand in the call because a constant in a named one would become a run-time value.
    gl.warp_specialize(
        [
            (_accumulator, (out_ptr, topk_length_ptr, ring, handover, ending, topk, head_blocks, work, STAGES)),
            (
                _scorer,
                (
                    indices_ptr, q_scale_ptr, kv_scale_ptr, topk_length_ptr, attn_sink_ptr, max_logits_ptr, lse_ptr,
                    ring, handover, ending, bias, sm_scale, s_kv, topk, head_blocks, work, D_QK, STAGES,
                ),
            ),
            (
                _producer,
                (q_ptr, kv_ptr, indices_ptr, topk_length_ptr, ring, s_kv, topk, head_blocks, work, D_QK, STAGES),
            ),
        ],
        [_SCORER_WARPS, _PRODUCER_WARPS],
        [SCORER_REGISTERS, PRODUCER_REGISTERS],
    )  # fmt: skip


def takes(q: torch.Tensor, kv: torch.Tensor, out: torch.Tensor) -> bool:
    """Whether the kernel can run on tensors at these addresses: it copies 16 bytes at a time and stores 4."""
    return not ((q.data_ptr() | kv.data_ptr()) & 15 or out.data_ptr() & 3)


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def prefill(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    q_scale: torch.Tensor,
    kv_scale: torch.Tensor,
    attn_sink: torch.Tensor | None,
    topk_length: torch.Tensor | None,
    out: torch.Tensor,
    max_logits: torch.Tensor,
    lse: torch.Tensor,
) -> Launched | None:
    """Launch the kernel on checked arguments that it ``takes``, as :func:`kernels.sparse_mla_q8kv8_prefill_fwd`."""
    s_q, h_q, d_qk = q.shape
    head_blocks = h_q // BLOCK_HEADS
    work = s_q * head_blocks
    return launch(
        sparse_mla_hopper_kernel,
        (min(work, _multiprocessors(q.device)),),
        q,
        kv,
        indices,
        q_scale,
        kv_scale,
        attn_sink,
        topk_length,
        out,
        max_logits,
        lse,
        float(sm_scale),
        kv.shape[0],
        indices.shape[2] // 128,
        head_blocks,
        work,
        device=q.device,
        D_QK=d_qk,
        **TUNED,
    )
