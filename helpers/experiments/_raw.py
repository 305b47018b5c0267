"""Scatters without checks: the guide's kernel launched as it is, and a kernel as one might write it first."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.launch import interpreter, launch
from kernels.mamba_scatter.kernel import state_scatter_kernel


def scatter_unguarded(dst: torch.Tensor, src: torch.Tensor, slots: torch.Tensor, steps: torch.Tensor) -> None:
    """Launch on dst's device, whatever the other tensors are; without a GPU through Triton's interpreter."""
    entry_size = dst[0, 0].numel()
    blocks = triton.cdiv(entry_size, 1024)
    with interpreter():
        launch(
            state_scatter_kernel,
            (steps.shape[0] * blocks, dst.shape[0]),
            dst,
            src,
            slots,
            steps,
            1,
            1,
            dst.shape[1],
            src.shape[2],
            src.shape[1],
            dst.shape[0],
            entry_size,
            blocks,
            dst.stride(0),
            dst.stride(1),
            device=dst.device,
            BLOCK=1024,
            LAYERS=1,
            EARLY=False,
        )


@triton.jit
def naive_scatter_kernel(dst_ptr, state_ptr, slot_ptr, layer_stride, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """One request's state into its slot, in every layer. Whether that slot exists, nobody asks."""
    layer = tl.program_id(0)
    offsets = tl.arange(0, SIZE)
    slot = tl.load(slot_ptr)
    tl.store(dst_ptr + layer * layer_stride + slot * SIZE + offsets, tl.load(state_ptr + offsets))


def scatter_naively(pool: torch.Tensor, slot: int) -> None:
    """Write a state of ones into a slot of a pool [layers, slots, size], whether the slot exists or not."""
    state = torch.ones(pool.shape[2], device=pool.device)
    slots = torch.tensor([slot], device=pool.device)
    with interpreter():
        launch(
            naive_scatter_kernel,
            (pool.shape[0],),
            pool,
            state,
            slots,
            pool.stride(0),
            device=pool.device,
            SIZE=pool.shape[2],
        )
