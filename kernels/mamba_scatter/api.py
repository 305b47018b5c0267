"""The public functions of the state scatter: check, then launch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Protocol

import torch

from kernels.guards import GuardError, explain_refusal
from kernels.known_calls import KnownCalls
from kernels.launch import Launched, early_start, is_interpreted, launch, needs_dispatch
from kernels.mamba_scatter import checks
from kernels.mamba_scatter.kernel import conv_window_scatter_kernel, state_scatter_kernel

# Bytes that one program copies, and its warps: two 16-byte accesses a thread. Of the sizes from 1 to 32 KiB this was
# the fastest on an H200 (figures in docs/performance.md): small programs finish evenly, so the last wave is short.
BLOCK_BYTES = 4096
NUM_WARPS = 4
# A program takes 0.6 ns to start, also if it only finds that its request is padding. Where there would be more programs
# than this, each takes several layers. Four make a call 1% slower without padding, and 2.4 times as fast with 28 of 32
# requests padded.
MANY_PROGRAMS = 2**18
LAYERS_OF_A_PROGRAM = (1, 2, 4)
# A conv window is gathered element by element, each with an address of its own, so a program takes fewer of them.
CONV_BLOCK = 1024

# Dtypes between which Triton's casts round as copy_ does. Other pairs are converted by PyTorch before the launch.
_CAST_IN_KERNEL = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

# By the number of requests, which changes from step to step.
_known_state_calls = KnownCalls(by=3)
_known_conv_calls = KnownCalls(by=3)


class MambaCaches(Protocol):
    """What :func:`scatter_mamba_states_after_mtp_verify` needs of a cache.

    Attributes:
        temporal: [layers, slots, *state], the persistent recurrent states.
        intermediate_ssm: [layers, requests, steps, *state], the states after each draft step.
        conv: conv-window pools, each [layers, slots, dim, K-1].
        intermediate_conv_window: for each pool its windows, [layers, requests, steps, dim, K-1].
    """

    temporal: torch.Tensor
    intermediate_ssm: torch.Tensor
    conv: list[torch.Tensor]
    intermediate_conv_window: list[torch.Tensor]


def fused_mamba_state_scatter_with_mask(
    dst: torch.Tensor, src: torch.Tensor, dst_indices_raw: torch.Tensor, step_indices_raw: torch.Tensor
) -> None:
    """Keep, for each request, the recurrent state after its last accepted draft step.

    For every request i with ``step_indices_raw[i] >= 0`` and every layer:
    ``dst[:, dst_indices_raw[i]] = src[:, i, step_indices_raw[i]]``. A request whose step or slot does not exist is
    skipped. Slots are meant to be distinct; if two requests name the same one, either may win.

    The values are copied bit for bit when the dtypes agree and cast as ``Tensor.copy_`` does otherwise. The call does
    not wait for the device, so it can be captured in a CUDA graph (run it once before, so that the kernel is compiled)
    and traced by torch.compile. Inference only: gradients do not flow through it.

    Args:
        dst: [layers, slots, *state], any dtype of up to 8 bytes, written in place. Any strides in its first two dims,
            state dims packed.
        src: [layers, requests, steps, *state], contiguous.
        dst_indices_raw: [n] any integer dtype, any stride; n may be less than requests.
        step_indices_raw: [n] any integer dtype, any stride.

    Raises:
        GuardError: a subclass of ValueError. Nothing has been written then.
    """
    if not torch.compiler.is_compiling():
        tensors = (dst, src, dst_indices_raw, step_indices_raw)
        if _known_state_calls.launch(tensors) or not checks.has_requests(step_indices_raw):
            return
        _check_state(*tensors)
        if not needs_dispatch(*tensors):
            _known_state_calls.remember(_launch_state(*tensors), tensors)
            return
    _state_op(dst, src, dst_indices_raw, step_indices_raw)


def fused_conv_window_scatter_with_mask(
    dst: torch.Tensor, src: torch.Tensor, dst_indices_raw: torch.Tensor, step_indices_raw: torch.Tensor
) -> None:
    """Keep, for each request, the convolution window after its last accepted draft step.

    The same rule as :func:`fused_mamba_state_scatter_with_mask`, for windows of the last K-1 inputs of a causal
    convolution. Consecutive windows overlap, so ``src`` is normally an ``as_strided`` view over
    [layers, requests, dim, steps + K - 2] and may have any strides.

    Args:
        dst: [layers, slots, dim, K-1], written in place; window dims packed.
        src: [layers, requests, steps, dim, K-1], any strides.
        dst_indices_raw: [n] any integer dtype, any stride.
        step_indices_raw: [n] any integer dtype, any stride.

    Raises:
        GuardError: a subclass of ValueError. Nothing has been written then.
    """
    if not torch.compiler.is_compiling():
        tensors = (dst, src, dst_indices_raw, step_indices_raw)
        if _known_conv_calls.launch(tensors) or not checks.has_requests(step_indices_raw):
            return
        _check_conv(*tensors)
        if not needs_dispatch(*tensors):
            _known_conv_calls.remember(_launch_conv(*tensors), tensors)
            return
    _conv_op(dst, src, dst_indices_raw, step_indices_raw)


def scatter_mamba_states_after_mtp_verify(
    mamba_caches: MambaCaches,
    state_indices_tensor: torch.Tensor,
    last_correct_step_indices: torch.Tensor,
    mamba_track_indices: torch.Tensor | None = None,
    mamba_steps_to_track: torch.Tensor | None = None,
) -> None:
    """Scatter recurrent states and conv windows of a cache after the draft tokens have been verified.

    Applies :func:`fused_mamba_state_scatter_with_mask` to the states and
    :func:`fused_conv_window_scatter_with_mask` to each conv pool, first with the accepted steps, then, if given, with
    the steps to track (a second slot per request that follows along for prefix caching).

    All of these are checked before the first one is launched, so a refused call leaves every pool as it was.

    Args:
        mamba_caches: the pools and their per-step scratch, see :class:`MambaCaches`.
        state_indices_tensor: [n] integer, slot of each request.
        last_correct_step_indices: [n] integer, last accepted step of each request, negative for none.
        mamba_track_indices: [n] integer or None, slot that tracks each request.
        mamba_steps_to_track: [n] integer or None, step to store there, negative for none.

    Raises:
        GuardError: a subclass of ValueError. Nothing has been written then.
    """
    if torch.compiler.is_compiling():
        # As one op: of several in a row, the first would have written by the time that another is refused.
        _verify_op(
            mamba_caches.temporal,
            mamba_caches.intermediate_ssm,
            list(mamba_caches.conv),
            list(mamba_caches.intermediate_conv_window),
            state_indices_tensor,
            last_correct_step_indices,
            mamba_track_indices,
            mamba_steps_to_track,
        )
        return
    _check_cache(mamba_caches, mamba_track_indices, mamba_steps_to_track)
    rounds = [(state_indices_tensor, last_correct_step_indices)]
    if mamba_track_indices is not None and mamba_steps_to_track is not None:
        rounds.append((mamba_track_indices, mamba_steps_to_track))
    for slots, steps in rounds:
        if checks.has_requests(steps):
            _check_state(mamba_caches.temporal, mamba_caches.intermediate_ssm, slots, steps)
            for pool, windows in zip(mamba_caches.conv, mamba_caches.intermediate_conv_window, strict=True):
                _check_conv(pool, windows, slots, steps)
    for slots, steps in rounds:
        fused_mamba_state_scatter_with_mask(mamba_caches.temporal, mamba_caches.intermediate_ssm, slots, steps)
        for pool, windows in zip(mamba_caches.conv, mamba_caches.intermediate_conv_window, strict=True):
            fused_conv_window_scatter_with_mask(pool, windows, slots, steps)


def _check_cache(caches: MambaCaches, track: torch.Tensor | None, steps: torch.Tensor | None) -> None:
    try:
        checks.check_cache(len(caches.conv), len(caches.intermediate_conv_window), track is not None, steps is not None)
    except GuardError as error:
        explain_refusal(error, checks.VERIFY, {})
        raise


def _check_state(dst: torch.Tensor, src: torch.Tensor, slots: torch.Tensor, steps: torch.Tensor) -> None:
    try:
        checks.check_state_scatter(dst, src, slots, steps)
    except GuardError as error:
        explain_refusal(error, checks.STATE, _named(dst, src, slots, steps), written=("dst",))
        raise


def _check_conv(dst: torch.Tensor, src: torch.Tensor, slots: torch.Tensor, steps: torch.Tensor) -> None:
    try:
        checks.check_conv_scatter(dst, src, slots, steps)
    except GuardError as error:
        explain_refusal(error, checks.CONV, _named(dst, src, slots, steps), written=("dst",))
        raise


def _named(dst: torch.Tensor, src: torch.Tensor, slots: torch.Tensor, steps: torch.Tensor) -> dict[str, Any]:
    return {"dst": dst, "src": src, "dst_indices_raw": slots, "step_indices_raw": steps}


def _launch_state(dst: torch.Tensor, src: torch.Tensor, slots: torch.Tensor, steps: torch.Tensor) -> Launched | None:
    if dst.numel() == 0 or src.numel() == 0:
        return None
    entry_size = dst.shape[2:].numel()
    dst, src = _as_copyable(dst, src)
    block = _block(entry_size, dst.element_size())
    num_blocks = -(-entry_size // block)
    layers = _layers_of_a_program(steps.shape[0] * num_blocks * dst.shape[0])
    return launch(
        state_scatter_kernel,
        (steps.shape[0] * num_blocks, -(-dst.shape[0] // layers)),
        dst,
        src,
        slots,
        steps,
        slots.stride(0),
        steps.stride(0),
        dst.shape[1],
        src.shape[2],
        src.shape[1],
        dst.shape[0],
        entry_size,
        num_blocks,
        dst.stride(0),
        dst.stride(1),
        device=dst.device,
        BLOCK=block,
        LAYERS=layers,
        **early_start(dst.device),
        num_warps=NUM_WARPS,
    )


def _launch_conv(dst: torch.Tensor, src: torch.Tensor, slots: torch.Tensor, steps: torch.Tensor) -> Launched | None:
    if dst.numel() == 0 or src.numel() == 0:
        return None
    dst, src = _as_copyable(dst, src)
    entry_size = dst.shape[2] * dst.shape[3]
    block = min(CONV_BLOCK, _next_power_of_two(entry_size))
    num_blocks = -(-entry_size // block)
    return launch(
        conv_window_scatter_kernel,
        (steps.shape[0] * num_blocks, dst.shape[0]),
        dst,
        src,
        slots,
        steps,
        slots.stride(0),
        steps.stride(0),
        dst.shape[1],
        src.shape[2],
        entry_size,
        num_blocks,
        dst.stride(0),
        dst.stride(1),
        *src.stride(),
        device=dst.device,
        WINDOW=dst.shape[3],
        BLOCK=block,
        num_warps=NUM_WARPS,
    )


def _as_copyable(dst: torch.Tensor, src: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Views (or, for unusual pairs of dtypes, a converted src) whose elements the kernel can copy."""
    if dst.dtype != src.dtype:
        # Triton's interpreter truncates where a cast to bf16 should round.
        if {dst.dtype, src.dtype} <= _CAST_IN_KERNEL and not is_interpreted(dst.device):
            return dst, src
        src = src.to(dst.dtype)
    if dst.element_size() in _WORDS:
        # Moving integers keeps every bit, NaN payloads included, and serves dtypes that Triton does not know.
        word = _WORDS[dst.element_size()]
        return dst.view(word), src.view(word)
    return dst, src


def _block(entry_size: int, element_size: int) -> int:
    return min(BLOCK_BYTES // element_size, _next_power_of_two(entry_size))


def _layers_of_a_program(blocks: int) -> int:
    """The fewest that leave no more than MANY_PROGRAMS, if any do."""
    *fewer, most = LAYERS_OF_A_PROGRAM
    return next((layers for layers in fewer if blocks <= layers * MANY_PROGRAMS), most)


def _next_power_of_two(n: int) -> int:
    # Triton's own is meant for kernels and takes microseconds on the host.
    return 1 << (n - 1).bit_length()


@torch.library.custom_op("device_guards::mamba_state_scatter", mutates_args=("dst",))
def _state_op(
    dst: torch.Tensor, src: torch.Tensor, dst_indices_raw: torch.Tensor, step_indices_raw: torch.Tensor
) -> None:
    fused_mamba_state_scatter_with_mask(dst, src, dst_indices_raw, step_indices_raw)


@torch.library.custom_op("device_guards::mamba_conv_window_scatter", mutates_args=("dst",))
def _conv_op(
    dst: torch.Tensor, src: torch.Tensor, dst_indices_raw: torch.Tensor, step_indices_raw: torch.Tensor
) -> None:
    fused_conv_window_scatter_with_mask(dst, src, dst_indices_raw, step_indices_raw)


@torch.library.custom_op("device_guards::mamba_verify_scatter", mutates_args=("temporal", "conv"))
def _verify_op(
    temporal: torch.Tensor,
    intermediate_ssm: torch.Tensor,
    conv: list[torch.Tensor],
    intermediate_conv_window: list[torch.Tensor],
    state_indices_tensor: torch.Tensor,
    last_correct_step_indices: torch.Tensor,
    mamba_track_indices: torch.Tensor | None,
    mamba_steps_to_track: torch.Tensor | None,
) -> None:
    scatter_mamba_states_after_mtp_verify(
        SimpleNamespace(
            temporal=temporal,
            intermediate_ssm=intermediate_ssm,
            conv=conv,
            intermediate_conv_window=intermediate_conv_window,
        ),
        state_indices_tensor,
        last_correct_step_indices,
        mamba_track_indices,
        mamba_steps_to_track,
    )


@_state_op.register_fake
@_conv_op.register_fake
@_verify_op.register_fake
def _(*arguments: Any) -> None:
    """Nothing to infer. The checks are left to the run: there the guard's own error is raised, not a tracing error."""
