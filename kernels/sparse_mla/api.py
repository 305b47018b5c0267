"""The public functions of the sparse MLA prefill: check, then launch."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch.nn.functional import pad

from kernels.guards import GuardError, compute_capability, explain_refusal
from kernels.known_calls import KnownCalls
from kernels.launch import Launched, launch, needs_dispatch
from kernels.sparse_mla import checks
from kernels.sparse_mla.kernel import (
    AMD_TILE,
    BLOCK_HEADS,
    HOPPER_TILE,
    NVIDIA_TILE,
    VALUE_CHANNELS,
    sparse_mla_prefill_kernel,
)

# By the shape of q, and so by the number of tokens. Calls that leave the outputs to the kernel are known by themselves:
# what is fresh overlaps nothing.
_known_calls = KnownCalls(by=0)
_known_calls_with_fresh_outputs = KnownCalls(by=0)


def sparse_mla_q8kv8_prefill_fwd(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    q_scale: torch.Tensor,
    kv_scale: torch.Tensor,
    d_v: int = VALUE_CHANNELS,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
    max_logits: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    check_topk_length_values: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention of each query token to its own choice of rows of an FP8 latent cache (DeepSeek's sparse MLA).

    An index t of a token is valid when ``0 <= t < s_kv`` and, with ``topk_length``, its place is below the token's
    length; other indices are skipped and their rows never read. An index that appears twice counts twice. Over the
    valid indices of a token, for each head:

        logits     = (q · kv[t]) · q_scale · kv_scale · sm_scale
        max_logits = max(logits)
        lse        = log Σ exp(logits)
        out        = Σ exp(logits − max_logits) · kv[t, :512] · kv_scale
                     / (Σ exp(logits − max_logits) + exp(attn_sink − max_logits))

    The sink is a logit without a value: it takes weight from the keys, and is in neither ``max_logits`` nor ``lse``. A
    token without a valid index gets out = 0, max_logits = −inf, lse = +inf.

    The scores are FP8 matrix products with fp32 sums. The weighted sum of values runs in fp16 with fp32 sums; on
    Hopper GPUs in FP8, each weight rounded to e4m3, by at most 1/17 of itself: a relative error of 1.4e-2 to 2.6e-2,
    the more the flatter the softmax, and more than that only where nearly all weights of a token are one number. The
    call does not wait for the device, so it can be captured in a CUDA graph (run it once before with the same sizes, so
    that the kernel is compiled) and traced by torch.compile. Inference only: gradients do not flow through it.

    Args:
        q: [s_q, h_q, d_qk] float8_e4m3fn, contiguous. h_q is a positive multiple of 64, see :func:`pad_q8kv8_heads`;
            d_qk is 512 or 576.
        kv: [s_kv, 1, d_qk] float8_e4m3fn, contiguous. The first 512 channels are also the values.
        indices: [s_q, 1, topk] int32, contiguous. topk is a positive multiple of 128; pad with -1.
        sm_scale: softmax scale, normally 1 / sqrt(width of a head before compression). Any sign.
        q_scale: one float32 value on q's device: q's real values are ``q * q_scale``.
        kv_scale: one float32 value on q's device, likewise.
        d_v: number of value channels, 512.
        attn_sink: [h_q] float32 or None. Needs topk_length.
        topk_length: [s_q] int32 or None, number of leading places of each row of indices that count. Values are
            taken as if clamped to 0 ... topk.
        out: [s_q, h_q, 512] bfloat16 to write to, or None to allocate it.
        max_logits: [s_q, h_q] float32 to write to, or None.
        lse: [s_q, h_q] float32 to write to, or None.
        check_topk_length_values: refuse lengths outside 0 ... topk. This waits for the device, which a CUDA graph
            cannot capture.

    Returns:
        out, max_logits and lse (natural logarithm): the given tensors, or fresh ones.

    Raises:
        GuardError: a subclass of ValueError, or of RuntimeError on a GPU without FP8 matrix units. Nothing has been
            written or allocated then.
    """
    compiling = torch.compiler.is_compiling()
    given: tuple[torch.Tensor, ...] = (q, kv, indices, q_scale, kv_scale)
    if attn_sink is not None:
        given = (*given, attn_sink)
    if topk_length is not None:
        given = (*given, topk_length)
    known = (sm_scale, d_v, attn_sink is None, topk_length is None, check_topk_length_values)
    if not compiling:
        if out is not None and max_logits is not None and lse is not None:
            if _known_calls.launch((*given, out, max_logits, lse), known):
                return out, max_logits, lse
        elif out is None and max_logits is None and lse is None:
            done = _launch_known(given, known)
            if done is not None:
                return done
    inputs: dict[str, Any] = {"q": q, "kv": kv, "indices": indices, "q_scale": q_scale, "kv_scale": kv_scale}
    inputs |= {"attn_sink": attn_sink, "topk_length": topk_length}
    outputs: dict[str, Any] = {"out": out, "max_logits": max_logits, "lse": lse}
    if not compiling:
        _check(inputs, outputs, d_v, check_topk_length_values)
    written = _allocated(q, **outputs)
    if compiling or needs_dispatch(*inputs.values(), *written.values()):
        options = {"d_v": d_v, "check_topk_length_values": check_topk_length_values}
        _prefill_op(sm_scale=sm_scale, **inputs, **written, **options)
    else:
        launched = _launch(sm_scale=sm_scale, **inputs, **written)
        _remember(launched, given, known, tuple(written.values()), outputs)
    return written["out"], written["max_logits"], written["lse"]


def q8kv8_padded_num_heads(num_heads: int) -> int:
    """Number of heads that the prefill needs for a rank with ``num_heads``: the next positive multiple of 64.

    Tensor parallelism divides a model's heads among its ranks and may leave 8 or 16 on each.
    """
    return max(1, -(-num_heads // BLOCK_HEADS)) * BLOCK_HEADS


def pad_q8kv8_heads(q: torch.Tensor, attn_sink: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Queries, and their sinks, with heads of zeros added until the prefill accepts them.

    Call the prefill with both and keep the first heads of what it returns: ``out[:, :h_q]``. The added heads attend
    evenly to all keys, so they stay finite, and no head sees another.

    Args:
        q: [s_q, h_q, d_qk] float8_e4m3fn.
        attn_sink: [h_q] float32 or None.

    Returns:
        q [s_q, q8kv8_padded_num_heads(h_q), d_qk] and attn_sink of as many heads, or None. The given tensors
        themselves when nothing is missing.
    """
    missing = q8kv8_padded_num_heads(q.shape[1]) - q.shape[1]
    if missing == 0:
        return q, attn_sink
    # As bytes, since not every PyTorch fills FP8 tensors on every device. A zero byte is the FP8 zero.
    q = pad(q.view(torch.uint8), (0, 0, 0, missing)).view(q.dtype)
    return q, None if attn_sink is None else pad(attn_sink, (0, missing))


def _check(inputs: dict[str, Any], outputs: dict[str, Any], d_v: int, check_values: bool) -> None:
    try:
        checks.check_prefill(**inputs, **outputs, d_v=d_v, check_topk_length_values=check_values)
    except GuardError as error:
        explain_refusal(error, checks.PREFILL, inputs | outputs, written=outputs)
        raise


def _launch_known(
    given: tuple[torch.Tensor, ...], known: tuple[Any, ...]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Fresh outputs of a call like one before, launched without further ado; None if there was none."""
    like = _known_calls_with_fresh_outputs.find(given, known)
    if like is None:
        return None
    fresh = _allocated(given[0], None, None, None)
    outputs = (fresh["out"], fresh["max_logits"], fresh["lse"])
    return outputs if like.launch((*given, *outputs)) else None


def _remember(
    launched: Launched | None,
    given: tuple[torch.Tensor, ...],
    known: tuple[Any, ...],
    written: tuple[torch.Tensor, ...],
    outputs: dict[str, torch.Tensor | None],
) -> None:
    """Remember a call, unless values of it were read, which the next call would have to do again."""
    tensors = (*given, *written)
    if known[-1]:
        return
    if all(value is None for value in outputs.values()):
        _known_calls_with_fresh_outputs.remember(launched, given, known, passed=tensors)
    elif all(value is not None for value in outputs.values()):
        _known_calls.remember(launched, tensors, known, written=range(len(given), len(tensors)))


def _allocated(
    q: torch.Tensor, out: torch.Tensor | None, max_logits: torch.Tensor | None, lse: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """The outputs, those that the caller left out made where q is."""
    # A slice, so that tracing a q with too few dims reaches the guard that refuses it at run time.
    rows = q.shape[:2]
    return {
        "out": q.new_empty((*rows, VALUE_CHANNELS), dtype=torch.bfloat16) if out is None else out,
        "max_logits": q.new_empty(rows, dtype=torch.float32) if max_logits is None else max_logits,
        "lse": q.new_empty(rows, dtype=torch.float32) if lse is None else lse,
    }


def _launch(
    *,
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
    hopper = _hopper(q.device)
    if hopper is not None and hopper.takes(q, kv, out):
        inputs = (q, kv, indices, sm_scale, q_scale, kv_scale, attn_sink, topk_length)
        return hopper.prefill(*inputs, out, max_logits, lse)
    s_q, h_q, d_qk = q.shape
    return launch(
        sparse_mla_prefill_kernel,
        (s_q * (h_q // BLOCK_HEADS) * 2,),
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
        indices.shape[2],
        device=q.device,
        HEADS=h_q,
        D_TAIL=d_qk - VALUE_CHANNELS,
        D_V=VALUE_CHANNELS,
        BLOCK_H=BLOCK_HEADS,
        **_tile(q.device),
    )


@cache
def _hopper(device: torch.device) -> ModuleType | None:
    """The kernel for Hopper, where the device is one and the installed Triton has what it is written in."""
    capability = compute_capability(device)
    if capability is None or capability[0] != 9:
        return None
    try:
        from kernels.sparse_mla import hopper
    except (ImportError, AttributeError):
        return None
    return hopper


def _tile(device: torch.device) -> dict[str, int]:
    """Keys per step and launch options for a device; the interpreter needs any."""
    capability = compute_capability(device)
    if capability is None:
        return AMD_TILE
    return HOPPER_TILE if capability[0] == 9 else NVIDIA_TILE


@torch.library.custom_op("device_guards::sparse_mla_prefill", mutates_args=("out", "max_logits", "lse"))
def _prefill_op(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    q_scale: torch.Tensor,
    kv_scale: torch.Tensor,
    d_v: int,
    attn_sink: torch.Tensor | None,
    topk_length: torch.Tensor | None,
    out: torch.Tensor,
    max_logits: torch.Tensor,
    lse: torch.Tensor,
    check_topk_length_values: bool,
) -> None:
    sparse_mla_q8kv8_prefill_fwd(
        q,
        kv,
        indices,
        sm_scale,
        q_scale,
        kv_scale,
        d_v,
        attn_sink,
        topk_length,
        out=out,
        max_logits=max_logits,
        lse=lse,
        check_topk_length_values=check_topk_length_values,
    )


@_prefill_op.register_fake
def _(*arguments: object, **options: object) -> None:
    """Nothing to infer. The checks are left to the run: there the guard's own error is raised, not a tracing error."""
