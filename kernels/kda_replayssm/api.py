"""The public function of the ReplaySSM decode: check, then launch."""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl

from kernels.guards import GuardError, explain_refusal
from kernels.kda_replayssm import checks
from kernels.kda_replayssm.kernel import kda_replayssm_decode_kernel
from kernels.known_calls import KnownCalls
from kernels.launch import Launched, is_interpreted, launch, needs_dispatch

try:
    from kernels.kda_replayssm import tensor_core
except (ImportError, AttributeError):
    # Gluon is experimental: the installed Triton may not have it, or may call something in it by another name.
    tensor_core = None  # type: ignore[assignment]

# Elements of the state that one program holds, by the size of the matrix product's operands. Above these the kernel
# spills registers on some GPU; tests/test_kda_replayssm_compiles.py compiles them for all.
TILE_16_BIT = 4096
TILE_32_BIT = 2048
# tl.dot takes no side shorter than 16, so smaller heads and rings are padded to it.
MIN_SIDE = 16
RING_BLOCK = 16

_OPERANDS = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
_WRITTEN = ("initial_state", "d_cache", "k_cache", "g_cache", "out")

# By the shape of mixed_qkv, and so by the batch.
_known_calls = KnownCalls(by=0)


def helion_fused_recurrent_kda_replayssm_decode(
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
) -> tuple[torch.Tensor, torch.Tensor]:
    """One decode step of Kimi Delta Attention that writes the recurrent state only once per ring of L steps.

    The name is the serving engine's, so that it can be found; the kernel inside is Triton, not Helion. The same
    function is there as ``fused_recurrent_kda_replayssm_decode``.

    ``initial_state`` is a checkpoint. For every slot a ring keeps the rank-one updates since then: value part d, key k
    and log decay g. A step replays the ring on the checkpoint, reads the output off, and appends its own update at
    ``write_pos``; only when that is the ring's last entry, or when forced to, it folds everything into the checkpoint
    instead and appends nothing. The caller advances ``write_pos``, to 0 after such a flush. With G the sum of the
    ring's g and G_j the sum up to entry j, all in fp32:

        S     = initial_state * exp(G) + sum_j d_cache[j] ⊗ (k_cache[j] * exp(G - G_j))
        delta = beta * (v - S (k * exp(g))),  beta = sigmoid(b) in b's dtype
        out   = S (q * scale * exp(g)) + delta * (k . q * scale)
        g     = -exp(A_log) * softplus(a + dt_bias), or lower_bound * sigmoid(exp(A_log) * (a + dt_bias))

    (Kimi Linear, arXiv:2510.26692, for the recurrence.) Rows whose slot is negative are padding: their ``out`` is 0. A
    slot past the pool, or a ``write_pos`` outside [0, L), gives NaN in ``out``. Neither touches anything else. Two rows
    of one call must not share a slot.

    On Hopper GPUs, calls of the usual sizes (K = 128, rings of up to 32 entries) run a kernel of their own, which
    computes the same: see tensor_core.py.

    The call does not wait for the device, so it can be captured in a CUDA graph (run it once before with the same
    shapes, dtypes and options, so that the kernel is compiled) and traced by torch.compile. Inference only: gradients
    do not flow through it.

    Args:
        mixed_qkv: [B, 2 * H * K + HV * V] fp32, fp16 or bf16; packed q, k (H heads) and v (HV heads, a multiple of H).
            Any stride between rows, last dim contiguous. K and V are powers of two.
        a: [B, HV * K] or [B, HV, K], contiguous; gate before its bias.
        b: [B, HV], last dim contiguous.
        A_log: [HV].
        dt_bias: [HV * K] or [HV, K], contiguous.
        scale: factor on q, usually ``K ** -0.5``.
        initial_state: [slots, HV, V, K] fp32 or bf16, last dim contiguous; written in place on a flush.
        d_cache: [slots, HV, L, V], any floating dtype (FP8 where the GPU converts it), any strides; appended to.
        k_cache: [slots, H, L, K], likewise.
        g_cache: [slots, HV, L, K] fp32, any strides; appended to.
        out: [B, 1, HV, V], contiguous, written. Its dtype is that of the replay's matrix product.
        ssm_state_indices: [B] any integer dtype, any stride; negative for padding.
        write_pos: [B] int32, any stride: how many entries of the ring are in use.
        force_flush: [B] int32, any stride, nonzero to flush now; or None.
        use_qk_l2norm_in_kernel: whether q and k are divided by sqrt(sum of squares + 1e-6).
        lower_bound: None for the softplus gate, else the least log decay of the sigmoid gate.

    Returns:
        ``out`` and ``initial_state``, the tensors that were passed.

    Raises:
        GuardError: a subclass of ValueError. Nothing has been written then.
    """
    pools = (initial_state, d_cache, k_cache, g_cache)
    given: tuple[Any, ...] = (mixed_qkv, a, b, A_log, dt_bias, *pools, out, ssm_state_indices, write_pos)
    forced = force_flush is not None
    known = (scale, use_qk_l2norm_in_kernel, lower_bound, forced)
    if forced:
        given = (*given, force_flush)
    compiling = torch.compiler.is_compiling()
    if not compiling and _known_calls.launch(given, known):
        return out, initial_state
    tensors: dict[str, Any] = {
        "mixed_qkv": mixed_qkv,
        "a": a,
        "b": b,
        "A_log": A_log,
        "dt_bias": dt_bias,
        "initial_state": initial_state,
        "d_cache": d_cache,
        "k_cache": k_cache,
        "g_cache": g_cache,
        "out": out,
        "ssm_state_indices": ssm_state_indices,
        "write_pos": write_pos,
        "force_flush": force_flush,
    }
    options: dict[str, Any] = {
        "scale": scale,
        "use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel,
        "lower_bound": lower_bound,
    }
    if not compiling:
        _check(tensors)
        if not needs_dispatch(*given):
            _known_calls.remember(_launch(**tensors, **options), given, known)
            return out, initial_state
    _decode_op(**tensors, **options)
    return out, initial_state


fused_recurrent_kda_replayssm_decode = helion_fused_recurrent_kda_replayssm_decode


def _check(tensors: dict[str, Any]) -> None:
    try:
        checks.check_decode(**tensors)
    except GuardError as error:
        explain_refusal(error, checks.DECODE, tensors, written=_WRITTEN)
        raise


def _launch(**arguments: Any) -> Launched | None:
    """Launch a checked call: on the tensor-core kernel if that serves it, else on the plain one."""
    names = ("initial_state", "d_cache", "k_cache", "g_cache", "out")
    cut = None if tensor_core is None else tensor_core.tile_for(*(arguments[name] for name in names))
    return _launch_plain(**arguments) if cut is None else tensor_core.launch_decode(cut, **arguments)


def _launch_plain(
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
    slots, HV, V, K = initial_state.shape
    L = d_cache.shape[2]
    operand = _OPERANDS.get(out.dtype, tl.float32)
    block_k, block_v, warps = tile(K, V, operand)
    return launch(
        kda_replayssm_decode_kernel,
        (mixed_qkv.shape[0] * HV * -(-V // block_v),),
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
        *initial_state.stride()[:3],
        *d_cache.stride(),
        *k_cache.stride(),
        *g_cache.stride(),
        ssm_state_indices.stride(0),
        write_pos.stride(0),
        0 if force_flush is None else force_flush.stride(0),
        device=mixed_qkv.device,
        H=checks.key_heads(mixed_qkv, initial_state),
        HV=HV,
        K=K,
        V=V,
        L=L,
        BLOCK_K=block_k,
        BLOCK_V=block_v,
        BLOCK_L=RING_BLOCK,
        RING_BLOCKS=-(-L // RING_BLOCK),
        NORMALISE=use_qk_l2norm_in_kernel,
        OPERAND=operand,
        INTERPRETED=is_interpreted(mixed_qkv.device),
        num_warps=warps,
    )


def tile(K: int, V: int, operand: tl.dtype) -> tuple[int, int, int]:
    """Key channels and value channels of one program, and its warps.

    Args:
        K: key channels of a head.
        V: value channels of a head.
        operand: dtype of the matrix product's operands.
    """
    elements = TILE_32_BIT if operand == tl.float32 else TILE_16_BIT
    block_k = max(K, MIN_SIDE)
    block_v = min(max(V, MIN_SIDE), max(elements // block_k, MIN_SIDE))
    return block_k, block_v, 8 if block_k >= 256 else 4


@torch.library.custom_op(
    "device_guards::kda_replayssm_decode",
    mutates_args=("initial_state", "d_cache", "k_cache", "g_cache", "out"),
)
def _decode_op(
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
) -> None:
    # Returns nothing, since an op may not return what it was given; the public function hands the two tensors back.
    helion_fused_recurrent_kda_replayssm_decode(
        mixed_qkv,
        a,
        b,
        A_log,
        dt_bias,
        scale,
        initial_state,
        d_cache,
        k_cache,
        g_cache,
        out,
        ssm_state_indices,
        write_pos,
        force_flush,
        use_qk_l2norm_in_kernel,
        lower_bound,
    )


@_decode_op.register_fake
def _(*args: Any, **kwargs: Any) -> None:
    """Nothing to infer. The checks are left to the run: there the guard's own error is raised, not a tracing error."""
