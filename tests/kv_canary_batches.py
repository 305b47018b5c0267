"""Batches for the kv-canary tests, and what their plans must be: plain Python integers, entry by entry."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from helpers.calls import same_bits
from kernels import VerifyPlan, WritePlan

POISON = -77
# Lies around every table, so that a read outside of it is seen in the plan.
FOREIGN = 1_000_003

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def plans(verify_capacity: int, write_capacity: int, device: torch.device) -> dict[str, Any]:
    """Plans full of poison, each field in the middle of a larger poisoned tensor."""
    made = {
        "verify_plan_out": VerifyPlan.allocate(verify_capacity=verify_capacity, device=device),
        "write_plan_out": WritePlan.allocate(write_req_capacity=write_capacity, device=device),
    }
    return {name: _each(plan, lambda t: embedded(t.fill_(POISON), POISON)) for name, plan in made.items()}


def copied(args: dict[str, Any]) -> dict[str, Any]:
    """The call with plans of its own."""
    fresh = {name: _each(args[name], lambda t: embedded(t, POISON)) for name in ("verify_plan_out", "write_plan_out")}
    return {**args, **fresh}


def embedded(tensor: torch.Tensor, around: int, margin: int = 16) -> torch.Tensor:
    """A copy of the tensor with foreign values before and after it in memory."""
    envelope = torch.full((tensor.numel() + 2 * margin,), around, dtype=tensor.dtype, device=tensor.device)
    inside = envelope.narrow(0, margin, tensor.numel()).view(tensor.shape)
    return inside.copy_(tensor)


def surroundings(tensor: torch.Tensor, margin: int = 16) -> torch.Tensor:
    """What lies around a tensor that was embedded."""
    envelope = tensor.as_strided((tensor.numel() + 2 * margin,), (1,), tensor.storage_offset() - margin)
    return torch.cat([envelope.narrow(0, 0, margin), envelope.narrow(0, margin + tensor.numel(), margin)])


def outputs(args: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The nine tensors that a plan consists of."""
    return {
        item.name: getattr(args[plan], item.name)
        for plan in ("verify_plan_out", "write_plan_out")
        for item in dataclasses.fields(args[plan])
    }


def assert_plan(args: dict[str, Any], want: dict[str, torch.Tensor]) -> None:
    """Every output equals its reference bit for bit, and nothing was written around it."""
    for name, got in outputs(args).items():
        assert same_bits(got, want[name]), f"{name}\n got {got.tolist()}\nwant {want[name].tolist()}"
        assert bool((surroundings(got) == POISON).all()), f"written outside of {name}"


def expected(args: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The plan that a call must make, from its arguments alone, as tensors on the CPU."""
    want = {name: tensor.cpu().clone() for name, tensor in outputs(args).items()}
    pools = args["req_pool_indices"].tolist()
    if not pools:
        return want
    entries, written, seeds = [], [0], []
    for row, pool in enumerate(pools):
        positions = _positions(args, row, pool)
        entries += [_entry(args, row, pool, position) for position in positions]
        live = 0 < pool < args["req_to_token"].shape[0]
        extend = max(0, int(args["extend_seq_lens"][row])) if live else 0
        written.append(written[-1] + extend)
        seeds.append(_slot(args, pool, positions[-1]) if positions and extend else -1)
    _fill_entries(want, entries, args["verify_capacity"])
    want["write_offsets"].zero_()
    want["write_offsets"][: len(written)] = torch.tensor(written)
    want["write_seed_slot_indices"][: len(seeds)] = torch.tensor(seeds)
    want["write_num_valid_reqs"][0] = len(pools)
    return want


def _positions(args: dict[str, Any], row: int, pool: int) -> range:
    max_reqs, max_len = args["req_to_token"].shape
    if not 0 < pool < max_reqs:
        return range(0)
    length, window = min(max(int(args["prefix_lens"][row]), 0), max_len), args["swa_window_size"]
    return range(max(0, length - window) if window > 0 else 0, length)


def _slot(args: dict[str, Any], pool: int, position: int) -> int:
    slot, mapping = int(args["req_to_token"][pool, position]), args["full_to_swa_index_mapping"]
    if mapping is None or slot < 0:
        return slot
    return int(mapping[min(slot, len(mapping) - 1)])


def _entry(args: dict[str, Any], row: int, pool: int, position: int) -> tuple[int, int, int, int]:
    """Slot, expected token, position and previous slot."""
    token, tokens = -1, args["req_to_verify_expected_tokens"]
    place = position + args["kv_token_id_vs_position_offset"]
    if tokens is not None and pool < tokens.shape[0]:
        known = min(int(args["req_to_verify_expected_tokens_valid_lens"][row]), tokens.shape[1])
        token = int(tokens[pool, place]) if 0 <= place < known else -1
    return _slot(args, pool, position), token, position, _slot(args, pool, position - 1) if position > 0 else -1


def _fill_entries(want: dict[str, torch.Tensor], entries: list[tuple[int, int, int, int]], capacity: int) -> None:
    fits = len(entries) <= capacity
    want["verify_num_valid"][0] = min(len(entries), capacity)
    want["enable"][0] = int(fits)
    names = ("verify_slot_indices", "verify_expected_tokens", "verify_expected_positions", "verify_prev_slot_indices")
    if fits and entries:
        for name, values in zip(names, zip(*entries, strict=True), strict=True):
            want[name][: len(entries)] = torch.tensor(values)


def _each(plan: Any, how: Any) -> Any:
    return dataclasses.replace(plan, **{item.name: how(getattr(plan, item.name)) for item in dataclasses.fields(plan)})


def serving_batch(
    bs: int,
    device: torch.device,
    *,
    max_len: int = 2048,
    window: int = 0,
    tokens: bool = False,
    seed: int = 0,
    lens: torch.Tensor | None = None,
) -> dict[str, Any]:
    """A batch as a server has it: pages of slots, random lengths, some padding, first chunks and prefill chunks."""
    generator = torch.Generator().manual_seed(seed)
    max_reqs, page = bs + 16, 16
    pools = torch.randperm(max_reqs - 1, generator=generator)[:bs] + 1
    if lens is None:
        lens = torch.randint(0, max_len + 1, (bs,), generator=generator)
    extend = torch.ones(bs, dtype=torch.int64)
    odd = torch.randperm(bs, generator=generator)
    some = bs // 32
    pools[odd[:some]] = 0
    lens[odd[some : 2 * some]] = 0
    extend[odd[2 * some : 3 * some]] = 0
    extend[odd[3 * some : 4 * some]] = 64
    pages = torch.randperm(max_reqs * (max_len // page), generator=generator)
    table = (pages[:, None] * page + torch.arange(page) + 1).view(max_reqs, max_len).to(torch.int32)
    inputs: dict[str, Any] = {
        "req_pool_indices": pools,
        "prefix_lens": lens,
        "extend_seq_lens": extend,
        "req_to_token": table,
        "full_to_swa_index_mapping": torch.randperm(table.numel() + 1, generator=generator) if window else None,
        "req_to_verify_expected_tokens": None,
        "req_to_verify_expected_tokens_valid_lens": None,
    }
    if tokens:
        inputs["req_to_verify_expected_tokens"] = torch.randint(
            0, 150_000, (max_reqs, max_len), generator=generator, dtype=torch.int32
        )
        inputs["req_to_verify_expected_tokens_valid_lens"] = (lens - 2).clamp(min=0)
    capacity = bs * (min(window, max_len) if window else max_len) + 1
    return {
        **plans(capacity, bs + 8, device),
        **{name: value if value is None else value.to(device) for name, value in inputs.items()},
        "swa_window_size": window,
        "verify_capacity": capacity,
        "kv_token_id_vs_position_offset": 0,
    }
