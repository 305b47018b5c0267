"""The scatter as Triton kernels: one program copies one block of one request's entry, in one layer or a few."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.launch import gdc_wait


@triton.jit
def _entry(slots_ptr, steps_ptr, slots_stride, steps_stride, request, num_slots, num_steps):
    """Slot and step of a request, both int64, and whether both exist.

    int64 from the start: a slot of 2^32 + 3 must stay out of range, and slot x stride may pass 2^31 elements.
    """
    slot = tl.load(slots_ptr + request * slots_stride).to(tl.int64)
    step = tl.load(steps_ptr + request * steps_stride).to(tl.int64)
    exists = (step >= 0) & (step < num_steps) & (slot >= 0) & (slot < num_slots)
    return slot, step, exists


@triton.jit
def state_scatter_kernel(
    dst_ptr,
    src_ptr,
    slots_ptr,
    steps_ptr,
    slots_stride,
    steps_stride,
    num_slots,
    num_steps,
    num_requests,
    num_layers,
    entry_size,
    num_blocks,
    dst_layer_stride,
    dst_slot_stride,
    BLOCK: tl.constexpr,
    LAYERS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """``dst[layer, slot, block] = src[layer, request, step, block]``; src is contiguous, entries of dst are packed.

    A program copies its block in LAYERS layers. EARLY tells that programs may be placed before the kernel before this
    one has ended.

    Grid: (requests x blocks of an entry, layers / LAYERS rounded up).
    """
    if EARLY:
        gdc_wait()
    request = (tl.program_id(0) // num_blocks).to(tl.int64)
    block = tl.program_id(0) % num_blocks
    first_layer = tl.program_id(1).to(tl.int64) * LAYERS
    slot, step, exists = _entry(slots_ptr, steps_ptr, slots_stride, steps_stride, request, num_slots, num_steps)
    if exists:
        offsets = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        for ahead in tl.static_range(LAYERS):
            layer = first_layer + ahead
            inside = (offsets < entry_size) & (layer < num_layers)
            source = src_ptr + ((layer * num_requests + request) * num_steps + step) * entry_size
            target = dst_ptr + layer * dst_layer_stride + slot * dst_slot_stride
            # Nothing reads either side again before the next step, so neither need stay in the L2 cache.
            values = tl.load(source + offsets, mask=inside, eviction_policy="evict_first")
            tl.store(target + offsets, values.to(dst_ptr.dtype.element_ty), mask=inside, eviction_policy="evict_first")


@triton.jit
def conv_window_scatter_kernel(
    dst_ptr,
    src_ptr,
    slots_ptr,
    steps_ptr,
    slots_stride,
    steps_stride,
    num_slots,
    num_steps,
    entry_size,
    num_blocks,
    dst_layer_stride,
    dst_slot_stride,
    src_layer_stride,
    src_request_stride,
    src_step_stride,
    src_dim_stride,
    src_window_stride,
    WINDOW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``dst[layer, slot, d, w] = src[layer, request, step, d, w]`` where src has any strides (windows may overlap).

    Grid: (requests x blocks of an entry, layers).
    """
    request = (tl.program_id(0) // num_blocks).to(tl.int64)
    block = tl.program_id(0) % num_blocks
    layer = tl.program_id(1).to(tl.int64)
    slot, step, exists = _entry(slots_ptr, steps_ptr, slots_stride, steps_stride, request, num_slots, num_steps)
    if exists:
        offsets = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = offsets < entry_size
        source = src_ptr + layer * src_layer_stride + request * src_request_stride + step * src_step_stride
        source += (offsets // WINDOW) * src_dim_stride + (offsets % WINDOW) * src_window_stride
        target = dst_ptr + layer * dst_layer_stride + slot * dst_slot_stride
        values = tl.load(source, mask=inside)
        tl.store(target + offsets, values.to(dst_ptr.dtype.element_ty), mask=inside)
