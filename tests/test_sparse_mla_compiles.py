"""The sparse MLA kernel compiles for every GPU family with FP8, without spilling, to FP8 matrix instructions."""

from __future__ import annotations

import compiled
import pytest
import torch
from compiled import Compiled, compile_for
from triton.backends.compiler import GPUTarget

from kernels.sparse_mla import api
from kernels.sparse_mla.kernel import AMD_TILE, HOPPER_TILE, NVIDIA_TILE, sparse_mla_prefill_kernel

TILES = {"sm_89": NVIDIA_TILE, "sm_90": HOPPER_TILE, "sm_100": NVIDIA_TILE, "gfx942": AMD_TILE}
# Bytes that one program may use, so that as many as intended share a multiprocessor.
SHARED = {"sm_89": 99 * 1024, "sm_90": 227 * 1024 // 2, "sm_100": 227 * 1024 // 2, "gfx942": 64 * 1024}


@pytest.fixture(autouse=True)
def ada(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compiled.TARGETS, "sm_89", GPUTarget("cuda", 89, 32))


def build(target: str, *, tail: int, options: bool) -> Compiled:
    signature = {
        "q_ptr": "*fp8e4nv:16",
        "kv_ptr": "*fp8e4nv:16",
        "indices_ptr": "*i32:16",
        "q_scale_ptr": "*fp32:16",
        "kv_scale_ptr": "*fp32:16",
        "attn_sink_ptr": "*fp32:16",
        "topk_length_ptr": "*i32:16",
        "out_ptr": "*bf16:16",
        "max_logits_ptr": "*fp32:16",
        "lse_ptr": "*fp32:16",
        "sm_scale": "fp32",
        "s_kv": "i32",
        "topk": "i32:16",
    }
    tile = dict(TILES[target])
    constants = {"HEADS": 64, "D_TAIL": tail, "D_V": 512, "BLOCK_H": 64, "BLOCK_K": tile.pop("BLOCK_K")}
    if not options:
        constants |= {"attn_sink_ptr": None, "topk_length_ptr": None}
    signature |= dict.fromkeys(constants, "constexpr")
    return compile_for(target, sparse_mla_prefill_kernel, signature, constants, **tile)


@pytest.mark.parametrize("options", [False, True], ids=["plain", "lengths and sink"])
@pytest.mark.parametrize("tail", [0, 64])
@pytest.mark.parametrize("target", TILES)
def test_compiles_without_spills(target: str, tail: int, options: bool, record_property: pytest.RecordProperty) -> None:
    built = build(target, tail=tail, options=options)
    record_property("registers", built.registers)
    record_property("spills", built.spills)
    record_property("shared", built.shared)
    assert built.spills == 0
    assert built.shared <= SHARED[target]


INSTRUCTIONS = {
    # target: FP8 scores, 16-bit values
    "sm_89": (r"mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32", r"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16"),
    "sm_90": (
        "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3",
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16",
    ),
    "sm_100": ("kind::f8f6f4", "kind::f16"),
}


@pytest.mark.parametrize("target", INSTRUCTIONS)
def test_scores_use_fp8_matrix_units(target: str) -> None:
    ptx = build(target, tail=64, options=True).asm["ptx"]
    scores, values = INSTRUCTIONS[target]
    assert scores in ptx
    assert values in ptx


def test_cdna3_has_another_fp8_and_takes_the_scores_in_fp16() -> None:
    # Its FP8 is the "fnuz" kind, whose numbers are half of the OCP kind's. Triton widens instead, which is exact.
    assembly = build("gfx942", tail=64, options=True).asm["amdgcn"]
    assert "v_mfma_f32_32x32x8_f16" in assembly
    assert "fp8" not in assembly.replace("fp8e4nv", "")


@pytest.mark.parametrize(
    ("capability", "tile"),
    [((8, 9), NVIDIA_TILE), ((9, 0), HOPPER_TILE), ((10, 0), NVIDIA_TILE), ((12, 0), NVIDIA_TILE), (None, AMD_TILE)],
)
def test_every_family_gets_its_tile(
    capability: tuple[int, int] | None, tile: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "compute_capability", lambda device: capability)
    assert api._tile(torch.device("cuda", 0)) == tile
