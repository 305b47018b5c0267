"""The tensor-core kernel of the ReplaySSM decode: when it is taken, what it compiles to, and that it is right.

What both kernels promise is tested in test_kda_replayssm_numerics.py, on shapes that the plain one serves everywhere.
Here the shapes are those of the tensor-core kernel, on the GPU that it is for.
"""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from compiled import STARTS_EARLY, Compiled, compile_for
from kda_replayssm_steps import RINGS, WRITTEN, assert_close, make_step, poison_unused, run_and_compare, set_rows

import kernels
from helpers import topology
from helpers.calls import relative_error, same_bits
from kernels.kda_replayssm import api

if api.tensor_core is None:
    pytest.skip("this Triton's Gluon lacks what the kernel is written in", allow_module_level=True)

from kernels.kda_replayssm.tensor_core import FEW, FEW_HEADS, IN_PLACE, MANY, READ, TAKEN_APART, Tile, ring_rows

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
TENSOR_CORE = ("initial_state", "d_cache", "k_cache", "g_cache", "out")


# When it is taken.


def chosen(args: dict[str, Any]) -> Tile | None:
    return api.tensor_core.tile_for(*(args[name] for name in TENSOR_CORE))


def stand_ins(
    batch: int = 64,
    HV: int = 8,
    K: int = 128,
    V: int = 128,
    L: int = 16,
    state: torch.dtype = FP32,
    ring: torch.dtype = BF16,
    out: torch.dtype = BF16,
    on: torch.device = topology.HOME,
) -> dict[str, Any]:
    shapes = {
        "initial_state": ((3, HV, V, K), state),
        "d_cache": ((3, HV, L, V), ring),
        "k_cache": ((3, HV, L, K), ring),
        "g_cache": ((3, HV, L, K), FP32),
        "out": ((batch, 1, HV, V), out),
    }
    return {name: topology.stand_in(shape, None, dtype, on) for name, (shape, dtype) in shapes.items()}


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api.tensor_core, "compute_capability", lambda device: (9, 0) if device.type == "cuda" else None)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    ("sizes", "tile"),
    [
        ({}, IN_PLACE[16]),
        ({"state": BF16}, READ[16]),
        ({"state": BF16, "V": 64}, IN_PLACE[16]),
        ({"state": BF16, "ring": FP16, "out": FP16}, IN_PLACE[16]),
        ({"L": 1}, IN_PLACE[16]),
        ({"L": 17}, IN_PLACE[32]),
        ({"L": 32, "state": BF16}, READ[32]),
        ({"batch": 512, "state": BF16}, MANY),
        ({"batch": 511, "state": BF16}, READ[16]),
        ({"batch": 256, "V": 256, "state": BF16}, MANY),
        ({"batch": 512, "L": 9, "state": BF16}, MANY),
        ({"batch": 512, "L": 8, "state": BF16}, READ[16]),
        ({"batch": 512, "L": 17, "state": BF16}, READ[32]),
        ({"batch": 512}, IN_PLACE[16]),
        ({"batch": FEW_HEADS // 8}, FEW),
        ({"batch": FEW_HEADS // 8 + 1}, IN_PLACE[16]),
        ({"batch": 1, "state": BF16}, FEW),
        ({"V": 32}, FEW),
        ({"ring": FP32}, TAKEN_APART),
        ({"ring": FP32, "state": BF16}, TAKEN_APART),
        ({"out": FP32}, TAKEN_APART),
        ({"out": FP32, "ring": FP32, "L": 32}, TAKEN_APART),
    ],
    ids=str,
)
def test_the_tile_follows_from_sizes_and_dtypes(sizes: dict[str, Any], tile: Tile) -> None:
    assert chosen(stand_ins(**sizes)) == tile


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    "sizes",
    [
        {"K": 64},
        {"K": 256},
        {"V": 16},
        {"L": 33},
        {"ring": torch.float8_e4m3fn},
        {"ring": torch.float64},
        {"out": torch.float64},
        {"on": topology.CPU},
    ],
    ids=str,
)
def test_it_leaves_the_rest_to_the_plain_kernel(sizes: dict[str, Any]) -> None:
    assert chosen(stand_ins(**sizes)) is None


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("name", RINGS)
def test_it_leaves_rings_with_gaps_between_elements_to_the_plain_kernel(name: str) -> None:
    args = stand_ins()
    shape = tuple(args[name].shape)
    strides = (shape[1] * shape[2] * shape[3], shape[2] * shape[3], 1, shape[2])
    args[name] = topology.stand_in(shape, strides, args[name].dtype, topology.HOME)
    assert chosen(args) is None


@pytest.mark.parametrize("capability", [None, (8, 0), (8, 9), (10, 0), (12, 0)], ids=str)
def test_it_is_not_taken_where_it_was_not_measured(
    capability: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api.tensor_core, "compute_capability", lambda device: capability)
    assert chosen(stand_ins()) is None


@pytest.mark.parametrize("tile", [None, FEW], ids=["plain", "tensor core"])
def test_the_public_function_launches_the_kernel_that_was_chosen(
    tile: Tile | None, monkeypatch: pytest.MonkeyPatch, interpreted: torch.device
) -> None:
    launched: list[Any] = []
    monkeypatch.setattr(api.tensor_core, "tile_for", lambda *tensors: tile)
    monkeypatch.setattr(api.tensor_core, "launch_decode", lambda *args, **kwargs: launched.append((args, kwargs)))
    args = make_step(interpreted, batch=1)
    kernels.helion_fused_recurrent_kda_replayssm_decode(**args)
    if tile is None:
        assert launched == []
        assert not bool(args["out"].isnan().any())
    else:
        assert launched == [((FEW,), args)]
        assert bool(args["out"].isnan().all())


def test_without_gluon_the_plain_kernel_serves_every_call(
    monkeypatch: pytest.MonkeyPatch, interpreted: torch.device
) -> None:
    monkeypatch.setattr(api, "tensor_core", None)
    args = make_step(interpreted, batch=1)
    assert_close(run_and_compare(args), args)


# What it compiles to.


def build(
    target: str,
    tile: Tile,
    *,
    dtype: str = "bf16",
    state: str = "fp32",
    ring: str | None = None,
    V: int = 128,
    L: int = 16,
    group: int = 1,
    lower_bound: bool = False,
    forced: bool = False,
    index: str = "i32",
) -> Compiled:
    """Compile as :func:`launch_decode` would for contiguous tensors of these dtypes and sizes, K = 128."""
    kernel = api.tensor_core.kda_replayssm_tensor_core_kernel
    pointers = dict.fromkeys(("mixed_qkv_ptr", "a_ptr", "b_ptr", "out_ptr"), dtype)
    pointers |= {"A_log_ptr": "fp32", "dt_bias_ptr": "fp32", "initial_state_ptr": state, "g_cache_ptr": "fp32"}
    pointers |= {"d_cache_ptr": ring or dtype, "k_cache_ptr": ring or dtype}
    pointers |= {"ssm_state_indices_ptr": index, "write_pos_ptr": "i32", "force_flush_ptr": "i32"}
    constants: dict[str, Any] = {"ssm_state_indices_stride": 1, "write_pos_stride": 1}
    constants |= {"STATE_V_STRIDE": 128, "D_ENTRY_STRIDE": V, "K_ENTRY_STRIDE": 128, "G_ENTRY_STRIDE": 128}
    constants |= {"H": 32 // group, "HV": 32, "K": 128, "V": V, "L": L, "ENTRIES": ring_rows(L), "NORMALISE": True}
    constants |= {"BLOCK_V": tile.block_v, "WARPS_V": tile.warps_v, "WARPS_K": tile.warps_k}
    constants |= {"IN_PLACE": tile.in_place, "HALVES": tile.halves, "EARLY": target in STARTS_EARLY}
    constants |= {} if lower_bound else {"lower_bound": None}
    constants |= {"force_flush_stride": 1} if forced else {"force_flush_ptr": None, "force_flush_stride": 0}

    def kind(name: str) -> str:
        if name in constants:
            return "constexpr"
        if name in pointers:
            return f"*{pointers[name]}:16"
        if name in ("scale", "lower_bound"):
            return "fp32"
        return "i32" if name in ("slots", "halves") else "i64:16" if name.endswith("slot_stride") else "i32:16"

    signature = {name: kind(name) for name in kernel.arg_names}
    return compile_for(
        target, kernel, signature, constants, num_warps=tile.warps_v * tile.warps_k, maxnreg=tile.registers
    )


# Bytes of registers that each variant may spill. Those of READ[16] are all in the branch that flushes; with a long
# float32 ring the tile was faster all the same than a smaller one.
BUILDS: dict[str, tuple[int, Tile, dict[str, Any]]] = {
    "fp32 state": (0, IN_PLACE[16], {}),
    "bf16 state": (96, READ[16], {"state": "bf16"}),
    "bf16 state, many": (0, MANY, {"state": "bf16"}),
    "bf16 state, V 64": (0, IN_PLACE[16], {"state": "bf16", "V": 64}),
    "few heads": (0, FEW, {}),
    "few heads, bf16 state": (0, FEW, {"state": "bf16"}),
    "few heads, fp32": (0, FEW, {"dtype": "fp32"}),
    "fp16": (8, IN_PLACE[16], {"dtype": "fp16"}),
    "all options": (16, IN_PLACE[16], {"group": 4, "lower_bound": True, "forced": True, "index": "i64"}),
    "ring of 4": (0, IN_PLACE[16], {"L": 4}),
    "ring of 32": (0, IN_PLACE[32], {"L": 32}),
    "ring of 32, bf16 state": (48, READ[32], {"L": 32, "state": "bf16"}),
    "fp32 ring": (0, TAKEN_APART, {"ring": "fp32"}),
    "fp32": (0, TAKEN_APART, {"dtype": "fp32"}),
    "fp32, ring of 32": (256, TAKEN_APART, {"dtype": "fp32", "L": 32}),
}


@pytest.mark.parametrize("variant", BUILDS)
def test_compiles_for_hopper_within_its_registers(variant: str, record_property: Any) -> None:
    spills, tile, options = BUILDS[variant]
    built = build("sm_90", tile, **options)
    for figure in ("registers", "spills", "shared"):
        record_property(figure, getattr(built, figure))
    assert built.spills <= spills
    assert built.registers <= (tile.registers or 255)


@pytest.mark.parametrize("variant", BUILDS)
def test_the_state_does_not_pass_through_shared_memory(variant: str) -> None:
    _, tile, options = BUILDS[variant]
    built = build("sm_90", tile, **options)
    state_bytes = tile.block_v * 128 * (2 if options.get("state") == "bf16" else 4)
    assert built.shared < state_bytes


@pytest.mark.parametrize("target", ["sm_80", "sm_100"])
def test_compiles_for_gpus_that_it_was_not_measured_on(target: str) -> None:
    assert build(target, IN_PLACE[16]).asm["cubin"]


@pytest.mark.parametrize(("tile", "state", "width"), [(IN_PLACE[16], "fp32", 4), (READ[16], "bf16", 2)])
def test_the_state_moves_in_16_byte_accesses(tile: Tile, state: str, width: int) -> None:
    ptx = build("sm_90", tile, state=state).asm["ptx"]
    accesses = tile.block_v * 128 * width // 16 // (32 * tile.warps_v * tile.warps_k)
    assert len(re.findall(r"ld\.global\S*evict_first\S*\.v4", ptx)) == accesses
    assert len(re.findall(r"st\.global\S*\.v4", ptx)) >= accesses


def test_a_flush_by_halves_moves_the_state_in_16_byte_accesses_too() -> None:
    ptx = build("sm_90", MANY, state="bf16").asm["ptx"]
    accesses = 128 * 128 * 2 // 16 // 128
    # All of it once, and a loop that moves half.
    assert len(re.findall(r"ld\.global\S*\.v4", ptx)) >= accesses + accesses // 2
    assert len(re.findall(r"st\.global\S*evict_first\S*\.v4", ptx)) == accesses // 2


# That it is right.

SERVING = {"heads": 2, "value_heads": 4, "K": 128, "V": 128, "length": 16}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bf16 state": {"state": BF16},
    "fp16": {"dtype": FP16},
    "fp16, bf16 state": {"dtype": FP16, "state": BF16},
    "fp32": {"dtype": FP32},
    "fp32, bf16 state": {"dtype": FP32, "state": BF16},
    "fp32 ring": {"ring": FP32},
    "fp32 ring, bf16 state": {"ring": FP32, "state": BF16},
    "fp16 ring": {"ring": FP16},
    "bf16 ring, fp16 activations": {"dtype": FP16, "ring": BF16},
    "bf16 ring, fp32 activations": {"dtype": FP32, "ring": BF16},
    "no norm": {"normalise": False},
    "no norm, bf16 state": {"normalise": False, "state": BF16},
    "sigmoid gate": {"lower_bound": -5.0},
    "sigmoid gate, bf16 state": {"lower_bound": -5.0, "state": BF16},
    "nothing forced": {"forced": False},
    "all append": {"positions": "append", "forced": False},
    "all flush": {"positions": "flush", "state": BF16},
    "as many heads": {"heads": 4},
    "one group": {"heads": 1, "state": BF16},
    "group of three": {"heads": 1, "value_heads": 3},
    "ring of 1": {"length": 1},
    "ring of 4": {"length": 4},
    "ring of 5, bf16 state": {"length": 5, "state": BF16},
    "ring of 17": {"length": 17},
    "ring of 32": {"length": 32},
    "ring of 32, bf16 state": {"length": 32, "state": BF16},
    "ring of 32, fp32": {"length": 32, "dtype": FP32},
    "V 32": {"V": 32},
    "V 64, bf16 state": {"V": 64, "state": BF16},
    "V 256": {"V": 256},
    "V 256, bf16 state": {"V": 256, "state": BF16},
}


@pytest.fixture
def served() -> torch.device:
    """The GPU, if it is one that the kernel serves; fresh numbers in every run."""
    torch.manual_seed(torch.seed())
    if api.tensor_core.compute_capability(topology.HOME) != api.tensor_core.MEASURED_ON:
        pytest.skip("this GPU runs the plain kernel")
    return topology.HOME


def step(device: torch.device, batch: int, **options: Any) -> dict[str, Any]:
    args = make_step(device, batch=batch, **{**SERVING, **options})
    assert chosen(args) is not None
    return args


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [3, 45], ids=["few heads", "many heads"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_the_float64_reference(variant: str, batch: int, served: torch.device) -> None:
    args = step(served, batch, **VARIANTS[variant])
    assert_close(run_and_compare(args), args)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["bf16 state", "V 256, bf16 state"])
def test_many_tiles_equal_the_float64_reference(variant: str, served: torch.device) -> None:
    args = step(served, 1100, **VARIANTS[variant])
    assert chosen(args) == MANY
    assert_close(run_and_compare(args), args)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["plain", "bf16 state", "fp32", "ring of 32"])
def test_equals_the_plain_kernel(variant: str, served: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = step(served, 45, **VARIANTS[variant])
    plain = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in fast.items()}
    kernels.helion_fused_recurrent_kda_replayssm_decode(**fast)
    monkeypatch.setattr(api, "tensor_core", None)
    kernels.helion_fused_recurrent_kda_replayssm_decode(**plain)
    for name in WRITTEN:
        assert same_bits(fast[name].isnan(), plain[name].isnan())
        limit = 1e-5 if fast[name].dtype == FP32 and fast["out"].dtype == FP32 else 4e-3
        assert relative_error(fast[name].nan_to_num(), plain[name].nan_to_num().double()) < limit


@pytest.mark.gpu
@pytest.mark.parametrize("state", [FP32, BF16])
def test_bad_slots_and_positions_give_zero_or_nan_and_touch_nothing(state: torch.dtype, served: torch.device) -> None:
    args = step(served, 40, state=state, spare_slots=0)
    slots = args["ssm_state_indices"].tolist()
    positions = args["write_pos"].tolist()
    slots[::5] = [-1, -(2**63), 40, 2**32 + 3, 2**63 - 1, -2, 41, -(2**32) + 3]
    positions[1::5] = [-1, 16, 17, 2**31 - 1, -(2**31), 16, -1, 99]
    args["force_flush"][::2] = 1
    set_rows(args, slots, positions)
    assert_close(run_and_compare(args), args)
    out = args["out"].flatten(1)
    padding = torch.tensor([slot < 0 for slot in slots])
    assert bool((out[padding] == 0).all())
    bad = [slot >= 40 or (slot >= 0 and not 0 <= at < 16) for slot, at in zip(slots, positions, strict=True)]
    assert sum(bad) == 12
    assert bool(out[torch.tensor(bad)].isnan().all())


@pytest.mark.gpu
@pytest.mark.parametrize("index", [torch.int8, torch.uint8, torch.uint16, torch.int32, torch.uint64], ids=str)
def test_any_integer_dtype_and_stride_of_the_row_tensors(index: torch.dtype, served: torch.device) -> None:
    args = step(served, 45, index=index)
    for name, gap in (("ssm_state_indices", 2), ("write_pos", 3), ("force_flush", 4)):
        wide = torch.full((45, gap), 99, dtype=args[name].dtype, device=served)
        wide[:, 0] = args[name]
        args[name] = wide[:, 0]
    for name, gap in (("mixed_qkv", 8), ("b", 3)):
        width = args[name].shape[1]
        wide = torch.full((45, width + gap), math.nan, dtype=BF16, device=served)
        wide[:, :width] = args[name]
        args[name] = wide[:, :width]
    assert_close(run_and_compare(args), args)


@pytest.mark.gpu
@pytest.mark.parametrize("state", [FP32, BF16])
@pytest.mark.parametrize("gap", [1, 8])
def test_any_outer_strides(gap: int, state: torch.dtype, served: torch.device) -> None:
    args = step(served, 45, state=state, length=5)
    for name in ("initial_state", *RINGS):
        # The head dim outermost and gaps everywhere; with a gap of 1 nothing is aligned.
        moved = args[name].transpose(0, 1)
        wide = torch.full([size + gap for size in moved.shape], math.nan, dtype=moved.dtype, device=served)
        view = wide[tuple(slice(size) for size in moved.shape)]
        view.copy_(moved)
        args[name] = view.transpose(0, 1)
    assert chosen(args) is not None
    assert_close(run_and_compare(args), args)


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_offsets_beyond_31_bits(dim: int, served: torch.device) -> None:
    args = step(served, 2, heads=2, value_heads=2, state=BF16, spare_slots=0, length=2, V=32)
    for name in ("initial_state", "d_cache", "k_cache"):
        old = args[name]
        strides = list(old.stride())
        # The last index of this dim lies past 2^31 elements.
        strides[dim] = ((1 << 31) // (old.shape[dim] - 1) + 64) // 8 * 8
        reach = sum((size - 1) * stride for size, stride in zip(old.shape, strides, strict=True)) + 1
        args[name] = torch.empty(reach, dtype=BF16, device=served).as_strided(old.shape, strides)
        args[name].copy_(old)
    assert_close(run_and_compare(args), args)


@pytest.mark.gpu
@pytest.mark.parametrize("state", [FP32, BF16])
def test_many_steps_keep_to_the_recurrence(state: torch.dtype, served: torch.device) -> None:
    args = step(served, 34, state=state, length=4, forced=False)
    args["write_pos"].zero_()
    for _ in range(9):
        args["mixed_qkv"].normal_()
        assert_close(run_and_compare(args), args)
        args["write_pos"].add_(1).remainder_(4)


@pytest.mark.gpu
def test_strong_decay_and_tiny_gates_stay_exact(served: torch.device) -> None:
    args = step(served, 45, dtype=FP32, positions="append", forced=False)
    args["a"][:, 0].fill_(-30.0)
    args["a"][:, 1].fill_(60.0)
    args["g_cache"][:, 2].mul_(1000.0)
    args["g_cache"][:, 3] = -torch.inf
    poison_unused(args)
    assert_close(run_and_compare(args), args)
    # The norm over all gates says nothing about those of head 0, which are 1e-14.
    gates = args["g_cache"][args["ssm_state_indices"], 0, args["write_pos"].long()]
    x = args["a"][:, 0].double() + args["dt_bias"][0].double()
    assert relative_error(gates, -args["A_log"][0].double().exp() * torch.log1p(x.exp())) < 1e-5


@pytest.mark.gpu
def test_graph_replay_gives_the_same_bits(served: torch.device) -> None:
    args = step(served, 45, state=BF16, positions="append", forced=False)
    kernels.helion_fused_recurrent_kda_replayssm_decode(**args)
    want = args["out"].clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.helion_fused_recurrent_kda_replayssm_decode(**args)
    args["out"].fill_(math.nan)
    graph.replay()
    assert same_bits(args["out"], want)
