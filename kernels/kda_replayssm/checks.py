"""What the ReplaySSM decode refuses, in order."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.guards import (
    DeviceError,
    DtypeError,
    Guard,
    LayoutError,
    RankError,
    ShapeError,
    is_integer,
    on_gpu,
    same_device,
)

DECODE = "helion_fused_recurrent_kda_replayssm_decode"

A_PACKED = Guard(
    "kda_replayssm.a.packed",
    LayoutError,
    "KDA `a` must be a contiguous 2D or 3D tensor.",
    "a = a.contiguous(), of shape [B, HV * K] or [B, HV, K]",
)
DT_BIAS_PACKED = Guard(
    "kda_replayssm.dt_bias.packed",
    LayoutError,
    "KDA `dt_bias` must be a contiguous 1D or 2D tensor.",
    "dt_bias = dt_bias.contiguous(), of shape [HV * K] or [HV, K]",
)
QKV_RANK = Guard(
    "kda_replayssm.mixed_qkv.rank",
    RankError,
    "`mixed_qkv` must be a 2D tensor (got ndim={got}).",
    "mixed_qkv = mixed_qkv.reshape(batch, -1): one token per row, q, k and v packed in it",
)
QKV_STRIDE = Guard(
    "kda_replayssm.mixed_qkv.stride",
    LayoutError,
    "`mixed_qkv` must be contiguous in the last dim.",
    "mixed_qkv = mixed_qkv.contiguous()",
)
GATES_RANK = Guard(
    "kda_replayssm.gates.rank",
    RankError,
    "`a` and `b` must be 2D tensors (got a.ndim={a}, b.ndim={b}).",
    "b = b.reshape(batch, -1)",
)
GATES_STRIDE = Guard(
    "kda_replayssm.gates.stride",
    LayoutError,
    "`a`/`b` must be contiguous in the last dim.",
    "{argument} = {argument}.clone(memory_format=torch.contiguous_format)",
)
PARAMETERS_RANK = Guard(
    "kda_replayssm.parameters.rank",
    RankError,
    "`A_log`/`dt_bias` must be 1D tensors.",
    "A_log = A_log.flatten()",
)
PARAMETERS_STRIDE = Guard(
    "kda_replayssm.parameters.stride",
    LayoutError,
    "`A_log`/`dt_bias` must be contiguous.",
    "{argument} = {argument}.clone(memory_format=torch.contiguous_format)",
)
INDICES_RANK = Guard(
    "kda_replayssm.ssm_state_indices.rank",
    RankError,
    "`ssm_state_indices` must be 1D for packed decode (got ndim={got}).",
    "ssm_state_indices = ssm_state_indices.flatten()",
)
OUT_PACKED = Guard(
    "kda_replayssm.out.packed",
    LayoutError,
    "`out` must be contiguous.",
    "allocate out with torch.empty(batch, 1, HV, V, ...); a copy would not be seen by the caller",
)
INPUTS_DEVICE = Guard(
    "kda_replayssm.inputs.device",
    DeviceError,
    "All inputs must be on the same device.",
)
BATCH = Guard(
    "kda_replayssm.batch",
    ShapeError,
    "Mismatched batch sizes: mixed_qkv.shape[0]={expected}, a.shape[0]={a}, b.shape[0]={b}.",
    "pass one row of mixed_qkv, a and b for each request",
)
INDICES_SHAPE = Guard(
    "kda_replayssm.ssm_state_indices.shape",
    ShapeError,
    "`ssm_state_indices` must have shape [B] (got {got}; expected {expected}).",
    "pass one slot for each request, -1 for padding rows",
)
STATE_RANK = Guard(
    "kda_replayssm.initial_state.rank",
    RankError,
    "`initial_state` must be a 4D tensor (got ndim={got}).",
    "pass the whole pool, [slots, HV, V, K]",
)
STATE_STRIDE = Guard(
    "kda_replayssm.initial_state.stride",
    LayoutError,
    "`initial_state` must be contiguous in the last dim.",
    "lay the pool out as [slots, HV, V, K]; a copy would not be seen by the caller",
)
POWER_OF_TWO = Guard(
    "kda_replayssm.power_of_two",
    ShapeError,
    "Helion KDA decode requires power-of-two key and value head dimensions (got K={K}, V={V}).",
    "pad the head dims with zeros to the next power of two",
)
A_COLUMNS = Guard(
    "kda_replayssm.a.columns",
    ShapeError,
    "`a` must have shape [B, HV*K] with HV={HV}, K={K} (got a.shape={got}).",
    "KDA has a gate for every key channel: pass HV * K of them per request",
)
B_COLUMNS = Guard(
    "kda_replayssm.b.columns",
    ShapeError,
    "`b` must have shape [B, HV] with HV={HV} (got b.shape={got}).",
    "pass one b for each value head",
)
A_LOG_SIZE = Guard(
    "kda_replayssm.A_log.size",
    ShapeError,
    "`A_log` must have {expected} elements (got {got}).",
    "pass this rank's slice of the parameter, one element for each value head",
)
DT_BIAS_SIZE = Guard(
    "kda_replayssm.dt_bias.size",
    ShapeError,
    "`dt_bias` must have {expected} elements (got {got}).",
    "pass this rank's slice of the parameter, one element for each key channel of each value head",
)
OUT_SHAPE = Guard(
    "kda_replayssm.out.shape",
    ShapeError,
    "`out` must have shape {expected} (got out.shape={got}).",
    "out = mixed_qkv.new_empty({expected})",
)
QKV_WIDTH = Guard(
    "kda_replayssm.mixed_qkv.width",
    ShapeError,
    "Invalid packed `mixed_qkv` last dim={got} for HV={HV}, V={V}.",
    "pack q, k and v of one rank: 2 * H * K + HV * V columns",
)
Q_SIZE = Guard(
    "kda_replayssm.mixed_qkv.q_size",
    ShapeError,
    "Invalid packed Q size {got}: must be divisible by K={K}. "
    "KDA packed decode requires num_q_heads == num_k_heads and head_q_dim == head_k_dim.",
    "pack q and k of the same heads: 2 * H * K + HV * V columns",
)
HEADS = Guard(
    "kda_replayssm.mixed_qkv.heads",
    ShapeError,
    "Invalid head config inferred from mixed_qkv: H={H}, HV={HV}.",
    "each query head serves the same number of value heads: HV must be a multiple of H",
)
WRITE_POS_DTYPE = Guard(
    "kda_replayssm.write_pos.dtype",
    DtypeError,
    "`write_pos` must be a 1D int32 tensor.",
    "write_pos = write_pos.flatten().to(torch.int32)",
)
WRITE_POS_SHAPE = Guard(
    "kda_replayssm.write_pos.shape",
    ShapeError,
    "`write_pos` must have shape {expected}.",
    "pass one ring position for each request",
)
FORCE_FLUSH = Guard(
    "kda_replayssm.force_flush",
    DtypeError,
    "`force_flush` must be a length-B int32 tensor or None.",
    "force_flush = force_flush.flatten().to(torch.int32), one for each request",
)
RING_LENGTH = Guard(
    "kda_replayssm.ring_length",
    ShapeError,
    "ReplaySSM cache length must be at least 1.",
    "allocate d_cache as [slots, HV, L, V] with L of 1 or more, usually 16",
)
D_CACHE_SHAPE = Guard(
    "kda_replayssm.d_cache.shape",
    ShapeError,
    "`d_cache` must have shape [slots, HV, L, V].",
    "allocate d_cache as {expected} behind its slots; it is {got}",
)
K_CACHE_SHAPE = Guard(
    "kda_replayssm.k_cache.shape",
    ShapeError,
    "`k_cache` must have shape [slots, H, L, K].",
    "allocate k_cache as {expected} behind its slots; it is {got}",
)
G_CACHE_SHAPE = Guard(
    "kda_replayssm.g_cache.shape",
    ShapeError,
    "`g_cache` must have shape [slots, HV, L, K].",
    "allocate g_cache as {expected} behind its slots; it is {got}",
)
G_CACHE_DTYPE = Guard(
    "kda_replayssm.g_cache.dtype",
    DtypeError,
    "`g_cache` must have dtype torch.float32.",
    "allocate g_cache with dtype=torch.float32: log decays are summed over the whole ring",
)
RING_DEVICE = Guard(
    "kda_replayssm.ring.device",
    DeviceError,
    "ReplaySSM inputs must be on the same device.",
)
FORCE_FLUSH_DEVICE = Guard(
    "kda_replayssm.force_flush.device",
    DeviceError,
    "`force_flush` must be on the same device as the inputs.",
)
CUDA = Guard(
    "kda_replayssm.cuda",
    DeviceError,
    "ReplaySSM decode only supports CUDA tensors.",
    "build pools and activations on the GPU: torch.empty(..., device=torch.device('cuda', rank))",
)
SLOTS = Guard(
    "kda_replayssm.slots",
    ShapeError,
    "`{argument}` must have {expected} slots like `initial_state` (got {got}).",
    "allocate the state and its ring for the same number of slots",
)
INDICES_DTYPE = Guard(
    "kda_replayssm.ssm_state_indices.dtype",
    DtypeError,
    "`ssm_state_indices` must have an integer dtype, got {got}.",
    "ssm_state_indices = ssm_state_indices.to(torch.int64)",
)
RING_DTYPE = Guard(
    "kda_replayssm.ring.dtype",
    DtypeError,
    "`{argument}` must have a floating dtype, got {got}.",
    "allocate {argument} with dtype=mixed_qkv.dtype",
)


def check_decode(
    *,
    mixed_qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    initial_state: torch.Tensor,
    d_cache: torch.Tensor,
    k_cache: torch.Tensor,
    g_cache: torch.Tensor,
    out: torch.Tensor,
    ssm_state_indices: torch.Tensor,
    write_pos: torch.Tensor,
    force_flush: torch.Tensor | None,
) -> None:
    """Refuse a decode step that could not be right.

    Raises:
        GuardError: the first guard that the call violates.
    """
    gates = _flattened(mixed_qkv, a, dt_bias)
    _check_layouts(gates, b, A_log, dt_bias, out, ssm_state_indices)
    for name, tensor in (
        ("a", a),
        ("b", b),
        ("A_log", A_log),
        ("dt_bias", dt_bias),
        ("initial_state", initial_state),
        ("out", out),
        ("ssm_state_indices", ssm_state_indices),
    ):
        if not same_device(tensor, mixed_qkv):
            raise INPUTS_DEVICE.refuse(name, expected=mixed_qkv.device, got=tensor.device)
    _check_batch(mixed_qkv, gates, b, ssm_state_indices)
    _check_sizes(mixed_qkv, gates, b, A_log, dt_bias, initial_state, out)
    _check_flags(mixed_qkv.shape[0], write_pos, force_flush)
    _check_ring_shapes(mixed_qkv, initial_state, d_cache, k_cache, g_cache)
    for name, tensor in (("d_cache", d_cache), ("k_cache", k_cache), ("g_cache", g_cache), ("write_pos", write_pos)):
        if not same_device(tensor, mixed_qkv):
            raise RING_DEVICE.refuse(name, expected=mixed_qkv.device, got=tensor.device)
    if force_flush is not None and not same_device(force_flush, mixed_qkv):
        raise FORCE_FLUSH_DEVICE.refuse("force_flush", expected=mixed_qkv.device, got=force_flush.device)
    if not on_gpu(mixed_qkv):
        raise CUDA.refuse("mixed_qkv", expected="cuda", got=mixed_qkv.device)
    for name, tensor in (("d_cache", d_cache), ("k_cache", k_cache), ("g_cache", g_cache)):
        if tensor.shape[0] != initial_state.shape[0]:
            raise SLOTS.refuse(name, expected=initial_state.shape[0], got=tensor.shape[0])
    _check_dtypes(ssm_state_indices, d_cache, k_cache)


def key_heads(mixed_qkv: torch.Tensor, initial_state: torch.Tensor) -> int:
    """Number H of query (and key) heads that the packed width leaves after the value heads."""
    _, value_heads, V, K = initial_state.shape
    return (mixed_qkv.shape[1] - value_heads * V) // (2 * K)


class _Gates(NamedTuple):
    """Shape and last stride of ``a`` seen as [B, HV * K], which all later guards judge."""

    rows: int
    columns: int
    stride: int


def _flattened(mixed_qkv: torch.Tensor, a: torch.Tensor, dt_bias: torch.Tensor) -> _Gates:
    """``a`` with its heads flattened.

    An ``a`` that does not divide into B rows keeps its own, so that the guard on batch sizes can name their number.
    Worked out from its shape and not by making the view, which would be an operation on the tensor's device: with a
    stand-in for a device that is not there it fails.
    """
    if a.ndim not in (2, 3) or not a.is_contiguous():
        raise A_PACKED.refuse("a", got=tuple(a.stride()))
    if dt_bias.ndim not in (1, 2) or not dt_bias.is_contiguous():
        raise DT_BIAS_PACKED.refuse("dt_bias", got=tuple(dt_bias.stride()))
    if mixed_qkv.ndim != 2:
        raise QKV_RANK.refuse("mixed_qkv", expected=2, got=mixed_qkv.ndim)
    if mixed_qkv.stride(-1) != 1:
        raise QKV_STRIDE.refuse("mixed_qkv", expected=1, got=mixed_qkv.stride(-1))
    batch = mixed_qkv.shape[0]
    if a.ndim == 2 and a.shape[0] == batch:
        return _Gates(batch, a.shape[1], a.stride(1))
    divides = batch > 0 and a.numel() % batch == 0
    return _Gates(batch, a.numel() // batch, 1) if divides else _Gates(a.shape[0], a.shape[1:].numel(), 1)


def _check_layouts(
    gates: _Gates,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    out: torch.Tensor,
    ssm_state_indices: torch.Tensor,
) -> None:
    if b.ndim != 2:
        raise GATES_RANK.refuse("b", expected=2, got=b.ndim, a=2, b=b.ndim)
    for name, stride in (("a", gates.stride), ("b", b.stride(-1))):
        if stride != 1:
            raise GATES_STRIDE.refuse(name, expected=1, got=stride)
    if A_log.ndim != 1:
        raise PARAMETERS_RANK.refuse("A_log", expected=1, got=A_log.ndim)
    # Two dims that are contiguous are one with stride 1.
    for name, stride in (("A_log", A_log.stride(0)), ("dt_bias", dt_bias.stride(0) if dt_bias.ndim == 1 else 1)):
        if stride != 1:
            raise PARAMETERS_STRIDE.refuse(name, expected=1, got=stride)
    if ssm_state_indices.ndim != 1:
        raise INDICES_RANK.refuse("ssm_state_indices", expected=1, got=ssm_state_indices.ndim)
    if not out.is_contiguous():
        raise OUT_PACKED.refuse("out", got=tuple(out.stride()))


def _check_batch(mixed_qkv: torch.Tensor, gates: _Gates, b: torch.Tensor, ssm_state_indices: torch.Tensor) -> None:
    batch = mixed_qkv.shape[0]
    if gates.rows != batch or b.shape[0] != batch:
        argument = "a" if gates.rows != batch else "b"
        got = gates.rows if argument == "a" else b.shape[0]
        raise BATCH.refuse(argument, expected=batch, got=got, a=gates.rows, b=b.shape[0])
    if ssm_state_indices.shape[0] != batch:
        raise INDICES_SHAPE.refuse("ssm_state_indices", expected=(batch,), got=tuple(ssm_state_indices.shape))


def _check_sizes(
    mixed_qkv: torch.Tensor,
    gates: _Gates,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    initial_state: torch.Tensor,
    out: torch.Tensor,
) -> None:
    if initial_state.ndim != 4:
        raise STATE_RANK.refuse("initial_state", expected=4, got=initial_state.ndim)
    if initial_state.stride(-1) != 1:
        raise STATE_STRIDE.refuse("initial_state", expected=1, got=initial_state.stride(-1))
    _, HV, V, K = initial_state.shape
    if not (_is_power_of_two(K) and _is_power_of_two(V)):
        raise POWER_OF_TWO.refuse("initial_state", got=(V, K), K=K, V=V)
    if gates.columns != HV * K:
        raise A_COLUMNS.refuse("a", expected=HV * K, got=(gates.rows, gates.columns), HV=HV, K=K)
    if b.shape[1] != HV:
        raise B_COLUMNS.refuse("b", expected=HV, got=tuple(b.shape), HV=HV)
    if A_log.numel() != HV:
        raise A_LOG_SIZE.refuse("A_log", expected=HV, got=A_log.numel())
    if dt_bias.numel() != HV * K:
        raise DT_BIAS_SIZE.refuse("dt_bias", expected=HV * K, got=dt_bias.numel())
    shape = (mixed_qkv.shape[0], 1, HV, V)
    if out.shape != shape:
        raise OUT_SHAPE.refuse("out", expected=shape, got=tuple(out.shape))
    _check_packing(mixed_qkv.shape[1], HV, V, K)


def _check_packing(width: int, HV: int, V: int, K: int) -> None:
    q_and_k = width - HV * V
    if q_and_k <= 0 or q_and_k % 2:
        raise QKV_WIDTH.refuse("mixed_qkv", got=width, HV=HV, V=V)
    if q_and_k // 2 % K:
        raise Q_SIZE.refuse("mixed_qkv", got=q_and_k // 2, K=K)
    H = q_and_k // 2 // K
    if HV % H:
        raise HEADS.refuse("mixed_qkv", got=H, H=H, HV=HV)


def _check_flags(batch: int, write_pos: torch.Tensor, force_flush: torch.Tensor | None) -> None:
    if write_pos.ndim != 1 or write_pos.dtype != torch.int32:
        raise WRITE_POS_DTYPE.refuse("write_pos", expected=torch.int32, got=write_pos.dtype)
    if write_pos.shape[0] != batch:
        raise WRITE_POS_SHAPE.refuse("write_pos", expected=(batch,), got=tuple(write_pos.shape))
    if force_flush is not None and (force_flush.shape != (batch,) or force_flush.dtype != torch.int32):
        raise FORCE_FLUSH.refuse("force_flush", expected=torch.int32, got=force_flush.dtype)


def _check_ring_shapes(
    mixed_qkv: torch.Tensor,
    initial_state: torch.Tensor,
    d_cache: torch.Tensor,
    k_cache: torch.Tensor,
    g_cache: torch.Tensor,
) -> None:
    _, HV, V, K = initial_state.shape
    L = d_cache.shape[2] if d_cache.ndim > 2 else None
    if L is not None and L < 1:
        raise RING_LENGTH.refuse("d_cache", expected=1, got=L)
    per_value_head, per_key_head = (HV, L, K), (key_heads(mixed_qkv, initial_state), L, K)
    if d_cache.shape[1:] != (HV, L, V):
        raise D_CACHE_SHAPE.refuse("d_cache", expected=(HV, L, V), got=tuple(d_cache.shape[1:]))
    if k_cache.shape[1:] != per_key_head:
        raise K_CACHE_SHAPE.refuse("k_cache", expected=per_key_head, got=tuple(k_cache.shape[1:]))
    if g_cache.shape[1:] != per_value_head:
        raise G_CACHE_SHAPE.refuse("g_cache", expected=per_value_head, got=tuple(g_cache.shape[1:]))
    if g_cache.dtype != torch.float32:
        raise G_CACHE_DTYPE.refuse("g_cache", expected=torch.float32, got=g_cache.dtype)


def _check_dtypes(ssm_state_indices: torch.Tensor, d_cache: torch.Tensor, k_cache: torch.Tensor) -> None:
    if not is_integer(ssm_state_indices.dtype):
        raise INDICES_DTYPE.refuse("ssm_state_indices", expected="an integer dtype", got=ssm_state_indices.dtype)
    for name, tensor in (("d_cache", d_cache), ("k_cache", k_cache)):
        if not tensor.dtype.is_floating_point:
            raise RING_DTYPE.refuse(name, expected="a floating dtype", got=tensor.dtype)


def _is_power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0
