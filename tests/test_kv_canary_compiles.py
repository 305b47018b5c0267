"""The canary kernels compile to machine code for every GPU family, without spilling."""

from __future__ import annotations

import re
from typing import Any

import pytest
import triton.language as tl
from compiled import STARTS_EARLY, TARGETS, Compiled, compile_for

from kernels.kv_canary.api import SCATTER_BLOCK, TILINGS, Tiling
from kernels.kv_canary.kernel import plan_kernel, scatter_tokens_kernel

COUNTERS = ("num_valid_ptr", "enable_ptr", "num_reqs_ptr")
INT32 = {*COUNTERS, "table_ptr", "expected_ptr"}


def compile_plan(target: str, tiling: Tiling, *, mapped: bool = True, tokens: bool = True) -> Compiled:
    constants: dict[str, Any] = {"BLOCK": tiling.block, "CHUNKS": tiling.chunks, "TILE": tiling.tile}
    constants |= {"INDEX": tl.int32, "VECTOR": tiling.vector, "EARLY": target in STARTS_EARLY}
    if not mapped:
        constants["mapping_ptr"] = None
    if not tokens:
        constants |= {"expected_ptr": None, "expected_lens_ptr": None}
    signature = {}
    for name in plan_kernel.arg_names:
        if name in constants:
            signature[name] = "constexpr"
        elif name.endswith("_ptr"):
            signature[name] = "*i32:16" if name in INT32 else "*i64:16"
        else:
            signature[name] = "i32"
    return compile_for(target, plan_kernel, signature, constants, num_warps=tiling.num_warps)


@pytest.mark.parametrize("tiling", TILINGS, ids=lambda tiling: f"up to {tiling.block * tiling.chunks}")
@pytest.mark.parametrize("target", TARGETS)
def test_plan_compiles_without_spills(target: str, tiling: Tiling) -> None:
    built = compile_plan(target, tiling)
    print(f"{target} {tiling}: {built.registers} registers, {built.spills} bytes spilled")
    assert built.spills == 0
    assert built.registers <= 128
    assert built.shared <= 16384


@pytest.mark.parametrize(("mapped", "tokens"), [(False, False), (True, False), (False, True)])
def test_plan_without_mapping_or_tokens(mapped: bool, tokens: bool) -> None:
    built = compile_plan("sm_90", TILINGS[-1], mapped=mapped, tokens=tokens)
    assert built.spills == 0
    assert built.registers <= 128


@pytest.mark.parametrize("vector", [True, False])
def test_vector_stores_a_full_tile_16_bytes_at_a_time(vector: bool) -> None:
    tiling = Tiling(block=256, chunks=1, tile=256, num_warps=4, max_log2_workers=9, vector=vector)
    built = compile_plan("sm_90", tiling)
    stores = len(re.findall(r"st\.global\S*\.v2\.b64", built.asm["ptx"]))
    assert stores == vector * 4 * tiling.tile // (2 * 32 * tiling.num_warps)


@pytest.mark.parametrize("target", TARGETS)
def test_scatter_compiles_without_spills(target: str) -> None:
    signature = dict.fromkeys(scatter_tokens_kernel.arg_names, "i32")
    signature |= dict.fromkeys(("flat_ptr", "offsets_ptr", "pools_ptr"), "*i64:16")
    signature |= {"pool_ptr": "*i32:16", "BLOCK": "constexpr"}
    built = compile_for(target, scatter_tokens_kernel, signature, {"BLOCK": SCATTER_BLOCK})
    assert built.spills == 0
    assert built.registers <= 64
