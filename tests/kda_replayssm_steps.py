"""Random decode steps for the ReplaySSM tests, and the one comparison that they all go through."""

from __future__ import annotations

import math
from typing import Any

import torch

import kernels
from helpers.calls import relative_error, same_bits
from kernels.kda_replayssm.reference import kda_replayssm_decode_reference

WRITTEN = ("initial_state", "d_cache", "k_cache", "g_cache", "out")
RINGS = ("d_cache", "k_cache", "g_cache")

# Relative norm that rounding to a dtype may cost. bf16 for a state is the stricter figure of the kernel's promise.
OUT_LIMIT = {torch.bfloat16: 3e-3, torch.float16: 5e-4, torch.float32: 1e-5}
STATE_LIMIT = {torch.bfloat16: 2.5e-3, torch.float32: 2.5e-3}
RING_LIMIT = {
    torch.float8_e5m2: 0.1,
    torch.float8_e4m3fn: 0.06,
    torch.bfloat16: 4e-3,
    torch.float16: 5e-4,
    torch.float32: 1e-4,
    torch.float64: 1e-4,
}


def make_step(
    device: torch.device,
    *,
    batch: int = 4,
    heads: int = 1,
    value_heads: int = 2,
    K: int = 16,
    V: int = 16,
    length: int = 4,
    spare_slots: int = 2,
    dtype: torch.dtype = torch.bfloat16,
    state: torch.dtype = torch.float32,
    ring: torch.dtype | None = None,
    index: torch.dtype = torch.int64,
    positions: str = "mixed",
    forced: bool = True,
    normalise: bool = True,
    lower_bound: float | None = None,
) -> dict[str, Any]:
    """Arguments of a call, drawn afresh.

    Ring entries that are not in use, slots that no row names, and ``out`` hold NaN, so that reading the former or
    forgetting to write the latter shows.

    Args:
        device: where to put them.
        batch: rows.
        heads: query and key heads, H.
        value_heads: HV.
        K: key channels of a head.
        V: value channels of a head.
        length: L of the ring.
        spare_slots: how many slots the pool has beyond the rows.
        dtype: of the activations and of ``out``.
        state: dtype of the checkpoint.
        ring: dtype of d_cache and k_cache; None for that of the activations.
        index: dtype of the slots.
        positions: "mixed", "append" (no ring is full) or "flush" (all are).
        forced: whether force_flush is given; every third row is forced then.
        normalise: whether q and k are normalised by the kernel.
        lower_bound: of the sigmoid gate, or None.
    """
    slots, ring = batch + spare_slots, ring or dtype

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device)

    def step_sizes(*shape: int) -> torch.Tensor:
        low, high = math.log(1e-3), math.log(0.1)
        return torch.exp(torch.rand(shape, device=device) * (high - low) + low)

    slopes = 1 + 15 * torch.rand(value_heads, device=device)
    qkv = normal(batch, 2 * heads * K + value_heads * V)
    if not normalise:
        # Keys longer than 1 would make the recurrence grow without bound.
        qkv[:, : 2 * heads * K] /= K**0.5
    args: dict[str, Any] = {
        "mixed_qkv": qkv.to(dtype),
        "a": (normal(batch, value_heads, K) / 2).to(dtype),
        "b": normal(batch, value_heads).to(dtype),
        "A_log": slopes.log(),
        "dt_bias": step_sizes(value_heads, K).expm1().log(),
        "scale": K**-0.5,
        "initial_state": (normal(slots, value_heads, V, K) / 10).to(state),
        "d_cache": (normal(slots, value_heads, length, V) / 2).to(ring),
        "k_cache": torch.nn.functional.normalize(normal(slots, heads, length, K), dim=-1).to(ring),
        "g_cache": -slopes[:, None, None] * step_sizes(slots, value_heads, length, K),
        "out": torch.full((batch, 1, value_heads, V), math.nan, dtype=dtype, device=device),
        "ssm_state_indices": torch.randperm(slots, device=device)[:batch].to(index),
        "write_pos": _positions(batch, length, positions).to(device),
        "force_flush": (torch.arange(batch, device=device, dtype=torch.int32) % 3 == 2).int() if forced else None,
        "use_qk_l2norm_in_kernel": normalise,
        "lower_bound": lower_bound,
    }
    poison_unused(args)
    return args


def _positions(batch: int, length: int, kind: str) -> torch.Tensor:
    if kind == "flush" or length == 1:
        return torch.full((batch,), length - 1, dtype=torch.int32)
    positions = torch.randint(0, length - (kind == "append"), (batch,), dtype=torch.int32)
    if kind == "mixed":
        positions[0] = length - 1
    return positions


def set_rows(args: dict[str, Any], slots: list[int], positions: list[int] | None = None) -> None:
    """Give the rows other slots and ring positions, and poison what these do not use."""
    index, write_pos = args["ssm_state_indices"], args["write_pos"]
    args["ssm_state_indices"] = torch.tensor(slots, dtype=index.dtype, device="cpu").to(index.device)
    if positions is not None:
        args["write_pos"] = torch.tensor(positions, dtype=torch.int32, device=write_pos.device)
    for name in ("initial_state", *RINGS):
        args[name].nan_to_num_(0.125)
    poison_unused(args)


def poison_unused(args: dict[str, Any]) -> None:
    """Fill with NaN what a call may not read: ring entries not in use, and slots that no row names."""
    slots = args["initial_state"].shape[0]
    used = dict(zip(args["ssm_state_indices"].tolist(), args["write_pos"].tolist(), strict=True))
    for slot in range(slots):
        if slot not in used:
            args["initial_state"][slot] = math.nan
        for ring in RINGS:
            args[ring][slot, :, max(used.get(slot, 0), 0) :] = math.nan


def run_and_compare(args: dict[str, Any]) -> dict[str, float]:
    """Make the call, compare everything it may write with the float64 reference and everything else with before.

    Returns:
        the relative error of each written tensor, over what was written.
    """
    before = {name: args[name].clone() for name in WRITTEN}
    want = {name: args[name].to(torch.float64, copy=True) for name in WRITTEN}
    kda_replayssm_decode_reference(**{**args, **want})
    returned = kernels.helion_fused_recurrent_kda_replayssm_decode(**args)
    assert returned[0] is args["out"]
    assert returned[1] is args["initial_state"]
    written = touched(args)
    # Two NaNs agree, so make sure that no live row is one: it would compare nothing.
    L, slots = args["d_cache"].shape[2], args["initial_state"].shape[0]
    rows = zip(args["ssm_state_indices"].tolist(), args["write_pos"].tolist(), strict=True)
    bad = [slot >= slots or (slot >= 0 and not 0 <= position < L) for slot, position in rows]
    assert want["out"].isnan().flatten(1).any(1).tolist() == bad
    errors = {}
    for name in WRITTEN:
        mask, got = written[name], args[name].clone()
        assert same_bits(got[mask].double().isnan(), want[name][mask].isnan()), f"NaN in other places of {name}"
        errors[name] = relative_error(got[mask], want[name][mask])
        got[mask] = before[name][mask]
        assert same_bits(got, before[name]), f"{name} was changed where it should not be"
    return errors


def touched(args: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Which elements of each written tensor a call writes, as masks over their leading dims."""
    slots, L = args["initial_state"].shape[0], args["d_cache"].shape[2]
    batch, device = args["out"].shape[0], args["out"].device
    masks = {"out": torch.ones(batch, dtype=torch.bool, device=device)}
    masks["initial_state"] = torch.zeros(slots, dtype=torch.bool, device=device)
    appended = torch.zeros(slots, L, dtype=torch.bool, device=device)
    forced = args["force_flush"].tolist() if args["force_flush"] is not None else [0] * batch
    rows = zip(args["ssm_state_indices"].tolist(), args["write_pos"].tolist(), forced, strict=True)
    for slot, position, force in rows:
        if not (0 <= slot < slots and 0 <= position < L):
            continue
        if position == L - 1 or force:
            masks["initial_state"][slot] = True
        else:
            appended[slot, position] = True
    for ring in RINGS:
        masks[ring] = appended[:, None, :].expand(args[ring].shape[:3])
    return masks


def assert_close(errors: dict[str, float], args: dict[str, Any]) -> None:
    """Hold the errors of a step against what the dtypes allow."""
    limits = {
        "out": OUT_LIMIT[args["out"].dtype],
        "initial_state": STATE_LIMIT[args["initial_state"].dtype],
        "d_cache": RING_LIMIT[args["d_cache"].dtype],
        "k_cache": RING_LIMIT[args["k_cache"].dtype],
        "g_cache": RING_LIMIT[torch.float32],
    }
    assert {name: error for name, error in errors.items() if not error <= limits[name]} == {}, limits
