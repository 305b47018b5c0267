"""The decode step as a Gluon kernel: the state goes from memory into registers, laid out for the matrix unit.

Gluon is Triton with the layouts written out: which thread holds which element. That is what this kernel needs. The
plain kernel in kernel.py computes the same, but there the compiler carries the [V, K] tile of the state through shared
memory on its way into the matrix product and once more on its way out, which costs more than the product. Here the
tile is loaded in the layout of an MMA accumulator, one product adds the ring's updates to it in place, the row sums
against k and q need two shuffles each, and a flush stores from the same registers.

Two things make that work:

- An accumulator gives a thread two neighbouring columns, a 16-byte load four or eight. Columns of the product are
  therefore *key channels in another order* (:func:`_to_columns`). The order costs nothing: the state's tile is only
  renamed, and the ring's keys pass through shared memory anyway.
- The ring is held newest entry first, so that entry j decays by the sum of what came before it in the tile. A thread
  has a run of eight entries of two channels, which costs half the loads of one channel and one shuffle per channel.

A bf16 state need not even be widened while it is only read (``IN_PLACE=False``): two row sums are a matrix product with
two columns. The columns are the float32 vectors, each as a sum of three bf16 numbers, which is exact to 2^-24. Only a
flush needs the state itself, in float32, and that is more registers than there are. Either some are spilled, or
(``HALVES=True``) it reads the tile once more, one half after the other, which the L1 cache serves.

A row without a slot does not return early: reading the index and then deciding is one more round trip to memory before
the first load of the state. Its loads are masked off and its result replaced.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from kernels.guards import compute_capability
from kernels.launch import Launched, early_start, gdc_wait, launch

LOG2_E = gl.constexpr(1.4426950408889634)


@dataclass(frozen=True)
class Tile:
    """How the work is cut into programs, and a program into warps.

    Attributes:
        block_v: value channels of one program.
        warps_v: warps along the value channels.
        warps_k: warps along the key channels.
        in_place: whether the state is rebuilt in registers for every step, or (bf16 only) just read unless it flushes.
        registers: most registers per thread; None leaves it to the compiler.
        halves: where the state is just read, whether a flush reads it once more, half by half.
    """

    block_v: int
    warps_v: int
    warps_k: int
    in_place: bool = True
    registers: int | None = None
    halves: bool = False


# What follows was measured on an H200 (torch 2.11, triton 3.6) and holds for its architecture alone; the figures are in
# docs/performance.md. Elsewhere the plain kernel runs.
MEASURED_ON = (9, 0)
KEY_CHANNELS = 128
# Rings by the 16 entries that one step of the matrix product takes.
RING_ROWS = (16, 32)
# Up to this many heads of rows, more and smaller programs are faster, because the GPU is not full anyway.
FEW_HEADS = 96
FEW = Tile(32, 2, 2, registers=128)
# By ring rows. Fewer registers make room for more programs at once; fewer still and the compiler spills them.
IN_PLACE = {16: Tile(64, 4, 1, registers=128), 32: Tile(64, 4, 1, registers=168)}
# A bf16 state that is only read. The spills at 168 registers are in the branch that flushes.
READ = {
    16: Tile(128, 4, 1, in_place=False, registers=168),
    32: Tile(128, 4, 1, in_place=False, registers=168, halves=True),
}
# From this many tiles on, unless rings are short, reading twice is faster than spilling.
MANY_TILES = 4096
MANY = Tile(128, 4, 1, in_place=False, registers=144, halves=True)
SHORT_RING = 8
# Operands that are taken apart need so many registers that a limit costs more than it brings.
TAKEN_APART = Tile(64, 4, 1)

_FLOATS = {torch.bfloat16, torch.float16, torch.float32}


def tile_for(
    initial_state: torch.Tensor,
    d_cache: torch.Tensor,
    k_cache: torch.Tensor,
    g_cache: torch.Tensor,
    out: torch.Tensor,
) -> Tile | None:
    """The tile that suits a checked call best, or None for a call that this kernel does not serve.

    It serves the GPU it was measured on, K = 128 and V >= 32, rings of up to 32 entries packed in their last dim, and
    rings and outputs of 16 or 32 bits.
    """
    _, HV, V, K = initial_state.shape
    L = d_cache.shape[2]
    if (
        compute_capability(initial_state.device) != MEASURED_ON
        or K != KEY_CHANNELS
        or V < FEW.block_v
        or L > RING_ROWS[-1]
        or not d_cache.stride(3) == k_cache.stride(3) == g_cache.stride(3) == 1
        or not {d_cache.dtype, k_cache.dtype, out.dtype} <= _FLOATS
    ):
        return None
    rows = ring_rows(L)
    if out.shape[0] * HV <= FEW_HEADS or V < IN_PLACE[rows].block_v:
        return FEW
    if d_cache.dtype != out.dtype or out.dtype == torch.float32:
        return TAKEN_APART
    if not initial_state.dtype == d_cache.dtype == torch.bfloat16 or V < READ[rows].block_v:
        return IN_PLACE[rows]
    many = out.shape[0] * HV * (V // MANY.block_v) >= MANY_TILES
    return MANY if many and SHORT_RING < L <= RING_ROWS[0] else READ[rows]


def ring_rows(L: int) -> int:
    """Entries of a ring of length L as the matrix product takes them."""
    return next(rows for rows in RING_ROWS if rows >= L)


@gluon.constexpr_function
def _log2(n: int) -> int:
    return n.bit_length() - 1


@gluon.constexpr_function
def _state_layout(block_v: int, K: int, vector: int, warps_v: int, warps_k: int) -> gl.DistributedLinearLayout:
    """The accumulator's layout with its columns renamed to the key channels they stand for."""
    lowest, bits, rows = _log2(vector), _log2(K), _log2(block_v)
    first_warp_k, past_warp_v = bits - _log2(warps_k), 4 + _log2(warps_v)

    channel = [[0, 1 << bit] for bit in range(bits)]
    value = [[1 << bit, 0] for bit in range(rows)]
    return gl.DistributedLinearLayout(
        reg_bases=[*channel[:lowest], value[3], *channel[lowest + 2 : first_warp_k], *value[past_warp_v:]],
        lane_bases=channel[lowest : lowest + 2] + value[:3],
        warp_bases=channel[first_warp_k:] + value[4:past_warp_v],
        block_bases=[],
        shape=[block_v, K],
    )


@gluon.constexpr_function
def _mma_layout(warps_v: int, warps_k: int) -> gl.NVMMADistributedLayout:
    return gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[warps_v, warps_k], instr_shape=[16, 8])


@gluon.constexpr_function
def _ring_layout(entries: int, K: int, warps: int) -> gl.BlockedLayout:
    """[entries, K]: a thread loads two channels at once, and half a warp shares them, each with its run of entries."""
    warps_k = min(warps, K // 32)
    warps_e = warps // warps_k
    return gl.BlockedLayout([entries // (2 * warps_e), 2], [2, 16], [warps_e, warps_k], [1, 0])


@gluon.constexpr_function
def _runs_layout(entries: int, K: int, warps: int) -> gl.BlockedLayout:
    """The same as [runs, entries of a run, K]."""
    warps_k = min(warps, K // 32)
    warps_e = warps // warps_k
    return gl.BlockedLayout([1, entries // (2 * warps_e), 2], [2, 1, 16], [warps_e, 1, warps_k], [2, 1, 0])


@gluon.constexpr_function
def _update_layout(entries: int, block_v: int, warps: int, bits: int) -> gl.BlockedLayout:
    """[entries, block_v]: loads of up to 16 bytes along the value channels."""
    vector = max(1, min(128 // bits, entries * block_v // (32 * warps)))
    lanes = min(32, block_v // vector)
    return gl.BlockedLayout([1, vector], [32 // lanes, lanes], [warps, 1], [1, 0])


@gluon.jit
def _add(a, b):
    return a + b


@gluon.jit
def _add_2(a0, a1, b0, b1):
    return a0 + b0, a1 + b1


@gluon.jit
def _add_3(a0, a1, a2, b0, b1, b2):
    return a0 + b0, a1 + b1, a2 + b2


@gluon.jit
def _sigmoid(x):
    """1 / (1 + exp(-x)) without the overflow that exp(-x) has for large negative x."""
    e = gl.exp2(-LOG2_E * gl.abs(x))
    return gl.where(x < 0, e, 1.0) / (1.0 + e)


@gluon.jit
def _softplus(x):
    """log(1 + exp(x)) to full relative precision, also for large negative x. kernel.py explains the series."""
    e = gl.exp2(-LOG2_E * gl.abs(x))
    s = e / (2.0 + e)
    square = s * s
    series = square * (1.0 / 15) + 1.0 / 13
    for n in gl.static_range(11, 0, -2):
        series = series * square + 1.0 / n
    return gl.maximum(x, 0.0) + 2.0 * s * series


@gluon.jit
def _log_decay(x, A, lower_bound):
    if lower_bound is None:
        return -A * _softplus(x)
    else:
        return lower_bound * _sigmoid(A * x)


@gluon.jit
def _scales(q_ptr, k_ptr, scale, K: gl.constexpr, NORMALISE: gl.constexpr):
    """Factors that q and k are to be multiplied with, and the dot product of the two after that.

    Every warp reads both rows whole, which costs less than to wait for the sums of the others.
    """
    channels = gl.arange(0, K, layout=gl.BlockedLayout([K // 32], [32], [gl.num_warps()], [0]))
    q = gl.load(q_ptr + channels).to(gl.float32)
    k = gl.load(k_ptr + channels).to(gl.float32)
    qq, kk, qk = gl.reduce((q * q, k * k, q * k), 0, _add_3)
    if NORMALISE:
        scale_q = scale * gl.rsqrt(qq + 1e-6)
        scale_k = gl.rsqrt(kk + 1e-6)
    else:
        scale_q = scale
        scale_k = 1.0
    return scale_q, scale_k, qk * scale_q * scale_k


@gluon.jit
def _thirds(x):
    """A float32 tensor as a sum of three bf16 tensors, exact to 2^-24."""
    high = x.to(gl.bfloat16)
    rest = x - high.to(gl.float32)
    middle = rest.to(gl.bfloat16)
    return high, middle, (rest - middle.to(gl.float32)).to(gl.bfloat16)


@gluon.jit
def _columns_of_thirds(pair):
    """Two float32 vectors [n, 2] as eight bf16 columns [n, 8], three and one of zeros for each."""
    high, middle, low = _thirds(pair)
    thirds = gl.join(gl.join(high, middle), gl.join(low, gl.zeros_like(low)))
    return thirds.permute(0, 3, 2, 1).reshape([pair.shape[0], 8])


@gluon.jit
def _sum_of_thirds(columns):
    """What :func:`_columns_of_thirds` took apart, put together after a matrix product: [n, 8] to [n, 2]."""
    return gl.sum(columns.reshape([columns.shape[0], 4, 2]), 1)


@gluon.jit
def _to_columns(x, VECTOR: gl.constexpr, WARPS_K: gl.constexpr):
    """[n, K] from key channels to the columns of an accumulator.

    A load deals a channel's bits out, highest first, to warps, registers, 4 lanes, and the vector that a thread loads
    at once; an accumulator deals a column's out to registers, warps, 4 lanes and 2 registers.
    """
    n: gl.constexpr = x.shape[0]
    K: gl.constexpr = x.shape[1]
    x = x.reshape([n, WARPS_K, K // (4 * VECTOR * WARPS_K), 4, VECTOR // 2, 2])
    return x.permute(0, 2, 4, 1, 3, 5).reshape([n, K])


@gluon.jit
def _from_columns(x, VECTOR: gl.constexpr, WARPS_K: gl.constexpr):
    """The inverse of :func:`_to_columns`."""
    n: gl.constexpr = x.shape[0]
    K: gl.constexpr = x.shape[1]
    x = x.reshape([n, K // (4 * VECTOR * WARPS_K), VECTOR // 2, WARPS_K, 4, 2])
    return x.permute(0, 3, 1, 4, 2, 5).reshape([n, K])


@gluon.jit
def _load_newest_first(
    base, STRIDE: gl.constexpr, cursor, SKIP: gl.constexpr, L: gl.constexpr, ENTRIES: gl.constexpr, K: gl.constexpr
):
    """[ENTRIES, K] whose row j is the ring's entry cursor - j - SKIP, and zero where that is not in use.

    Args:
        base: the entry at the cursor.
        STRIDE: between entries.
        cursor: how many entries are in use.
        SKIP: how many entries before the cursor's the first row is.
        L: length of the ring.
        ENTRIES: rows.
        K: key channels.
    """
    RUNS_LAYOUT: gl.constexpr = _runs_layout(ENTRIES, K, gl.num_warps())
    RUN: gl.constexpr = RUNS_LAYOUT.size_per_thread[1]
    RUNS: gl.constexpr = ENTRIES // RUN
    # Run and step are dims of their own, so that only the run depends on the thread and the steps become immediate
    # offsets of one address.
    run = gl.arange(0, RUNS, layout=gl.SliceLayout(1, gl.SliceLayout(2, RUNS_LAYOUT)))[:, None, None] * RUN
    step = gl.arange(0, RUN, layout=gl.SliceLayout(0, gl.SliceLayout(2, RUNS_LAYOUT)))[None, :, None]
    channels = gl.arange(0, K, layout=gl.SliceLayout(0, gl.SliceLayout(1, RUNS_LAYOUT)))[None, None, :]
    newest = base + (channels - (run + SKIP).to(gl.int64) * STRIDE)
    used = (step <= cursor - SKIP - run) & (step + run < L - SKIP)
    if SKIP == 0:
        used = used & (step + run > 0)
    rows = gl.load(newest - step.to(gl.int64) * STRIDE, mask=used, other=0.0)
    return gl.convert_layout(rows.reshape([ENTRIES, K]), _ring_layout(ENTRIES, K, gl.num_warps()))


@gluon.jit
def _load_updates(base, STRIDE: gl.constexpr, cursor, L: gl.constexpr, ENTRIES: gl.constexpr, BLOCK_V: gl.constexpr):
    """[BLOCK_V, ENTRIES], the same of the ring's value parts. Here one load a thread fetches all."""
    BITS: gl.constexpr = base.dtype.element_ty.primitive_bitwidth
    LAYOUT: gl.constexpr = _update_layout(ENTRIES, BLOCK_V, gl.num_warps(), BITS)
    age = gl.arange(0, ENTRIES, layout=gl.SliceLayout(1, LAYOUT))[:, None]
    values = gl.arange(0, BLOCK_V, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    used = (age < cursor) & (age < L - 1)
    return gl.load(base + (values - (age + 1).to(gl.int64) * STRIDE), mask=used, other=0.0).permute([1, 0])


@gluon.jit
def _parts(x, COUNT: gl.constexpr, OPERAND: gl.constexpr, LAYOUT: gl.constexpr):
    """``x`` as a sum of COUNT matrix operands of 16 bits; each holds what the one before rounded off."""
    if COUNT == 1:
        return (gl.convert_layout(x.to(OPERAND), LAYOUT),)
    elif COUNT == 2:
        first = x.to(OPERAND)
        second = (x.to(gl.float32) - first.to(gl.float32)).to(OPERAND)
        return gl.convert_layout(first, LAYOUT), gl.convert_layout(second, LAYOUT)
    else:
        first, second, third = _thirds(x.to(gl.float32))
        return gl.convert_layout(first, LAYOUT), gl.convert_layout(second, LAYOUT), gl.convert_layout(third, LAYOUT)


@gluon.jit
def _ring_operands(d, k, OUT: gl.constexpr, MMA: gl.constexpr):
    """The parts of d [block_v, entries] and of k [entries, K] for their product, whose operands have ``out``'s dtype.

    The matrix unit multiplies no float32, so float32 operands are three bf16 numbers each. With a ring of another
    dtype than the operands they are two: to round it once more would give away what the ring holds.
    """
    OPERAND: gl.constexpr = gl.bfloat16 if OUT == gl.float32 else OUT
    PARTS: gl.constexpr = 3 if OUT == gl.float32 else 1 if d.dtype == OPERAND else 2
    D_PARTS: gl.constexpr = 1 if d.dtype == OPERAND else PARTS
    return (
        _parts(k, PARTS, OPERAND, gl.DotOperandLayout(1, MMA, 2)),
        _parts(d, D_PARTS, OPERAND, gl.DotOperandLayout(0, MMA, 2)),
    )


@gluon.jit
def _add_product(acc, d_parts, k_parts):
    """Adds d . k to ``acc``, less the products of parts that lie below the last bit of both."""
    PARTS: gl.constexpr = max(len(d_parts), len(k_parts))
    for i in gl.static_range(len(d_parts)):
        for j in gl.static_range(len(k_parts)):
            if i + j < PARTS:
                acc = mma_v2(d_parts[i], k_parts[j], acc)
    return acc


@gluon.jit
def _shared(x):
    """A vector in shared memory, to be read by threads that hold other elements of it."""
    return gl.allocate_shared_memory(gl.float32, [x.shape[0]], gl.SwizzledSharedLayout(1, 1, 1, order=[0]), x)


@gluon.jit
def _load_state(pointers, exists, flush, IN_PLACE: gl.constexpr, HALVES: gl.constexpr):
    """The state before the ring's entries.

    Nothing reads it again before the next step, so it need not push anything else out of the L2 cache; unless it is
    written in a moment, or read once more, and is better there until then. Where it is only read, a second load would
    cost registers that are not there.
    """
    if IN_PLACE:
        if flush:
            state = gl.load(pointers, mask=exists, other=0.0)
        else:
            state = gl.load(pointers, mask=exists, other=0.0, eviction_policy="evict_first")
    elif HALVES:
        state = gl.load(pointers, mask=exists, other=0.0)
    else:
        state = gl.load(pointers, mask=exists, other=0.0, eviction_policy="evict_first")
    return state


@gluon.jit
def _replayed(
    checkpoint, decay, d_parts, k_parts, MMA: gl.constexpr, STATE: gl.constexpr, VECTOR: gl.constexpr,
    WARPS_K: gl.constexpr,
):  # fmt: skip
    """The state [block_v, K] after the ring's entries, checkpoint * decay + d . k, in the checkpoint's layout.

    The conversions move nothing: both layouts give every element to the same thread.
    """
    acc = checkpoint.to(gl.float32) * decay.load(gl.SliceLayout(0, STATE))[None, :]
    acc = gl.convert_layout(_to_columns(acc, VECTOR, WARPS_K), MMA)
    acc = _add_product(acc, d_parts, k_parts)
    return gl.convert_layout(_from_columns(acc, VECTOR, WARPS_K), STATE)


@gluon.jit
def _flush_by_halves(
    state_base, STATE_V_STRIDE: gl.constexpr, d_base, D_ENTRY_STRIDE: gl.constexpr, cursor, k_parts, ring_decay, decay,
    delta, k, halves, L: gl.constexpr, MMA: gl.constexpr, VECTOR: gl.constexpr, WARPS_V: gl.constexpr,
    WARPS_K: gl.constexpr,
):  # fmt: skip
    """Rebuild a bf16 state in memory, half of the tile's value channels at a time.

    ``state_base`` and ``d_base`` are those of the tile, the latter at the cursor's entry. ``ring_decay`` and ``decay``
    are what the ring as a whole and this step multiply the state by, ``delta`` and ``k`` this step's update, all but
    ``delta`` in shared memory. ``halves`` is 2: as a constant it would let the compiler interleave the halves, and then
    their registers add up.
    """
    BLOCK_V: gl.constexpr = delta.shape[0] // 2
    K: gl.constexpr = k.shape[0]
    ENTRIES: gl.constexpr = k_parts[0].shape[0]
    STATE: gl.constexpr = _state_layout(BLOCK_V, K, VECTOR, WARPS_V, WARPS_K)
    ROWS: gl.constexpr = gl.SliceLayout(1, STATE)
    COLUMNS: gl.constexpr = gl.SliceLayout(0, STATE)
    deltas = gl.allocate_shared_memory(gl.float32, [2, BLOCK_V], gl.SwizzledSharedLayout(1, 1, 1, order=[0]))
    first, second = delta.reshape([2, BLOCK_V]).permute(1, 0).split()
    deltas.index(0).store(first)
    deltas.index(1).store(second)
    values = gl.arange(0, BLOCK_V, layout=ROWS).to(gl.int64)
    pointers = state_base + values[:, None] * STATE_V_STRIDE + gl.arange(0, K, layout=COLUMNS)[None, :]
    for half in range(halves):
        checkpoint = gl.load(pointers)
        d = _load_updates(d_base + half * BLOCK_V, D_ENTRY_STRIDE, cursor, L, ENTRIES, BLOCK_V)
        d_parts = _parts(d, 1, gl.bfloat16, gl.DotOperandLayout(0, MMA, 2))
        S = _replayed(checkpoint, ring_decay, d_parts, k_parts, MMA, STATE, VECTOR, WARPS_K)
        v = deltas.index(half).load(ROWS)
        S = S * decay.load(COLUMNS)[None, :] + v[:, None] * k.load(COLUMNS)[None, :]
        gl.store(pointers, S.to(state_base.dtype.element_ty), eviction_policy="evict_first")
        pointers += BLOCK_V * STATE_V_STRIDE


@gluon.jit
def _vector_operand(x_k, x_q, MMA: gl.constexpr, VECTOR: gl.constexpr, WARPS_K: gl.constexpr):
    """Two float32 vectors of key channels as the right operand [K, 8] of a bf16 product."""
    columns = _columns_of_thirds(gl.join(x_k, x_q))
    columns = _to_columns(columns.permute(1, 0), VECTOR, WARPS_K).permute(1, 0)
    return gl.convert_layout(columns, gl.DotOperandLayout(1, MMA, 2))


@gluon.jit
def _row_sums(
    checkpoint, decay, d, k, with_k, with_q, MMA: gl.constexpr, VECTOR: gl.constexpr, WARPS_K: gl.constexpr,
    ROWS: gl.constexpr,
):  # fmt: skip
    """S . with_k and S . with_q for S = checkpoint * decay + d . k, without S. All matrix operands are bf16."""
    LEFT: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, MMA, 2)
    of_checkpoint = _vector_operand(with_k * decay, with_q * decay, MMA, VECTOR, WARPS_K)
    of_keys = _vector_operand(with_k, with_q, MMA, VECTOR, WARPS_K)
    k = gl.convert_layout(k.to(gl.bfloat16), LEFT)
    of_updates = _sum_of_thirds(mma_v2(k, of_keys, gl.zeros([k.shape[0], 8], gl.float32, layout=MMA)))
    of_updates = gl.convert_layout(_columns_of_thirds(of_updates), RIGHT)
    checkpoint = gl.convert_layout(_to_columns(checkpoint, VECTOR, WARPS_K), LEFT)
    sums = mma_v2(checkpoint, of_checkpoint, gl.zeros([checkpoint.shape[0], 8], gl.float32, layout=MMA))
    sums = mma_v2(d, of_updates, sums)
    sum_k, sum_q = _sum_of_thirds(sums).split()
    return gl.convert_layout(sum_k, ROWS), gl.convert_layout(sum_q, ROWS)


@gluon.jit(do_not_specialize=["slots", "halves"])
def kda_replayssm_tensor_core_kernel(
    mixed_qkv_ptr,
    a_ptr,
    b_ptr,
    A_log_ptr,
    dt_bias_ptr,
    scale,
    lower_bound,
    initial_state_ptr,
    d_cache_ptr,
    k_cache_ptr,
    g_cache_ptr,
    out_ptr,
    ssm_state_indices_ptr,
    write_pos_ptr,
    force_flush_ptr,
    slots,
    mixed_qkv_stride,
    b_stride,
    state_slot_stride,
    state_head_stride,
    d_slot_stride,
    d_head_stride,
    k_slot_stride,
    k_head_stride,
    g_slot_stride,
    g_head_stride,
    ssm_state_indices_stride,
    write_pos_stride,
    force_flush_stride,
    halves,
    STATE_V_STRIDE: gl.constexpr,
    D_ENTRY_STRIDE: gl.constexpr,
    K_ENTRY_STRIDE: gl.constexpr,
    G_ENTRY_STRIDE: gl.constexpr,
    H: gl.constexpr,
    HV: gl.constexpr,
    K: gl.constexpr,
    V: gl.constexpr,
    L: gl.constexpr,
    ENTRIES: gl.constexpr,
    NORMALISE: gl.constexpr,
    BLOCK_V: gl.constexpr,
    WARPS_V: gl.constexpr,
    WARPS_K: gl.constexpr,
    IN_PLACE: gl.constexpr,
    HALVES: gl.constexpr,
    EARLY: gl.constexpr,
):
    """One tile of BLOCK_V value channels of one head of one row. Grid: B * HV * V / BLOCK_V programs.

    What it computes is in api.py, and the names are those of kernel.py. ENTRIES is L padded to a power of two that the
    matrix product takes. Strides inside a slot are constants: they belong to a pool, and as constants they turn into
    the immediate offsets of the loads.
    """
    WARPS: gl.constexpr = WARPS_V * WARPS_K
    VECTOR: gl.constexpr = 128 // initial_state_ptr.dtype.element_ty.primitive_bitwidth
    OUT: gl.constexpr = out_ptr.dtype.element_ty
    MMA: gl.constexpr = _mma_layout(WARPS_V, WARPS_K)
    STATE: gl.constexpr = _state_layout(BLOCK_V, K, VECTOR, WARPS_V, WARPS_K)
    ROWS: gl.constexpr = gl.SliceLayout(1, STATE)
    COLUMNS: gl.constexpr = gl.SliceLayout(0, STATE)
    CHANNELS: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])

    if EARLY:
        gdc_wait()
    program = gl.program_id(0)
    tile = program % (V // BLOCK_V)
    # int64 from here on: a pool may hold more than 2^31 elements, whichever of its dims is the outermost.
    head = ((program // (V // BLOCK_V)) % HV).to(gl.int64)
    row = (program // (V // BLOCK_V * HV)).to(gl.int64)
    key_head = head // (HV // H)

    # Judged in the index's own dtype: a huge unsigned value is out of range, not negative.
    index = gl.load(ssm_state_indices_ptr + row * ssm_state_indices_stride)
    cursor = gl.load(write_pos_ptr + row * write_pos_stride)
    channels = gl.arange(0, K, layout=CHANNELS)
    values = tile * BLOCK_V + gl.arange(0, BLOCK_V, layout=ROWS)
    qkv = mixed_qkv_ptr + row * mixed_qkv_stride
    q_ptr = qkv + key_head * K
    k_ptr = qkv + (H + key_head) * K
    q = gl.load(q_ptr + channels).to(gl.float32)
    k = gl.load(k_ptr + channels).to(gl.float32)
    scale_q, scale_k, qk = _scales(q_ptr, k_ptr, scale, K, NORMALISE)
    x = gl.load(a_ptr + (row * HV + head) * K + channels).to(gl.float32)
    x += gl.load(dt_bias_ptr + head * K + channels).to(gl.float32)
    v = gl.load(qkv + 2 * H * K + head * V + values).to(gl.float32)
    b = gl.load(b_ptr + row * b_stride + head)
    A = gl.exp(gl.load(A_log_ptr + head).to(gl.float32))
    flush = cursor == L - 1
    if force_flush_ptr is not None:
        flush = flush | (gl.load(force_flush_ptr + row * force_flush_stride) != 0)

    padding = index < 0
    live = (index >= 0) & (index < slots) & (cursor >= 0) & (cursor < L)
    slot = gl.where(live, index.to(gl.int64), 0)
    cursor = gl.where(live, cursor, 0)
    entry = cursor.to(gl.int64)
    d_base = d_cache_ptr + slot * d_slot_stride + head * d_head_stride + entry * D_ENTRY_STRIDE
    k_base = k_cache_ptr + slot * k_slot_stride + key_head * k_head_stride + entry * K_ENTRY_STRIDE
    g_base = g_cache_ptr + slot * g_slot_stride + head * g_head_stride + entry * G_ENTRY_STRIDE

    # Newest entry first. Row j of the gates is the entry after row j of the keys, so that their running sum is the
    # decay that the key has suffered. Entries at and past the cursor may hold anything, NaN included.
    g_ring = _load_newest_first(g_base, G_ENTRY_STRIDE, cursor, 0, L, ENTRIES, K)
    k_ring = _load_newest_first(k_base, K_ENTRY_STRIDE, cursor, 1, L, ENTRIES, K)
    d_ring = _load_updates(d_base + tile * BLOCK_V, D_ENTRY_STRIDE, cursor, L, ENTRIES, BLOCK_V)
    state_base = initial_state_ptr + slot * state_slot_stride + head * state_head_stride
    state_ptrs = state_base + values.to(gl.int64)[:, None] * STATE_V_STRIDE + gl.arange(0, K, layout=COLUMNS)[None, :]
    in_state = values < gl.where(live, V, 0)
    checkpoint = _load_state(state_ptrs, in_state[:, None], flush, IN_PLACE, HALVES)

    beta = _sigmoid(b.to(gl.float32)).to(b.dtype).to(gl.float32)
    g = _log_decay(x, A, lower_bound)
    q, k = q * scale_q, k * scale_k
    decay = gl.exp2(g * LOG2_E)
    ring_decay = gl.exp2(gl.sum(g_ring, 0) * LOG2_E)
    k_ring = k_ring.to(gl.float32) * gl.exp2(gl.associative_scan(g_ring, 0, _add) * LOG2_E)
    k_ring = _to_columns(k_ring, VECTOR, WARPS_K)
    if IN_PLACE:
        k_parts, d_parts = _ring_operands(d_ring, k_ring, OUT, MMA)
        shared_ring_decay, shared_decay, shared_k = _shared(ring_decay), _shared(decay), _shared(k)
        with_k, with_q = _shared(k * decay), _shared(q * decay)
        S = _replayed(checkpoint, shared_ring_decay, d_parts, k_parts, MMA, STATE, VECTOR, WARPS_K)
        sum_k, sum_q = gl.reduce((S * with_k.load(COLUMNS)[None, :], S * with_q.load(COLUMNS)[None, :]), 1, _add_2)
    else:
        d_operand = gl.convert_layout(d_ring, gl.DotOperandLayout(0, MMA, 2))
        sum_k, sum_q = _row_sums(
            checkpoint,
            gl.convert_layout(ring_decay, CHANNELS),
            d_operand,
            k_ring,
            k * decay,
            q * decay,
            MMA,
            VECTOR,
            WARPS_K,
            ROWS,
        )

    delta = beta * (v - sum_k)
    o = gl.where(live, sum_q + delta * qk, gl.where(padding, 0.0, float("nan")))
    gl.store(out_ptr + (row * HV + head) * V + values, o.to(OUT))
    if live:
        if flush:
            if HALVES:
                _flush_by_halves(
                    state_base + (tile * BLOCK_V).to(gl.int64) * STATE_V_STRIDE,
                    STATE_V_STRIDE,
                    d_base + tile * BLOCK_V,
                    D_ENTRY_STRIDE,
                    cursor,
                    _parts(k_ring, 1, gl.bfloat16, gl.DotOperandLayout(1, MMA, 2)),
                    _shared(ring_decay),
                    _shared(decay),
                    delta,
                    _shared(k),
                    halves,
                    L,
                    MMA,
                    VECTOR,
                    WARPS_V,
                    WARPS_K,
                )
            else:
                if not IN_PLACE:
                    k_parts, d_parts = _ring_operands(d_ring, k_ring, OUT, MMA)
                    shared_ring_decay, shared_decay, shared_k = _shared(ring_decay), _shared(decay), _shared(k)
                    S = _replayed(checkpoint, shared_ring_decay, d_parts, k_parts, MMA, STATE, VECTOR, WARPS_K)
                S = S * shared_decay.load(COLUMNS)[None, :] + delta[:, None] * shared_k.load(COLUMNS)[None, :]
                gl.store(state_ptrs, S.to(initial_state_ptr.dtype.element_ty))
        else:
            gl.store(d_base + values, delta.to(d_cache_ptr.dtype.element_ty))
            if tile == 0:
                gl.store(g_base + channels, g)
                if head % (HV // H) == 0:
                    gl.store(k_base + channels, k.to(k_cache_ptr.dtype.element_ty))


def launch_decode(
    tile: Tile,
    *,
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
    force_flush: torch.Tensor | None,
    use_qk_l2norm_in_kernel: bool,
    lower_bound: float | None,
) -> Launched | None:
    """Launch the kernel on checked arguments, which are those of the public function in api.py."""
    slots, HV, V, K = initial_state.shape
    H, L = k_cache.shape[1:3]
    return launch(
        kda_replayssm_tensor_core_kernel,
        (mixed_qkv.shape[0] * HV * (V // tile.block_v),),
        mixed_qkv,
        a,
        b,
        A_log,
        dt_bias,
        float(scale),
        None if lower_bound is None else float(lower_bound),
        initial_state,
        d_cache,
        k_cache,
        g_cache,
        out,
        ssm_state_indices,
        write_pos,
        force_flush,
        slots,
        mixed_qkv.stride(0),
        b.stride(0),
        *initial_state.stride()[:2],
        *d_cache.stride()[:2],
        *k_cache.stride()[:2],
        *g_cache.stride()[:2],
        ssm_state_indices.stride(0),
        write_pos.stride(0),
        0 if force_flush is None else force_flush.stride(0),
        2,
        device=mixed_qkv.device,
        STATE_V_STRIDE=initial_state.stride(2),
        D_ENTRY_STRIDE=d_cache.stride(2),
        K_ENTRY_STRIDE=k_cache.stride(2),
        G_ENTRY_STRIDE=g_cache.stride(2),
        H=H,
        HV=HV,
        K=K,
        V=V,
        L=L,
        ENTRIES=ring_rows(L),
        NORMALISE=use_qk_l2norm_in_kernel,
        BLOCK_V=tile.block_v,
        WARPS_V=tile.warps_v,
        WARPS_K=tile.warps_k,
        IN_PLACE=tile.in_place,
        HALVES=tile.halves,
        **early_start(mixed_qkv.device),
        num_warps=tile.warps_v * tile.warps_k,
        maxnreg=tile.registers,
    )
