"""The scatter in plain PyTorch, one request at a time, for any device and for reading."""

from __future__ import annotations

import torch


def mamba_state_scatter_reference(
    dst: torch.Tensor, src: torch.Tensor, dst_indices_raw: torch.Tensor, step_indices_raw: torch.Tensor
) -> None:
    """Copy each request's accepted state into its slot, for all layers.

    ``dst[:, dst_indices_raw[i]] = src[:, i, step_indices_raw[i]]`` for every request i whose step and slot both
    exist; others are skipped. Serves state pools and conv windows alike, since it indexes whole entries. The index
    values are read on the host, so on a GPU this waits for the device.

    Args:
        dst: [layers, slots, *entry], written in place.
        src: [layers, requests, steps, *entry]; values are cast to dst's dtype.
        dst_indices_raw: [n] integer, the target slot of each request.
        step_indices_raw: [n] integer, the accepted step of each request; negative means none.
    """
    slots, steps = dst.shape[1], src.shape[2]
    for request, (slot, step) in enumerate(zip(dst_indices_raw.tolist(), step_indices_raw.tolist(), strict=True)):
        if 0 <= step < steps and 0 <= slot < slots:
            dst[:, slot] = src[:, request, step].to(dst.dtype)


def scatter_after_verify_reference(
    mamba_caches: object,
    state_indices_tensor: torch.Tensor,
    last_correct_step_indices: torch.Tensor,
    mamba_track_indices: torch.Tensor | None = None,
    mamba_steps_to_track: torch.Tensor | None = None,
) -> None:
    """Apply the reference scatter to every pool of a cache, first with the accepted steps, then with the tracked ones.

    Args: as :func:`kernels.scatter_mamba_states_after_mtp_verify`.
    """
    pools = [(mamba_caches.temporal, mamba_caches.intermediate_ssm)]  # type: ignore[attr-defined]
    pools += zip(mamba_caches.conv, mamba_caches.intermediate_conv_window, strict=True)  # type: ignore[attr-defined]
    rounds = [(state_indices_tensor, last_correct_step_indices)]
    if mamba_track_indices is not None and mamba_steps_to_track is not None:
        rounds.append((mamba_track_indices, mamba_steps_to_track))
    for slots, steps in rounds:
        for dst, src in pools:
            mamba_state_scatter_reference(dst, src, slots, steps)
