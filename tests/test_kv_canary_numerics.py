"""The canary plan is right to the bit, on every path, and touches nothing but its outputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_canary_batches import (
    FOREIGN,
    INT64_MAX,
    INT64_MIN,
    POISON,
    assert_plan,
    copied,
    embedded,
    expected,
    outputs,
    plans,
    serving_batch,
    surroundings,
)

import kernels
from helpers import topology
from helpers.calls import same_bits, snapshot
from kernels.guards import GuardError, interpreter
from kernels.kv_canary import api

CPU = topology.CPU
# Several chunks, tiles and workers even for the small batches that an interpreter can take.
SMALL_TILINGS = (
    api.Tiling(block=32, chunks=1, tile=16, num_warps=1, max_log2_workers=9),
    api.Tiling(block=4, chunks=8, tile=16, num_warps=1, max_log2_workers=2),
    api.Tiling(block=8, chunks=4, tile=32, num_warps=1, max_log2_workers=0),
)


@pytest.fixture(params=["kernel", "host"])
def path(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """The kernel where kernels run on this machine, and the plain PyTorch path of CPU tensors."""
    runnable = topology.runnable() if request.param == "kernel" else CPU
    with interpreter(request.param == "kernel" and runnable == CPU):
        yield runnable


def batch(device: torch.device, **changes: Any) -> dict[str, Any]:
    """Five requests over rows of twelve positions: one of padding, one without a prefix, one that writes nothing."""
    generator = torch.Generator().manual_seed(7)
    args: dict[str, Any] = {
        "req_pool_indices": torch.tensor([3, 0, 5, 1, 2]),
        "prefix_lens": torch.tensor([7, 4, 12, 0, 3]),
        "extend_seq_lens": torch.tensor([1, 9, 4, 2, 0]),
        "req_to_token": torch.randperm(72, generator=generator).view(6, 12).to(torch.int32),
        "full_to_swa_index_mapping": None,
        "req_to_verify_expected_tokens": None,
        "req_to_verify_expected_tokens_valid_lens": None,
        "swa_window_size": 0,
        "kv_token_id_vs_position_offset": 0,
        "verify_capacity": 40,
        "write_capacity": 9,
    }
    args |= changes
    made = plans(args["verify_capacity"], args.pop("write_capacity"), device)
    return made | {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in args.items()}


def check(args: dict[str, Any]) -> dict[str, torch.Tensor]:
    want = expected(args)
    kernels.launch_canary_plan_kernels(**args)
    assert_plan(args, want)
    return {name: tensor.cpu() for name, tensor in outputs(args).items()}


def mapping(size: int = 80) -> torch.Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(3)) + 500


def test_a_plan_by_hand(path: torch.device) -> None:
    table = torch.tensor([[0, 0, 0], [10, 11, 12], [20, 21, 22]], dtype=torch.int32)
    plan = check(
        batch(
            path,
            req_pool_indices=torch.tensor([2, 1]),
            prefix_lens=torch.tensor([2, 3]),
            extend_seq_lens=torch.tensor([4, 1]),
            req_to_token=table,
            swa_window_size=2,
            full_to_swa_index_mapping=torch.arange(30) + 100,
            req_to_verify_expected_tokens=table + 1000,
            req_to_verify_expected_tokens_valid_lens=torch.tensor([1, 3]),
            verify_capacity=6,
            write_capacity=3,
        )
    )
    assert plan["verify_slot_indices"].tolist() == [120, 121, 111, 112, POISON, POISON]
    assert plan["verify_prev_slot_indices"].tolist() == [-1, 120, 110, 111, POISON, POISON]
    assert plan["verify_expected_positions"].tolist() == [0, 1, 1, 2, POISON, POISON]
    assert plan["verify_expected_tokens"].tolist() == [1020, -1, 1011, 1012, POISON, POISON]
    assert plan["verify_num_valid"].tolist() == [4]
    assert plan["enable"].tolist() == [1]
    assert plan["write_offsets"].tolist() == [0, 4, 5, 0]
    assert plan["write_seed_slot_indices"].tolist() == [121, 112, POISON]
    assert plan["write_num_valid_reqs"].tolist() == [2]


@pytest.mark.parametrize("window", [-4, 0, 1, 3, 11, 12, 13, 10**6, 2**40])
def test_windows(window: int, path: torch.device) -> None:
    check(batch(path, swa_window_size=window, full_to_swa_index_mapping=mapping()))


@pytest.mark.parametrize("window", [-4, 0])
def test_no_window_and_no_mapping(window: int, path: torch.device) -> None:
    check(batch(path, swa_window_size=window))


def test_mapping_passes_negative_slots_and_clamps_those_past_its_end(path: torch.device) -> None:
    table = torch.tensor([[0] * 4, [-1, 3, 4, 2**31 - 1], [-(2**31), -7, 0, 5]], dtype=torch.int32)
    args = batch(
        path,
        req_pool_indices=torch.tensor([1, 2]),
        prefix_lens=torch.tensor([4, 4]),
        extend_seq_lens=torch.tensor([1, 1]),
        req_to_token=table,
        full_to_swa_index_mapping=torch.tensor([50, 51, 52, 53, -9]),
    )
    plan = check(args)
    assert plan["verify_slot_indices"][:8].tolist() == [-1, 53, -9, -9, -(2**31), -7, 50, -9]
    assert plan["write_seed_slot_indices"][:2].tolist() == [-9, -9]


@pytest.mark.parametrize("offset", [0, 1, -1, 5, -12, 12, 2**31, INT64_MAX, INT64_MIN])
@pytest.mark.parametrize("shape", [(6, 12), (6, 5), (3, 12), (9, 20), (6, 0), (0, 4)], ids=str)
def test_expected_tokens(offset: int, shape: tuple[int, int], path: torch.device) -> None:
    tokens = torch.arange(shape[0] * shape[1], dtype=torch.int32).view(shape) + 1000
    check(
        batch(
            path,
            req_to_verify_expected_tokens=tokens,
            req_to_verify_expected_tokens_valid_lens=torch.tensor([7, 3, INT64_MAX, 2, -1]),
            kv_token_id_vs_position_offset=offset,
        )
    )


def test_number_of_tokens_without_tokens_is_not_looked_at(path: torch.device) -> None:
    elsewhere = topology.stand_in((5,), None, torch.int32, topology.OTHER)
    args = batch(path, req_to_verify_expected_tokens=None)
    kernels.launch_canary_plan_kernels(**args | {"req_to_verify_expected_tokens_valid_lens": elsewhere})
    assert_plan(args, expected(args))


@pytest.mark.parametrize("pool", [-1, 6, 2**31, 2**32 + 3, -(2**32) + 3, INT64_MAX, INT64_MIN])
def test_pool_index_that_is_no_row_counts_as_padding(pool: int, path: torch.device) -> None:
    args = batch(path)
    args["req_pool_indices"][2] = pool
    plan = check(args)
    assert plan["verify_num_valid"].tolist() == [10]
    assert plan["write_seed_slot_indices"][2] == -1
    assert plan["write_offsets"][2] == plan["write_offsets"][3]


@pytest.mark.parametrize("length", [13, 2**31, 2**32 + 3, INT64_MAX])
@pytest.mark.parametrize("window", [0, 5])
def test_prefix_past_the_table_is_cut(length: int, window: int, path: torch.device) -> None:
    args = batch(path, swa_window_size=window, full_to_swa_index_mapping=mapping())
    args["prefix_lens"][0] = length
    plan = check(args)
    count = window or 12
    assert plan["verify_expected_positions"][:count].tolist() == list(range(12 - count, 12))


@pytest.mark.parametrize("length", [-1, -(2**31), -(2**32) + 5, INT64_MIN])
def test_negative_prefix_counts_as_empty(length: int, path: torch.device) -> None:
    args = batch(path)
    args["prefix_lens"][0] = length
    plan = check(args)
    assert plan["write_seed_slot_indices"][0] == -1
    assert plan["write_offsets"][1] == 1


@pytest.mark.parametrize("extend", [-1, 0, 2**31, 2**40, INT64_MIN])
def test_any_extend_length(extend: int, path: torch.device) -> None:
    args = batch(path)
    args["extend_seq_lens"][0] = extend
    check(args)


def test_no_requests_write_nothing(path: torch.device) -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    args = batch(path, req_pool_indices=nothing, prefix_lens=nothing, extend_seq_lens=nothing)
    before = snapshot(outputs(args))
    kernels.launch_canary_plan_kernels(**args)
    assert_plan(args, before)


@pytest.mark.parametrize("shape", [(6, 0), (0, 12), (1, 12)], ids=str)
def test_a_table_without_positions_or_requests(shape: tuple[int, int], path: torch.device) -> None:
    plan = check(batch(path, req_to_token=torch.zeros(shape, dtype=torch.int32)))
    assert plan["verify_num_valid"].tolist() == [0]
    assert plan["enable"].tolist() == [1]


def test_a_shrinking_plan_leaves_no_stale_offsets(path: torch.device) -> None:
    pools, lens, extend = torch.tensor([1, 2, 3, 4, 5, 1, 2, 3, 4]), torch.full((9,), 2), torch.full((9,), 6)
    args = batch(path, req_pool_indices=pools, prefix_lens=lens, extend_seq_lens=extend, write_capacity=12)
    check(args)
    shorter = {name: args[name][:5] for name in ("req_pool_indices", "prefix_lens", "extend_seq_lens")}
    plan = check(args | shorter)
    assert plan["write_offsets"].tolist() == [0, 6, 12, 18, 24, 30, *[0] * 7]
    assert plan["write_seed_slot_indices"][5:9].tolist() == expected(args)["write_seed_slot_indices"][5:9].tolist()


@pytest.mark.parametrize("short", [-5, -1, 0, 1, 21])
def test_capacity(short: int, path: torch.device) -> None:
    total = 7 + 12 + 3
    plan = check(batch(path, verify_capacity=total - short))
    assert plan["enable"].tolist() == [int(short <= 0)]
    assert plan["verify_num_valid"].tolist() == [min(total, total - short)]
    assert bool((plan["verify_slot_indices"] == POISON).all()) == (short > 0)


@pytest.mark.parametrize("write_capacity", [5, 6, 1029, 3000])
def test_offsets_are_zero_up_to_the_end(write_capacity: int, path: torch.device) -> None:
    plan = check(batch(path, write_capacity=write_capacity))
    assert plan["write_offsets"][5:].tolist() == [7] + [0] * (write_capacity - 5)


@pytest.mark.parametrize("tiling", SMALL_TILINGS, ids=str)
def test_shares_and_tiles_meet_without_gaps(tiling: api.Tiling, device: torch.device, monkeypatch: Any) -> None:
    monkeypatch.setattr(api, "TILINGS", (tiling,))
    lens = torch.randint(0, 33, (29,), generator=torch.Generator().manual_seed(5))
    lens[::5] = 0
    check(serving_batch(29, device, max_len=32, window=20, tokens=True, lens=lens))


@pytest.mark.parametrize("bs", [1, 16, 17, 256, 257, 1024, 1025, 4096])
def test_every_tiling_up_to_the_largest_batch(bs: int, path: torch.device) -> None:
    lens = torch.randint(0, 3, (bs,), generator=torch.Generator().manual_seed(bs))
    args = serving_batch(bs, path, max_len=16, lens=lens)
    args |= plans(bs, bs, path) | {"verify_capacity": bs}
    args["prefix_lens"][bs // 2 :] = 0  # so that the entries fit
    check(args)


def test_reference_equals_the_kernel(device: torch.device) -> None:
    args = batch(device, swa_window_size=4, full_to_swa_index_mapping=mapping())
    other = copied(args)
    kernels.launch_canary_plan_kernels(**args)
    kernels.launch_canary_plan_kernels_torch_reference(**other)
    assert_plan(other, outputs(args))


@pytest.mark.parametrize("slot", [80, 99, 2**31 - 1])
@pytest.mark.parametrize("position", [3, 4, 11])
def test_reference_refuses_a_slot_without_a_mapping(slot: int, position: int, device: torch.device) -> None:
    # Position 3 is seen only as the predecessor of the window's first.
    args = batch(device, swa_window_size=8, full_to_swa_index_mapping=mapping(80))
    args["req_to_token"][5, position] = slot
    before = snapshot(outputs(args))
    with pytest.raises(GuardError) as caught:
        kernels.launch_canary_plan_kernels_torch_reference(**args)
    assert str(caught.value) == f"kv-canary: SWA slot {slot} is outside full_to_swa_index_mapping length 80"
    assert_plan(args, before)


@pytest.mark.parametrize("position", [0, 2])
def test_reference_ignores_slots_that_the_plan_does_not_use(position: int, device: torch.device) -> None:
    args = batch(device, swa_window_size=8, full_to_swa_index_mapping=mapping(80))
    args["req_to_token"][5, position] = 99
    want = expected(args)
    kernels.launch_canary_plan_kernels_torch_reference(**args)
    assert_plan(args, want)


WILD = [-1, 2**31, 2**32 + 1, INT64_MIN]


@st.composite
def batches(draw: st.DrawFn) -> dict[str, Any]:
    bs, max_reqs, max_len = (draw(st.integers(1, high)) for high in (12, 8, 20))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 16)))

    def whole(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator)

    def some_wild(values: torch.Tensor, *more: int) -> torch.Tensor:
        for row in draw(st.lists(st.integers(0, bs - 1), max_size=2)):
            values[row] = draw(st.sampled_from([*WILD, *more]))
        return values

    mapped, tokens = draw(st.booleans()), draw(st.booleans())
    size = draw(st.integers(1, 40))
    token_shape = draw(st.integers(1, 10)), draw(st.integers(1, 24))
    capacity, room = draw(st.integers(1, bs * max_len + 2)), bs + draw(st.integers(0, 5))
    return {
        **plans(capacity, room, CPU),
        "req_pool_indices": some_wild(whole(0, max_reqs + 1, bs), INT64_MAX),
        "prefix_lens": some_wild(whole(0, max_len + 2, bs), INT64_MAX),
        "extend_seq_lens": some_wild(whole(-1, 4, bs)),
        "req_to_token": embedded(whole(-2, size + 2, max_reqs, max_len).int(), FOREIGN),
        "swa_window_size": draw(st.integers(-1, max_len + 2)) if mapped else 0,
        "full_to_swa_index_mapping": embedded(whole(0, 1000, size), FOREIGN) if mapped else None,
        "verify_capacity": capacity,
        "req_to_verify_expected_tokens": embedded(whole(0, 1000, *token_shape).int(), FOREIGN) if tokens else None,
        "req_to_verify_expected_tokens_valid_lens": some_wild(whole(-1, 26, bs), INT64_MAX) if tokens else None,
        "kv_token_id_vs_position_offset": draw(st.integers(-4, 4)),
    }


@settings(max_examples=100, deadline=None)
@given(batches(), st.sampled_from(SMALL_TILINGS), st.sampled_from([tl.int32, tl.int64]))
def test_equals_plain_python_for_any_batch(args: dict[str, Any], tiling: api.Tiling, index: tl.dtype) -> None:
    want, other = expected(args), copied(args)
    kernels.launch_canary_plan_kernels(**args)
    assert_plan(args, want)
    with interpreter(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "TILINGS", (tiling,))
        patch.setattr(api, "_index_dtype", lambda *tables: index)
        kernels.launch_canary_plan_kernels(**other)
    assert_plan(other, want)


def scattered(args: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the pool must hold, value by value."""
    pool, bounds = args["pool_out"].cpu().clone(), args["offsets"].tolist()
    for request, row in enumerate(args["req_pool_indices"].tolist()):
        for column in range(pool.shape[1]):
            source = bounds[request] + column
            if 0 <= row < pool.shape[0] and 0 <= source < min(bounds[request + 1], len(args["flat_in"])):
                value = int(args["flat_in"][source]) & 0xFFFFFFFF
                pool[row, column] = value - (1 << 32) if value >= 1 << 31 else value
    return pool


def check_scatter(args: dict[str, torch.Tensor]) -> None:
    want = scattered(args)
    kernels.launch_scatter_req_token_ids_kernel(**args)
    assert same_bits(args["pool_out"], want)


def tokens_of(device: torch.device, offsets: list[int], pools: list[int], width: int = 5) -> dict[str, torch.Tensor]:
    args = {
        "flat_in": embedded(torch.arange(40) + 100, FOREIGN),
        "offsets": torch.tensor(offsets),
        "req_pool_indices": torch.tensor(pools, dtype=torch.int64),
        "pool_out": embedded(torch.full((6, width), POISON, dtype=torch.int32), POISON),
    }
    return {name: tensor.to(device) if device != CPU else tensor for name, tensor in args.items()}


@pytest.mark.parametrize("width", [0, 1, 5, 30, 1500])
def test_tokens_are_scattered(width: int, path: torch.device) -> None:
    check_scatter(tokens_of(path, [0, 3, 3, 4, 33, 40], [4, 1, 2, 0, 5], width))


@pytest.mark.parametrize("row", [-1, 6, 2**32 + 3, INT64_MIN, INT64_MAX])
def test_tokens_for_a_row_that_is_not_there_are_skipped(row: int, path: torch.device) -> None:
    check_scatter(tokens_of(path, [0, 3, 7, 9], [4, row, 2]))


@pytest.mark.parametrize(
    "offsets",
    [
        [0, 38, 60],
        [-3, 2, 5],
        [41, 45, 50],
        [5, 2, 9],
        [2**32, 2**32 + 3, 7],
        [INT64_MAX, INT64_MAX, 5],
        [INT64_MIN, INT64_MAX, INT64_MIN],
        [INT64_MAX - 2, INT64_MIN, 40],
    ],
    ids=str,
)
def test_token_offsets_outside_of_the_list_are_not_followed(offsets: list[int], path: torch.device) -> None:
    args = tokens_of(path, offsets, [4, 2])
    check_scatter(args)
    if path == CPU:
        assert bool((surroundings(args["pool_out"]) == POISON).all())


def test_tokens_are_cut_to_32_bits(path: torch.device) -> None:
    args = tokens_of(path, [0, 5], [1])
    args["flat_in"][:5] = torch.tensor([2**31, 2**32 + 7, -1, -(2**40) - 1, INT64_MAX])
    check_scatter(args)


def test_tokens_into_a_strided_pool(path: torch.device) -> None:
    args = tokens_of(path, [0, 3, 9, 40], [4, 1, 2])
    envelope = torch.full((12, 30), POISON, dtype=torch.int32, device=path)
    args["pool_out"] = envelope[1::2, 3:27:4]
    args |= {name: args[name].repeat_interleave(3)[::3] for name in ("flat_in", "offsets", "req_pool_indices")}
    check_scatter(args)
    envelope[1::2, 3:27:4] = POISON
    assert bool((envelope == POISON).all())


def test_no_tokens_and_no_requests(path: torch.device) -> None:
    check_scatter(tokens_of(path, [0], []))
    check_scatter(tokens_of(path, [0, 0, 0], [1, 2]))
    empty = tokens_of(path, [0, 4, 9], [1, 2])
    check_scatter(empty | {"flat_in": empty["flat_in"][:0]})


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-3, 44), min_size=1, max_size=6), st.integers(0, 9), st.randoms(use_true_random=False))
def test_any_scatter_equals_plain_python(offsets: list[int], width: int, random: Any) -> None:
    # Rows are distinct, and some of them do not exist.
    rows = random.sample(range(-2, 9), len(offsets) - 1)
    check_scatter(tokens_of(CPU, offsets, rows, width))
    with interpreter():
        check_scatter(tokens_of(CPU, offsets, rows, width))
