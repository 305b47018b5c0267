"""What the state scatter and the conv-window scatter refuse, in order."""

from __future__ import annotations

import torch

from kernels.guards import (
    ArgumentError,
    DeviceError,
    DtypeError,
    Guard,
    LayoutError,
    RankError,
    ShapeError,
    is_integer,
    on_gpu,
    packed_from,
    same_device,
)

STATE = "fused_mamba_state_scatter_with_mask"
VERIFY = "scatter_mamba_states_after_mtp_verify"
CONV = "fused_conv_window_scatter_with_mask"

STATE_DEVICE = Guard(
    "mamba_scatter.state.device",
    DeviceError,
    "dst and src must be on the same device. dst.device={dst.device!r} src.device={src.device!r}",
)
STATE_CUDA = Guard(
    "mamba_scatter.state.cuda",
    DeviceError,
    f"{STATE} only supports CUDA tensors.",
    "build the pool and the scratch on the GPU: torch.empty(..., device=torch.device('cuda', rank))",
)
STATE_RANK = Guard(
    "mamba_scatter.state.rank",
    RankError,
    "Unexpected tensor ranks: dst.ndim={dst.ndim!r} src.ndim={src.ndim!r}",
    "dst is [layers, slots, *state] and src is [layers, requests, steps, *state]",
)
STATE_LAYERS = Guard(
    "mamba_scatter.state.layers",
    ShapeError,
    "Layer dimension mismatch: dst.shape[0]={dst.shape[0]!r} vs src.shape[0]={src.shape[0]!r}",
    "pass pool and scratch of the same layers",
)
STATE_TRAILING = Guard(
    "mamba_scatter.state.trailing",
    ShapeError,
    "Trailing dims mismatch: dst.shape[2:]={expected!r} vs src.shape[3:]={got!r}",
    "src = src.reshape(*src.shape[:3], *dst.shape[2:])",
)
STATE_PACKED = Guard(
    "mamba_scatter.state.packed",
    LayoutError,
    f"{STATE}: dst entry dims (dims 2..{{last}}) must be contiguous; got shape={{shape}} strides={{got}}",
    "lay the pool out as [layers, slots, *state]; transposing the state dims afterwards leaves them strided",
)
STATE_SRC_CONTIGUOUS = Guard(
    "mamba_scatter.state.src_contiguous",
    LayoutError,
    "src tensor must be contiguous",
    "src = src.contiguous()",
)

CONV_DEVICE = Guard(
    "mamba_scatter.conv.device",
    DeviceError,
    f"{CONV} requires dst and src to be CUDA tensors on the same device "
    "(dst.device={dst.device!r}, src.device={src.device!r}).",
)
CONV_RANK = Guard(
    "mamba_scatter.conv.rank",
    RankError,
    "Unexpected ranks: dst.ndim={dst.ndim!r} (want 4) src.ndim={src.ndim!r} (want 5)",
    "dst is [layers, slots, dim, K-1] and src is [layers, requests, steps, dim, K-1]",
)
CONV_LAYERS = Guard(
    "mamba_scatter.conv.layers",
    ShapeError,
    "Layer dim mismatch: dst.shape[0]={dst.shape[0]!r} vs src.shape[0]={src.shape[0]!r}",
    "pass pool and windows of the same layers",
)
CONV_WINDOW = Guard(
    "mamba_scatter.conv.window",
    ShapeError,
    "Window dims mismatch: dst.shape[2:]={expected!r} vs src.shape[3:]={got!r}",
    "cut windows of dst's size: src.as_strided(...) with last dims dst.shape[2:]",
)
CONV_PACKED = Guard(
    "mamba_scatter.conv.packed",
    LayoutError,
    f"{CONV}: dst entry dims (dims 2..{{last}}) must be contiguous; got shape={{shape}} strides={{got}}",
    "lay the pool out as [layers, slots, dim, K-1]; transposing the window dims afterwards leaves them strided",
)

INDEX_RANK = Guard(
    "mamba_scatter.index.rank",
    RankError,
    "indices must be 1D: dst_indices_raw.shape={slots.shape!r} step_indices_raw.shape={steps.shape!r}",
    "{argument} = {argument}.flatten()",
)
INDEX_LENGTH = Guard(
    "mamba_scatter.index.length",
    ShapeError,
    "indices length mismatch: dst_indices_raw.shape[0]={expected!r} vs step_indices_raw.shape[0]={got!r}",
    "pass one slot and one step for each request",
)
INDEX_DEVICE = Guard(
    "mamba_scatter.index.device",
    DeviceError,
    "{argument} must be on dst's device {expected}, got {got}",
)
INDEX_DTYPE = Guard(
    "mamba_scatter.index.dtype",
    DtypeError,
    "{argument} must have an integer dtype, got {got}",
    "{argument} = {argument}.to(torch.int64)",
)
INDEX_REQUESTS = Guard(
    "mamba_scatter.index.requests",
    ShapeError,
    "step_indices_raw has {got} requests but src holds only {expected}",
    "pass the scratch of the same batch as the indices",
)


CACHE_WINDOWS = Guard(
    "mamba_scatter.cache.windows",
    ShapeError,
    "mamba_caches has {expected} conv pools but {got} intermediate conv windows",
    "give every pool in mamba_caches.conv its window in mamba_caches.intermediate_conv_window",
)
CACHE_TRACKING = Guard(
    "mamba_scatter.cache.tracking",
    ArgumentError,
    "mamba_track_indices and mamba_steps_to_track must be given together",
    "pass both, or neither",
)


def has_requests(step_indices_raw: torch.Tensor) -> bool:
    """Whether there is anything to do; a call without requests returns before any check."""
    return step_indices_raw.ndim == 0 or step_indices_raw.shape[0] > 0


def check_state_scatter(
    dst: torch.Tensor, src: torch.Tensor, dst_indices_raw: torch.Tensor, step_indices_raw: torch.Tensor
) -> None:
    """Refuse a state scatter that could not be right.

    Raises:
        GuardError: the first guard that the call violates.
    """
    if not same_device(dst, src):
        raise STATE_DEVICE.refuse("src", expected=dst.device, got=src.device, dst=dst, src=src)
    if not on_gpu(dst):
        raise STATE_CUDA.refuse("dst", expected="cuda", got=dst.device)
    if dst.ndim < 2 or src.ndim < 3:
        raise STATE_RANK.refuse("dst" if dst.ndim < 2 else "src", dst=dst, src=src)
    if dst.shape[0] != src.shape[0]:
        raise STATE_LAYERS.refuse("src", expected=dst.shape[0], got=src.shape[0], dst=dst, src=src)
    if dst.shape[2:] != src.shape[3:]:
        raise STATE_TRAILING.refuse("src", expected=dst.shape[2:], got=src.shape[3:])
    _check_index_shapes(dst_indices_raw, step_indices_raw)
    if not packed_from(dst, 2):
        raise STATE_PACKED.refuse("dst", got=tuple(dst.stride()), shape=tuple(dst.shape), last=dst.ndim - 1)
    if not src.is_contiguous():
        raise STATE_SRC_CONTIGUOUS.refuse("src", got=tuple(src.stride()))
    _check_indices(dst, src, dst_indices_raw, step_indices_raw)


def check_conv_scatter(
    dst: torch.Tensor, src: torch.Tensor, dst_indices_raw: torch.Tensor, step_indices_raw: torch.Tensor
) -> None:
    """Refuse a conv-window scatter that could not be right.

    Raises:
        GuardError: the first guard that the call violates.
    """
    if not (same_device(dst, src) and on_gpu(dst)):
        raise CONV_DEVICE.refuse("src", expected=dst.device, got=src.device, dst=dst, src=src)
    if dst.ndim != 4 or src.ndim != 5:
        raise CONV_RANK.refuse("dst" if dst.ndim != 4 else "src", dst=dst, src=src)
    if dst.shape[0] != src.shape[0]:
        raise CONV_LAYERS.refuse("src", expected=dst.shape[0], got=src.shape[0], dst=dst, src=src)
    if dst.shape[2:] != src.shape[3:]:
        raise CONV_WINDOW.refuse("src", expected=dst.shape[2:], got=src.shape[3:])
    _check_index_shapes(dst_indices_raw, step_indices_raw)
    if not packed_from(dst, 2):
        raise CONV_PACKED.refuse("dst", got=tuple(dst.stride()), shape=tuple(dst.shape), last=dst.ndim - 1)
    _check_indices(dst, src, dst_indices_raw, step_indices_raw)


def check_cache(pools: int, windows: int, has_track: bool, has_track_steps: bool) -> None:
    """Refuse a cache object, or a pair of tracking arguments, whose parts do not belong together.

    Args:
        pools: number of conv pools of the cache.
        windows: number of its intermediate conv windows.
        has_track: whether slots to track were given.
        has_track_steps: whether steps to track were given.

    Raises:
        GuardError: the first guard that the call violates.
    """
    if pools != windows:
        raise CACHE_WINDOWS.refuse("mamba_caches", expected=pools, got=windows)
    if has_track != has_track_steps:
        raise CACHE_TRACKING.refuse("mamba_steps_to_track" if has_track else "mamba_track_indices")


def _check_index_shapes(slots: torch.Tensor, steps: torch.Tensor) -> None:
    if slots.ndim != 1 or steps.ndim != 1:
        argument = "dst_indices_raw" if slots.ndim != 1 else "step_indices_raw"
        raise INDEX_RANK.refuse(argument, slots=slots, steps=steps)
    if slots.shape[0] != steps.shape[0]:
        raise INDEX_LENGTH.refuse("step_indices_raw", expected=slots.shape[0], got=steps.shape[0])


def _check_indices(dst: torch.Tensor, src: torch.Tensor, slots: torch.Tensor, steps: torch.Tensor) -> None:
    for name, tensor in (("dst_indices_raw", slots), ("step_indices_raw", steps)):
        if not same_device(tensor, dst):
            raise INDEX_DEVICE.refuse(name, expected=dst.device, got=tensor.device)
    for name, tensor in (("dst_indices_raw", slots), ("step_indices_raw", steps)):
        if not is_integer(tensor.dtype):
            raise INDEX_DTYPE.refuse(name, expected="an integer dtype", got=tensor.dtype)
    if steps.shape[0] > src.shape[1]:
        raise INDEX_REQUESTS.refuse("step_indices_raw", expected=src.shape[1], got=steps.shape[0])
