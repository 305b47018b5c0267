"""The scatter kernels compile to machine code for every GPU family, without spilling."""

from __future__ import annotations

import re

import pytest
from compiled import STARTS_EARLY, TARGETS, compile_for

from kernels.mamba_scatter.api import BLOCK_BYTES, CONV_BLOCK, LAYERS_OF_A_PROGRAM, NUM_WARPS
from kernels.mamba_scatter.kernel import conv_window_scatter_kernel, state_scatter_kernel

INTEGERS = {
    state_scatter_kernel: (
        "slots_stride steps_stride num_slots num_steps num_requests num_layers entry_size num_blocks "
        "dst_layer_stride dst_slot_stride"
    ),
    conv_window_scatter_kernel: (
        "slots_stride steps_stride num_slots num_steps entry_size num_blocks dst_layer_stride dst_slot_stride "
        "src_layer_stride src_request_stride src_step_stride src_dim_stride src_window_stride"
    ),
}
MULTIPLES_OF_16 = {"entry_size", "dst_layer_stride", "dst_slot_stride"}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("dst", "src", "size"), [("i32", "i32", 4), ("i16", "i16", 2), ("bf16", "fp32", 4)])
@pytest.mark.parametrize(
    ("kernel", "layers"),
    [*((state_scatter_kernel, layers) for layers in LAYERS_OF_A_PROGRAM), (conv_window_scatter_kernel, 1)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_compiles_without_spills(kernel: object, layers: int, target: str, dst: str, src: str, size: int) -> None:
    pointers = {"dst_ptr": f"*{dst}:16", "src_ptr": f"*{src}:16", "slots_ptr": "*i64:16", "steps_ptr": "*i32:16"}
    names = INTEGERS[kernel].split()
    signature = pointers | {name: "i64:16" if name in MULTIPLES_OF_16 else "i32" for name in names}
    constants = {"BLOCK": BLOCK_BYTES // size, "LAYERS": layers, "EARLY": target in STARTS_EARLY}
    if kernel is conv_window_scatter_kernel:
        constants = {"BLOCK": CONV_BLOCK, "WINDOW": 3}
    signature |= dict.fromkeys(constants, "constexpr")
    built = compile_for(target, kernel, signature, constants, num_warps=NUM_WARPS)
    assert built.spills == 0
    assert built.registers <= 128


@pytest.mark.parametrize("layers", LAYERS_OF_A_PROGRAM)
def test_a_copied_word_moves_in_16_byte_accesses(layers: int) -> None:
    pointers = {"dst_ptr": "*i32:16", "src_ptr": "*i32:16", "slots_ptr": "*i64:16", "steps_ptr": "*i64:16"}
    names = INTEGERS[state_scatter_kernel].split()
    signature = pointers | {name: "i64:16" if name in MULTIPLES_OF_16 else "i32" for name in names}
    built = compile_for(
        "sm_90",
        state_scatter_kernel,
        signature | {"BLOCK": "constexpr", "LAYERS": "constexpr", "EARLY": "constexpr"},
        {"BLOCK": BLOCK_BYTES // 4, "LAYERS": layers, "EARLY": True},
        num_warps=NUM_WARPS,
    )
    accesses = layers * BLOCK_BYTES // 16 // (32 * NUM_WARPS)
    for kind in ("ld", "st"):
        assert len(re.findall(rf"{kind}\.global\S*\.v4\.b32", built.asm["ptx"])) == accesses
