"""The ReplaySSM decode computes the recurrence, within the rounding of its dtypes, and touches nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kda_replayssm_steps import RINGS, WRITTEN, assert_close, make_step, run_and_compare, set_rows

import kernels
from helpers import topology
from helpers.calls import relative_error, same_bits
from kernels.guards import interpreter
from kernels.kda_replayssm.reference import kda_replayssm_decode_reference

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture(params=["interpreter", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Every test here runs in the interpreter, and natively where a GPU is."""
    with interpreter(request.param == "interpreter"):
        yield topology.CPU if request.param == "interpreter" else topology.HOME


@pytest.fixture(autouse=True)
def seed() -> int:
    """Fresh numbers in every run; pytest prints the seed of a test that fails."""
    fresh = torch.seed()
    torch.manual_seed(fresh)
    return fresh


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bf16 state": {"state": BF16},
    "fp16": {"dtype": FP16},
    "fp32": {"dtype": FP32},
    "fp32 activations, bf16 state": {"dtype": FP32, "state": BF16},
    "fp32 ring": {"ring": FP32},
    "fp32 ring, bf16 state": {"ring": FP32, "state": BF16},
    "fp16 ring": {"ring": FP16},
    "fp64 ring": {"ring": torch.float64},
    "bf16 ring, fp32 activations": {"dtype": FP32, "ring": BF16},
    "fp8 ring": {"ring": torch.float8_e4m3fn},
    "fp8 e5m2 ring": {"ring": torch.float8_e5m2},
    "no norm": {"normalise": False},
    "sigmoid gate": {"lower_bound": -5.0},
    "sigmoid gate, no norm, bf16 state": {"lower_bound": -2.0, "normalise": False, "state": BF16},
    "nothing forced": {"forced": False},
    "all append": {"positions": "append", "forced": False, "length": 16},
    "all flush": {"positions": "flush", "length": 16, "state": BF16},
    "grouped heads": {"heads": 2, "value_heads": 4},
    "group of three": {"heads": 1, "value_heads": 3},
    "ring of 1": {"length": 1},
    "ring of 5": {"length": 5},
    "ring of 16": {"length": 16},
    "ring of 17": {"length": 17},
    "ring of 32": {"length": 32, "state": BF16},
    "ring of 100": {"length": 100, "batch": 2},
    "1 x 1": {"K": 1, "V": 1, "dtype": FP32},
    "2 x 8": {"K": 2, "V": 8, "dtype": FP32},
    "K 1, V 64": {"K": 1, "V": 64, "dtype": FP32},
    "K 64, V 1": {"K": 64, "V": 1, "dtype": FP32},
    "K 8, V 32, grouped": {"K": 8, "V": 32, "heads": 2, "value_heads": 4},
    "K 32, V 8": {"K": 32, "V": 8, "length": 16},
    "K 256, V 16": {"K": 256, "V": 16, "batch": 2, "length": 16},
    "K 16, V 256": {"K": 16, "V": 256, "batch": 2, "length": 16},
    "K 128, V 128": {"K": 128, "V": 128, "batch": 2, "value_heads": 1, "length": 16, "state": BF16},
    "one row": {"batch": 1, "spare_slots": 0},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_the_float64_reference(variant: str, device: torch.device) -> None:
    args = make_step(device, **VARIANTS[variant])
    assert_close(run_and_compare(args), args)


def test_the_product_is_more_exact_than_its_16_bit_operands(device: torch.device) -> None:
    args = make_step(device, ring=FP32, positions="flush", length=16, K=32, V=32)
    errors = run_and_compare(args)
    # One rounding of an operand to bf16 alone would cost 1e-3.
    assert errors["initial_state"] < 1e-4


def closed_form(args: dict[str, Any], row: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [HV, V] and folded state [HV, V, K] of one row by the unrolled formula, in float64."""
    slot, c = int(args["ssm_state_indices"][row]), int(args["write_pos"][row])
    _, HV, V, K = args["initial_state"].shape
    H = args["k_cache"].shape[1]
    q, k, v = args["mixed_qkv"][row].double().split([H * K, H * K, HV * V])
    q, k, v = q.view(H, K), k.view(H, K), v.view(HV, V)
    if args["use_qk_l2norm_in_kernel"]:
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    q, k = q.repeat_interleave(HV // H, 0), k.repeat_interleave(HV // H, 0)
    A, x = args["A_log"].double().exp()[:, None], args["a"][row].double() + args["dt_bias"].double()
    bound = args["lower_bound"]
    g = -A * torch.nn.functional.softplus(x) if bound is None else bound * torch.sigmoid(A * x)
    beta = torch.sigmoid(args["b"][row].double()).to(args["b"].dtype).double()[:, None]
    G = args["g_cache"][slot, :, :c].double().cumsum(1)
    total = G[:, -1] if c else torch.zeros(HV, K, dtype=torch.float64, device=g.device)
    keys = args["k_cache"][slot, :, :c].double().repeat_interleave(HV // H, 0) * torch.exp(total[:, None] - G)
    S = args["initial_state"][slot].double() * total.exp()[:, None]
    S = S + torch.einsum("hjv,hjk->hvk", args["d_cache"][slot, :, :c].double(), keys)
    delta = beta * (v - torch.einsum("hvk,hk->hv", S, k * g.exp()))
    out = torch.einsum("hvk,hk->hv", S, q * args["scale"] * g.exp())
    out += delta * (k * q * args["scale"]).sum(-1, keepdim=True)
    return out, S * g.exp()[:, None] + delta[..., None] * k[:, None]


@pytest.mark.parametrize("lower_bound", [None, -4.0])
@pytest.mark.parametrize("normalise", [True, False])
def test_the_reference_is_the_formula_unrolled(lower_bound: float | None, normalise: bool) -> None:
    args = make_step(
        topology.CPU,
        heads=2,
        value_heads=4,
        K=8,
        V=4,
        length=9,
        dtype=FP32,
        normalise=normalise,
        lower_bound=lower_bound,
    )
    args |= {name: args[name].double() for name in WRITTEN}
    args["force_flush"] = torch.ones_like(args["write_pos"])
    expected = [closed_form(args, row) for row in range(4)]
    kda_replayssm_decode_reference(**args)
    for row, (out, state) in enumerate(expected):
        torch.testing.assert_close(args["out"][row, 0], out, rtol=1e-10, atol=1e-12)
        slot = int(args["ssm_state_indices"][row])
        torch.testing.assert_close(args["initial_state"][slot], state, rtol=1e-10, atol=1e-12)


def test_many_steps_equal_the_recurrence_without_a_ring(device: torch.device) -> None:
    length, steps = 4, 11
    args = make_step(device, batch=2, heads=1, value_heads=2, length=length, dtype=FP32, forced=True)
    args["write_pos"].zero_()
    args["force_flush"].zero_()
    args["initial_state"].nan_to_num_(0.1)
    # A ring of one entry is the plain recurrence: it folds every step into the state.
    plain = make_step(device, batch=2, heads=1, value_heads=2, length=1, dtype=torch.float32, forced=False)
    plain |= {name: args[name] for name in ("A_log", "dt_bias", "ssm_state_indices")}
    plain["initial_state"] = args["initial_state"].double()
    plain["out"] = plain["out"].double()
    for step in range(steps):
        fresh = make_step(device, batch=2, heads=1, value_heads=2, length=length, dtype=FP32)
        for name in ("mixed_qkv", "a", "b"):
            args[name] = plain[name] = fresh[name]
        args["force_flush"][0] = int(step == 5)
        kernels.helion_fused_recurrent_kda_replayssm_decode(**args)
        kda_replayssm_decode_reference(**plain)
        assert relative_error(args["out"], plain["out"]) < 2e-5, step
        flushed = (args["write_pos"] == length - 1) | (args["force_flush"] != 0)
        args["write_pos"] = torch.where(flushed, 0, args["write_pos"] + 1).to(torch.int32)


def test_gates_keep_their_precision_far_from_zero(device: torch.device) -> None:
    args = make_step(device, batch=1, value_heads=1, K=32, dtype=FP32, forced=False)
    args["write_pos"].zero_()
    args["a"] = torch.linspace(-80, 60, 32, device=device).view(1, 1, 32)
    args["A_log"].zero_()
    args["dt_bias"].zero_()
    run_and_compare(args)
    got = args["g_cache"][args["ssm_state_indices"][0], 0, 0].double()
    want = -torch.nn.functional.softplus(args["a"].double()).view(32)
    # Relative to each value: the smallest is 2e-35. The exponential of a large number limits it.
    assert float(((got - want) / want).abs().max()) < 2e-5


def test_strong_decays_wipe_the_state_and_give_no_nan(device: torch.device) -> None:
    args = make_step(device, dtype=FP32, length=16, positions="append", forced=False)
    args["g_cache"] *= 1e4
    args["a"] = args["a"] * 1e3
    assert_close(run_and_compare(args), args)


def test_stores_round_to_nearest(device: torch.device) -> None:
    args = make_step(device, dtype=FP32, ring=BF16, normalise=False, positions="append", forced=False)
    args["write_pos"].zero_()
    run_and_compare(args)
    keys = args["mixed_qkv"][:, 16:32]
    assert same_bits(args["k_cache"][args["ssm_state_indices"], 0, 0], keys.to(BF16))


def test_padding_rows_are_zero_and_touch_nothing(device: torch.device) -> None:
    args = make_step(device, batch=3, spare_slots=2)
    # What a padding row holds besides does not matter, its ring position included.
    set_rows(args, [3, -1, 1], [1, 77, 3])
    args["mixed_qkv"][1] = math.nan
    assert_close(run_and_compare(args), args)
    assert bool((args["out"][1] == 0).all())
    assert not bool(args["out"].isnan().any())


OUT_OF_RANGE = [
    (torch.int64, 6),
    (torch.int64, 2**31),
    (torch.int64, 2**32 + 3),
    (torch.int64, 2**62),
    (torch.int32, 6),
    (torch.int8, 127),
    (torch.uint8, 255),
    (torch.uint32, 2**31 + 3),
    (torch.uint64, 2**32 + 3),
    (torch.uint64, 2**63 + 3),
]


@pytest.mark.parametrize(("dtype", "slot"), OUT_OF_RANGE, ids=str)
def test_a_slot_past_the_pool_gives_nan_and_touches_nothing(
    dtype: torch.dtype, slot: int, device: torch.device
) -> None:
    args = make_step(device, batch=2, spare_slots=4, index=dtype)
    set_rows(args, [slot, 1])
    args["out"].zero_()
    assert_close(run_and_compare(args), args)
    assert bool(args["out"][0].isnan().all())
    assert not bool(args["out"][1].isnan().any())


@pytest.mark.parametrize("slot", [-1, -(2**31), -(2**32) + 3, -(2**63)])
def test_any_negative_slot_is_padding(slot: int, device: torch.device) -> None:
    args = make_step(device, batch=1)
    args["ssm_state_indices"] = torch.tensor([slot], device=device)
    run_and_compare(args)
    assert bool((args["out"] == 0).all())


@pytest.mark.parametrize("position", [-1, 4, 5, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("forced", [False, True])
def test_a_position_outside_the_ring_gives_nan_and_touches_nothing(
    position: int, forced: bool, device: torch.device
) -> None:
    args = make_step(device, batch=2, length=4, positions="append", forced=forced)
    args["write_pos"][1] = position
    if forced:
        args["force_flush"].fill_(1)
    run_and_compare(args)
    assert bool(args["out"][1].isnan().all())
    assert not bool(args["out"][0].isnan().any())


@pytest.mark.parametrize(
    "index", [torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64],
    ids=str,
)  # fmt: skip
def test_any_integer_dtype_and_stride_of_the_row_tensors(index: torch.dtype, device: torch.device) -> None:
    args = make_step(device, batch=3, index=index)
    for name, gap in (("ssm_state_indices", 2), ("write_pos", 3), ("force_flush", 4)):
        wide = torch.full((3, gap), 99, dtype=args[name].dtype, device=device)
        wide[:, 0] = args[name]
        args[name] = wide[:, 0]
    wide = torch.full((3, 2, 64), math.nan, dtype=BF16, device=device)
    wide[:, 0] = args["mixed_qkv"]
    args["mixed_qkv"] = wide[:, 0]
    wide_b = torch.full((3, 5), math.nan, dtype=BF16, device=device)
    wide_b[:, :2] = args["b"]
    args["b"] = wide_b[:, :2]
    assert_close(run_and_compare(args), args)


def into_envelope(args: dict[str, Any], gap: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Move state and rings into one byte buffer, slot by slot side by side, as serving engines lay their pools out.

    Returns:
        the buffer, and which of its bytes lie in the gaps between the pools.
    """
    pools = {name: args[name] for name in ("initial_state", *RINGS)}
    sizes = [pool[0].numel() * pool.element_size() for pool in pools.values()]
    slots, slot_bytes = len(args["initial_state"]), sum(sizes) + gap * len(sizes)
    envelope = torch.full((slots, slot_bytes), 0xA5, dtype=torch.uint8, device=args["out"].device)
    gaps = torch.ones_like(envelope, dtype=torch.bool)
    start = 0
    for (name, pool), size in zip(pools.items(), sizes, strict=True):
        step = pool.element_size()
        strides = (slot_bytes // step, *pool.stride()[1:])
        args[name] = envelope.view(pool.dtype).as_strided(pool.shape, strides, start // step)
        args[name].copy_(pool)
        gaps[:, start : start + size] = False
        start += size + gap
    return envelope, gaps


def test_pools_inside_one_envelope_leave_the_gaps_alone(device: torch.device) -> None:
    args = make_step(device, batch=3, heads=2, value_heads=4, state=BF16, length=5)
    envelope, gaps = into_envelope(args, gap=32)
    assert_close(run_and_compare(args), args)
    assert bool((envelope[gaps] == 0xA5).all())
    assert not bool((envelope[~gaps] == 0xA5).all())


@pytest.mark.parametrize("order", [(3, 2, 1, 0), (1, 0, 3, 2), (0, 3, 1, 2)], ids=str)
def test_rings_may_have_any_strides_and_states_any_outer_ones(order: tuple[int, ...], device: torch.device) -> None:
    args = make_step(device, batch=3, heads=2, value_heads=4, length=5)
    for name in ("initial_state", *RINGS):
        dims = order if name != "initial_state" else (2, 1, 0, 3)
        back = [dims.index(dim) for dim in range(4)]
        args[name] = args[name].permute(dims).contiguous().permute(back)
        assert not args[name].is_contiguous()
    assert_close(run_and_compare(args), args)


def test_an_empty_batch_writes_nothing(device: torch.device) -> None:
    args = make_step(device, batch=3)
    for name in ("mixed_qkv", "a", "b", "out", "ssm_state_indices", "write_pos", "force_flush"):
        args[name] = args[name][:0]
    before = {name: args[name].clone() for name in WRITTEN}
    out, _ = kernels.helion_fused_recurrent_kda_replayssm_decode(**args)
    assert out.shape == (0, 1, 2, 16)
    assert all(same_bits(args[name], before[name]) for name in WRITTEN)


def test_no_value_heads_write_nothing(device: torch.device) -> None:
    args = make_step(device, value_heads=2)
    args["mixed_qkv"] = args["mixed_qkv"][:, :32]
    for name in ("a", "b", "dt_bias", "A_log", "initial_state", "d_cache", "g_cache", "out"):
        dim = {"A_log": 0, "dt_bias": 0, "out": 2}.get(name, 1)
        args[name] = args[name].narrow(dim, 0, 0).clone()
    before = args["k_cache"].clone()
    kernels.helion_fused_recurrent_kda_replayssm_decode(**args)
    assert same_bits(args["k_cache"], before)


def test_a_pool_without_slots_has_only_padding_and_bad_rows(device: torch.device) -> None:
    args = make_step(device, batch=2)
    for name in ("initial_state", *RINGS):
        args[name] = args[name][:0]
    args["ssm_state_indices"] = torch.tensor([-1, 0], device=device)
    run_and_compare(args)
    assert bool((args["out"][0] == 0).all())
    assert bool(args["out"][1].isnan().all())


def test_flat_and_unflattened_gates_are_the_same(device: torch.device) -> None:
    args = make_step(device)
    flat = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in args.items()}
    flat["a"], flat["dt_bias"] = flat["a"].reshape(4, -1), flat["dt_bias"].reshape(-1)
    kernels.helion_fused_recurrent_kda_replayssm_decode(**args)
    kernels.fused_recurrent_kda_replayssm_decode(**flat)
    assert all(same_bits(args[name], flat[name]) for name in WRITTEN)


@st.composite
def steps(draw: st.DrawFn) -> dict[str, Any]:
    batch, heads = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    K, V = draw(st.sampled_from([1, 2, 4, 16, 32])), draw(st.sampled_from([1, 4, 16, 64]))
    length = draw(st.sampled_from([1, 2, 3, 7, 16, 20, 33]))
    torch.manual_seed(draw(st.integers(0, 1 << 30)))
    args = make_step(
        topology.CPU,
        batch=batch,
        heads=heads,
        value_heads=heads * draw(st.integers(1, 2)),
        K=K,
        V=V,
        length=length,
        dtype=FP32,
        ring=draw(st.sampled_from([FP32, BF16, FP16])),
        forced=draw(st.booleans()),
        normalise=draw(st.booleans()),
        lower_bound=draw(st.sampled_from([None, -5.0, -0.5])),
    )
    # Slots are distinct; negative ones are padding, those past the pool's end do not exist.
    slots = draw(st.permutations(range(-2, batch + 4)))[:batch]
    set_rows(args, slots, draw(st.lists(st.integers(-1, length), min_size=batch, max_size=batch)))
    return args


@settings(max_examples=25, deadline=None)
@given(steps())
def test_equals_the_reference_for_any_valid_step(args: dict[str, Any]) -> None:
    with interpreter():
        errors = run_and_compare(args)
    # With one channel an output may cancel to almost nothing, so the bound leaves room for that.
    assert errors["out"] < 1e-3
    assert errors["initial_state"] < 1e-4
    assert errors["g_cache"] < 1e-5
