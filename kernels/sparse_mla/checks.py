"""What the sparse MLA prefill refuses, in order."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import torch

from kernels.guards import (
    ArgumentError,
    DeviceError,
    DtypeError,
    Guard,
    HardwareError,
    LayoutError,
    OverlapError,
    RankError,
    ShapeError,
    compute_capability,
    is_fake,
    memory_span,
    on_gpu,
    same_device,
    spans_meet,
)
from kernels.sparse_mla.kernel import BLOCK_HEADS, VALUE_CHANNELS

PREFILL = "sparse_mla_q8kv8_prefill_fwd"
TOPK_MULTIPLE = 128
# The oldest NVIDIA architecture with FP8 matrix units (Ada).
FP8_CAPABILITY = (8, 9)

Q_RANK = Guard(
    "sparse_mla.q_rank",
    RankError,
    "q must have shape (s_q, h_q, d_qk), got {got}",
    "q = q.reshape(-1, h_q, d_qk)",
)
KV_RANK = Guard(
    "sparse_mla.kv_rank",
    RankError,
    "kv must have shape (s_kv, h_kv, d_qk), got {got}",
    "kv = kv.reshape(-1, 1, d_qk)",
)
INDICES_RANK = Guard(
    "sparse_mla.indices_rank",
    RankError,
    "indices must have shape (s_q, h_kv, topk), got {got}",
    "indices = indices.reshape(s_q, 1, -1)",
)
CUDA = Guard(
    "sparse_mla.cuda",
    DeviceError,
    "{argument} must be a CUDA tensor",
    "{argument} = {argument}.to(torch.device('cuda', rank))",
)
DEVICE = Guard("sparse_mla.device", DeviceError, "{argument} must be on q's device {expected}, got {got}")
FP8 = Guard(
    "sparse_mla.fp8",
    DtypeError,
    "{argument} must be torch.float8_e4m3fn, got {got}",
    "{argument} = ({argument} / {argument}_scale).clamp(-448, 448).to(torch.float8_e4m3fn)",
)
CONTIGUOUS = Guard(
    "sparse_mla.contiguous",
    LayoutError,
    "{argument} must be contiguous",
    "{argument} = {argument}.contiguous()",
)
KV_WIDTH = Guard(
    "sparse_mla.kv_width",
    ShapeError,
    "kv d_qk must match q d_qk={expected}, got {got}",
    "pass q and kv of one model: both have the latent channels and the rotary tail, or both have not",
)
HEADS = Guard(
    "sparse_mla.heads",
    ShapeError,
    f"{PREFILL} requires h_q padded to a positive multiple of {BLOCK_HEADS}, got {{got}}",
    "q, attn_sink = pad_q8kv8_heads(q, attn_sink)",
)
KV_HEADS = Guard(
    "sparse_mla.kv_heads",
    ShapeError,
    f"{PREFILL} requires h_kv=1, got {{got}}",
    "pass the latent cache, which all heads share: kv.shape[1] == 1",
)
WIDTH = Guard(
    "sparse_mla.width",
    ShapeError,
    f"{PREFILL} supports d_qk=512/576, got {{got}}",
    "pass 512 latent channels, or 576 with a rotary tail of 64",
)
INDICES_SHAPE = Guard(
    "sparse_mla.indices_shape",
    ShapeError,
    "indices must have shape ({s_q}, {h_kv}, topk), got {got}",
    "pass one row of indices for each token of q",
)
INDICES_DTYPE = Guard(
    "sparse_mla.indices_dtype",
    DtypeError,
    "indices must be int32, got {got}",
    "indices = indices.to(torch.int32)",
)
TOPK = Guard(
    "sparse_mla.topk",
    ShapeError,
    f"Q8KV8 sparse-prefill topk width must be a positive multiple of {TOPK_MULTIPLE}, got {{got}}",
    f"pad the rows of indices with -1 to a multiple of {TOPK_MULTIPLE}",
)
LENGTH_SHAPE = Guard(
    "sparse_mla.length_shape",
    ShapeError,
    "topk_length must be int32 with shape ({s_q},), got {got}/{dtype}",
    "topk_length = topk_length.to(torch.int32).reshape(q.shape[0])",
)
LENGTH_VALUES = Guard(
    "sparse_mla.length_values",
    ArgumentError,
    "topk_length values must satisfy 0 <= topk_length <= topk ({topk})",
    "topk_length = topk_length.clamp(0, indices.shape[2])",
)
VALUE_WIDTH = Guard(
    "sparse_mla.value_width",
    ArgumentError,
    f"{PREFILL} only supports d_v={VALUE_CHANNELS}, got {{got}}",
    f"d_v={VALUE_CHANNELS}",
)
SINK_LENGTH = Guard(
    "sparse_mla.sink_length",
    ArgumentError,
    "attn_sink requires topk_length to be provided as well",
    "topk_length = torch.full((q.shape[0],), indices.shape[2], dtype=torch.int32, device=q.device)",
)
SINK_SHAPE = Guard(
    "sparse_mla.sink_shape",
    ShapeError,
    "attn_sink must be float32 with shape ({h_q},), got {got}/{dtype}",
    "pass one float32 value for each head of q; pad_q8kv8_heads(q, attn_sink) pads both alike",
)
SCALE_TENSOR = Guard(
    "sparse_mla.scale_tensor",
    ArgumentError,
    "{argument} must be a torch.Tensor",
    "{argument} = torch.tensor({argument}, dtype=torch.float32, device=q.device)",
)
SCALE_DTYPE = Guard(
    "sparse_mla.scale_dtype",
    DtypeError,
    "{argument} must be float32, got {got}",
    "{argument} = {argument}.to(torch.float32)",
)
SCALE_SHAPE = Guard(
    "sparse_mla.scale_shape",
    ShapeError,
    "{argument} must be a scalar tensor, got shape {got}",
    "pass one scale for the whole tensor; the kernel takes none per token, head or channel",
)
OUT_SHAPE = Guard(
    "sparse_mla.out_shape",
    ShapeError,
    "{argument} must have shape {expected}, got {got}",
    "{argument} = torch.empty({expected}, dtype={dtype}, device=q.device)",
)
OUT_DTYPE = Guard(
    "sparse_mla.out_dtype",
    DtypeError,
    "{argument} must have dtype {expected}, got {got}",
    "{argument} = torch.empty({shape}, dtype={expected}, device=q.device)",
)
OUT_DEVICE = Guard(
    "sparse_mla.out_device",
    DeviceError,
    "{argument} must be on device {expected}, got {got}",
    "{argument} = torch.empty({shape}, dtype={dtype}, device=q.device)",
)
OUT_LAYOUT = Guard(
    "sparse_mla.out_layout",
    LayoutError,
    "{argument} must be contiguous",
    "{argument} = torch.empty({shape}, dtype={dtype}, device=q.device)",
)
ALIAS = Guard(
    "sparse_mla.alias",
    OverlapError,
    "out, max_logits and lse must not alias each other",
    "give {argument} memory of its own: {argument} = torch.empty_like({argument})",
)
OVERLAP = Guard(
    "sparse_mla.overlap",
    OverlapError,
    "{argument} must not overlap {other}",
    "give {argument} memory of its own: {argument} = torch.empty_like({argument})",
)
HARDWARE = Guard(
    "sparse_mla.hardware",
    HardwareError,
    f"{PREFILL} needs an FP8-capable GPU (sm_89 or newer), got sm_{{major}}{{minor}}",
    "run on an Ada, Hopper or newer GPU, or dequantise and use a 16-bit attention kernel",
)


def check_prefill(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    q_scale: object,
    kv_scale: object,
    d_v: int,
    attn_sink: torch.Tensor | None,
    topk_length: torch.Tensor | None,
    out: torch.Tensor | None,
    max_logits: torch.Tensor | None,
    lse: torch.Tensor | None,
    check_topk_length_values: bool,
) -> None:
    """Refuse a prefill that could not be right.

    Args: as :func:`kernels.sparse_mla_q8kv8_prefill_fwd`.

    Raises:
        GuardError: the first guard that the call violates.
    """
    _check_operands(q, kv, indices)
    _check_sizes(q, kv, indices)
    if topk_length is not None:
        _check_topk_length(q, topk_length, indices.shape[2], check_topk_length_values)
    if d_v != VALUE_CHANNELS:
        raise VALUE_WIDTH.refuse("d_v", expected=VALUE_CHANNELS, got=d_v)
    if attn_sink is not None:
        _check_attn_sink(q, attn_sink, topk_length)
    for name, scale in (("q_scale", q_scale), ("kv_scale", kv_scale)):
        _check_scale(q, name, scale)
    inputs: dict[str, Any] = {"q": q, "kv": kv, "indices": indices, "q_scale": q_scale, "kv_scale": kv_scale}
    inputs |= {"attn_sink": attn_sink, "topk_length": topk_length}
    _check_outputs(q, {"out": out, "max_logits": max_logits, "lse": lse}, inputs)
    capability = compute_capability(q.device)
    if capability is not None and capability < FP8_CAPABILITY:
        major, minor = capability
        raise HARDWARE.refuse("q", expected=FP8_CAPABILITY, got=capability, major=major, minor=minor)


def _check_operands(q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor) -> None:
    """Rank, device, dtype and layout of the three large inputs."""
    if q.ndim != 3:
        raise Q_RANK.refuse("q", expected=3, got=tuple(q.shape))
    if kv.ndim != 3:
        raise KV_RANK.refuse("kv", expected=3, got=tuple(kv.shape))
    if indices.ndim != 3:
        raise INDICES_RANK.refuse("indices", expected=3, got=tuple(indices.shape))
    for name, tensor in (("q", q), ("kv", kv), ("indices", indices)):
        if not on_gpu(tensor):
            raise CUDA.refuse(name, expected="cuda", got=tensor.device)
    for name, tensor in (("kv", kv), ("indices", indices)):
        if not same_device(tensor, q):
            raise DEVICE.refuse(name, expected=q.device, got=tensor.device)
    for name, tensor in (("q", q), ("kv", kv)):
        if tensor.dtype != torch.float8_e4m3fn:
            raise FP8.refuse(name, expected=torch.float8_e4m3fn, got=tensor.dtype)
    for name, tensor in (("q", q), ("kv", kv), ("indices", indices)):
        if not tensor.is_contiguous():
            raise CONTIGUOUS.refuse(name, got=tuple(tensor.stride()))


def _check_sizes(q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor) -> None:
    """Sizes of the three large inputs, and the dtype of the indices."""
    (s_q, h_q, d_qk), (_, h_kv, kv_width) = q.shape, kv.shape
    if kv_width != d_qk:
        raise KV_WIDTH.refuse("kv", expected=d_qk, got=kv_width)
    if h_q < 1 or h_q % BLOCK_HEADS:
        raise HEADS.refuse("q", expected=f"a positive multiple of {BLOCK_HEADS}", got=h_q)
    if h_kv != 1:
        raise KV_HEADS.refuse("kv", expected=1, got=h_kv)
    if d_qk not in (512, 576):
        raise WIDTH.refuse("q", expected=(512, 576), got=d_qk)
    if tuple(indices.shape[:2]) != (s_q, h_kv):
        raise INDICES_SHAPE.refuse("indices", expected=(s_q, h_kv), got=tuple(indices.shape), s_q=s_q, h_kv=h_kv)
    if indices.dtype != torch.int32:
        raise INDICES_DTYPE.refuse("indices", expected=torch.int32, got=indices.dtype)
    topk = indices.shape[2]
    if topk < 1 or topk % TOPK_MULTIPLE:
        raise TOPK.refuse("indices", expected=f"a positive multiple of {TOPK_MULTIPLE}", got=topk)


def _check_topk_length(q: torch.Tensor, topk_length: torch.Tensor, topk: int, check_values: bool) -> None:
    s_q, shape, dtype = q.shape[0], tuple(topk_length.shape), topk_length.dtype
    if dtype != torch.int32 or shape != (s_q,):
        raise LENGTH_SHAPE.refuse("topk_length", expected=(s_q,), got=shape, s_q=s_q, dtype=dtype)
    _check_companion(q, "topk_length", topk_length)
    # The only check that reads values, and so the only one that makes the host wait for the device. A stand-in has
    # none to read.
    if check_values and not is_fake(topk_length) and bool(((topk_length < 0) | (topk_length > topk)).any()):
        raise LENGTH_VALUES.refuse("topk_length", expected=f"0 to {topk}", topk=topk)


def _check_attn_sink(q: torch.Tensor, attn_sink: torch.Tensor, topk_length: torch.Tensor | None) -> None:
    if topk_length is None:
        raise SINK_LENGTH.refuse("attn_sink")
    h_q, shape, dtype = q.shape[1], tuple(attn_sink.shape), attn_sink.dtype
    if dtype != torch.float32 or shape != (h_q,):
        raise SINK_SHAPE.refuse("attn_sink", expected=(h_q,), got=shape, h_q=h_q, dtype=dtype)
    _check_companion(q, "attn_sink", attn_sink)


def _check_companion(q: torch.Tensor, name: str, tensor: torch.Tensor) -> None:
    """Device and layout of an optional input."""
    if not on_gpu(tensor):
        raise CUDA.refuse(name, expected="cuda", got=tensor.device)
    if not same_device(tensor, q):
        raise DEVICE.refuse(name, expected=q.device, got=tensor.device)
    if not tensor.is_contiguous():
        raise CONTIGUOUS.refuse(name, got=tuple(tensor.stride()))


def _check_scale(q: torch.Tensor, name: str, scale: object) -> None:
    if not isinstance(scale, torch.Tensor):
        raise SCALE_TENSOR.refuse(name, expected="torch.Tensor", got=type(scale).__name__)
    if not on_gpu(scale):
        raise CUDA.refuse(name, expected="cuda", got=scale.device)
    if not same_device(scale, q):
        raise DEVICE.refuse(name, expected=q.device, got=scale.device)
    if scale.dtype != torch.float32:
        raise SCALE_DTYPE.refuse(name, expected=torch.float32, got=scale.dtype)
    if scale.numel() != 1:
        raise SCALE_SHAPE.refuse(name, expected=1, got=tuple(scale.shape))
    # One element is contiguous whatever its strides; what is left is a sparse tensor.
    if not scale.is_contiguous():
        raise CONTIGUOUS.refuse(name, got=scale.layout)


def _check_outputs(
    q: torch.Tensor, outputs: dict[str, torch.Tensor | None], inputs: dict[str, torch.Tensor | None]
) -> None:
    s_q, h_q, _ = q.shape
    given = {name: tensor for name, tensor in outputs.items() if tensor is not None}
    for name, tensor in given.items():
        want = (torch.bfloat16, (s_q, h_q, VALUE_CHANNELS)) if name == "out" else (torch.float32, (s_q, h_q))
        _check_output(q, name, tensor, *want)
    spans = {name: memory_span(tensor) for name, tensor in given.items()}
    for other, name in combinations(spans, 2):
        if spans_meet(spans[other], spans[name]):
            raise ALIAS.refuse(name, got=other)
    # Fresh outputs overlap nothing, so a call that leaves them to the kernel skips this.
    input_spans = {name: memory_span(tensor) for name, tensor in inputs.items() if tensor is not None and given}
    for name, span in spans.items():
        for other, other_span in input_spans.items():
            if spans_meet(span, other_span):
                raise OVERLAP.refuse(name, got=other, other=other)


def _check_output(q: torch.Tensor, name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    fills = {"dtype": dtype, "shape": shape}
    if tuple(tensor.shape) != shape:
        raise OUT_SHAPE.refuse(name, expected=shape, got=tuple(tensor.shape), **fills)
    if tensor.dtype != dtype:
        raise OUT_DTYPE.refuse(name, expected=dtype, got=tensor.dtype, **fills)
    if not same_device(tensor, q):
        raise OUT_DEVICE.refuse(name, expected=q.device, got=tensor.device, **fills)
    if not tensor.is_contiguous():
        raise OUT_LAYOUT.refuse(name, got=tuple(tensor.stride()), **fills)
