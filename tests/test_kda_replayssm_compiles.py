"""The decode kernel compiles to machine code for every GPU family, without spilling."""

from __future__ import annotations

from typing import Any

import pytest
import triton
import triton.language as tl
from compiled import TARGETS, Compiled, compile_for
from packaging.version import Version

from kernels.kda_replayssm.api import RING_BLOCK, tile
from kernels.kda_replayssm.kernel import kda_replayssm_decode_kernel

OPERANDS = {"bf16": tl.bfloat16, "fp16": tl.float16, "fp32": tl.float32}
BIG_STRIDES = {"state_slot_stride", "d_slot_stride", "k_slot_stride", "g_slot_stride"}
UNIT_STRIDES = {"d_v_stride", "k_k_stride", "g_k_stride", "ssm_state_indices_stride", "write_pos_stride"}


def build(
    target: str,
    *,
    dtype: str = "bf16",
    state: str = "fp32",
    ring: str | None = None,
    K: int = 128,
    V: int = 128,
    L: int = 16,
    group: int = 1,
    lower_bound: bool = False,
    forced: bool = False,
    index: str = "i32",
) -> Compiled:
    """Compile as the public function would for contiguous tensors of these dtypes and sizes."""
    block_k, block_v, warps = tile(K, V, OPERANDS[dtype])
    pointers = dict.fromkeys(("mixed_qkv_ptr", "a_ptr", "b_ptr", "out_ptr"), dtype)
    pointers |= {"A_log_ptr": "fp32", "dt_bias_ptr": "fp32", "initial_state_ptr": state, "g_cache_ptr": "fp32"}
    pointers |= {"d_cache_ptr": ring or dtype, "k_cache_ptr": ring or dtype}
    pointers |= {"ssm_state_indices_ptr": index, "write_pos_ptr": "i32", "force_flush_ptr": "i32"}
    constants: dict[str, Any] = dict.fromkeys(UNIT_STRIDES, 1)
    constants |= {"H": 32 // group, "HV": 32, "K": K, "V": V, "L": L}
    constants |= {"BLOCK_K": block_k, "BLOCK_V": block_v, "BLOCK_L": RING_BLOCK, "NORMALISE": True}
    constants |= {"RING_BLOCKS": triton.cdiv(L, RING_BLOCK), "OPERAND": OPERANDS[dtype], "INTERPRETED": False}
    constants |= {} if lower_bound else {"lower_bound": None}
    constants |= {"force_flush_stride": 1} if forced else {"force_flush_ptr": None, "force_flush_stride": 0}

    def kind(name: str) -> str:
        if name in constants:
            return "constexpr"
        if name in pointers:
            return f"*{pointers[name]}:16"
        if name in ("scale", "lower_bound"):
            return "fp32"
        return "i64:16" if name in BIG_STRIDES else "i32:16" if name.endswith("stride") else "i32"

    signature = {name: kind(name) for name in kda_replayssm_decode_kernel.arg_names}
    return compile_for(target, kda_replayssm_decode_kernel, signature, constants, num_warps=warps)


# Registers per thread that each variant may take. What was seen (sm_80, sm_90, sm_100, gfx942) with the pinned Triton
# is a little less; Triton 3.6 takes up to 32 more.
ALLOWANCE = 0 if Version(triton.__version__) >= Version("3.7") else 32
VARIANTS: dict[str, tuple[int, dict[str, Any]]] = {
    "serving": (160, {}),
    "serving, bf16 state": (144, {"state": "bf16"}),
    "serving, all options": (160, {"group": 4, "lower_bound": True, "forced": True, "index": "i64"}),
    "fp16": (160, {"dtype": "fp16", "state": "bf16"}),
    "fp32": (216, {"dtype": "fp32"}),
    "fp32 ring": (192, {"ring": "fp32"}),
    "ring of 4": (160, {"L": 4}),
    "ring of 100": (255, {"L": 100}),
    "K 256, V 256": (160, {"K": 256, "V": 256}),
    "K 256, V 256, fp32": (224, {"K": 256, "V": 256, "dtype": "fp32"}),
    "K 1, V 1": (64, {"K": 1, "V": 1}),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_compiles_without_spills(variant: str, target: str, record_property: Any) -> None:
    most, options = VARIANTS[variant]
    built = build(target, **options)
    for figure in ("registers", "spills", "shared"):
        record_property(figure, getattr(built, figure))
    assert built.spills == 0
    assert built.registers <= min(most + ALLOWANCE, 255)
    # Two programs of the serving shapes and more fit a multiprocessor's shared memory side by side.
    assert built.shared <= 48 * 1024


@pytest.mark.parametrize(("state", "width"), [("fp32", 4), ("bf16", 2)])
def test_the_state_moves_in_16_byte_accesses(state: str, width: int) -> None:
    ptx = build("sm_90", state=state).asm["ptx"]
    _, block_v, warps = tile(128, 128, tl.bfloat16)
    state_accesses = block_v * 128 * width // 16 // (32 * warps)
    assert ptx.count("ld.global.v4") >= state_accesses
    assert ptx.count("st.global.v4") >= state_accesses


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_the_replay_runs_on_the_matrix_units(dtype: str) -> None:
    ptx = build("sm_90", dtype=dtype).asm["ptx"]
    assert f"f32.{dtype.replace('fp', 'f')}.{dtype.replace('fp', 'f')}.f32" in ptx


@pytest.mark.parametrize(
    ("K", "V", "operand", "expected"),
    [
        (128, 128, tl.bfloat16, (128, 32, 4)),
        (128, 128, tl.float32, (128, 16, 4)),
        (256, 256, tl.bfloat16, (256, 16, 8)),
        (1, 1, tl.float16, (16, 16, 4)),
        (16, 64, tl.bfloat16, (16, 64, 4)),
    ],
    ids=str,
)
def test_tiles(K: int, V: int, operand: tl.dtype, expected: tuple[int, int, int]) -> None:
    assert tile(K, V, operand) == expected


def test_indices_are_widened_and_never_narrowed() -> None:
    ttir = build("sm_90", index="i64").asm["ttir"]
    assert "arith.extsi" in ttir
    assert "arith.trunci" not in ttir
