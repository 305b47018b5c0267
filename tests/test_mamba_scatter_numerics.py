"""The state scatter moves the right bytes, and no others."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kernels
from helpers.calls import same_bits
from kernels.guards import interpreter
from kernels.mamba_scatter import api
from kernels.mamba_scatter.reference import mamba_state_scatter_reference, scatter_after_verify_reference

INDEX_DTYPES = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
VALUE_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.int8)


def random_bits(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Arbitrary bit patterns, NaNs with payloads among them."""
    raw = torch.randint(-128, 128, (*shape[:-1], shape[-1] * dtype.itemsize), dtype=torch.int8)
    return raw.view(dtype).to(device)


def run_both(
    dst: torch.Tensor, src: torch.Tensor, slots: torch.Tensor, steps: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    expected = dst.clone()
    mamba_state_scatter_reference(expected, src, slots, steps)
    kernels.fused_mamba_state_scatter_with_mask(dst, src, slots, steps)
    return dst, expected


@pytest.mark.parametrize("dtype", VALUE_DTYPES, ids=str)
@pytest.mark.parametrize("state", [(), (1,), (7,), (3, 5, 11), (2, 1, 4)], ids=str)
def test_bits_are_copied_at_odd_shapes(dtype: torch.dtype, state: tuple[int, ...], device: torch.device) -> None:
    entry = state or (1,)
    dst = random_bits((3, 5, *entry), dtype, device).reshape(3, 5, *state)
    src = random_bits((3, 4, 2, *entry), dtype, device).reshape(3, 4, 2, *state)
    slots = torch.tensor([4, 0, 2, 1], device=device)
    steps = torch.tensor([1, -1, 0, 1], device=device)
    assert same_bits(*run_both(dst, src, slots, steps))


@pytest.mark.parametrize("layers", [1, 3, 4, 5, 9])
@pytest.mark.parametrize("at_once", api.LAYERS_OF_A_PROGRAM)
def test_programs_that_take_several_layers(
    layers: int, at_once: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "LAYERS_OF_A_PROGRAM", (at_once,))
    # More layers in memory than in the call, so that one too many would be seen.
    pool = random_bits((12, 5, 3, 700), torch.float32, device)
    before = pool[layers:].clone()
    src = random_bits((layers, 4, 2, 3, 700), torch.float32, device)
    slots = torch.tensor([4, 0, 2, 1], device=device)
    steps = torch.tensor([1, -1, 0, 1], device=device)
    assert same_bits(*run_both(pool[:layers], src, slots, steps))
    assert same_bits(pool[layers:], before)


@pytest.mark.parametrize(
    ("blocks", "layers"), [(1, 1), (2**18, 1), (2**18 + 1, 2), (2**19, 2), (2**19 + 1, 4), (2**30, 4)]
)
def test_layers_of_a_program(blocks: int, layers: int) -> None:
    assert api._layers_of_a_program(blocks) == layers


@pytest.mark.gpu
@pytest.mark.parametrize("padded", [0, 1800, 2048])
def test_very_many_programs(padded: int, device: torch.device) -> None:
    def words(*shape: int) -> torch.Tensor:
        return torch.randint(-(2**15), 2**15, shape, dtype=torch.int16, device=device)

    dst, src = words(65, 2100, 2500), words(65, 2048, 2, 2500)
    assert 65 * 2048 * -(-2500 * 2 // api.BLOCK_BYTES) > api.MANY_PROGRAMS
    steps = torch.randint(0, 2, (2048,), device=device)
    steps[torch.randperm(2048, device=device)[:padded]] = -1
    assert same_bits(*run_both(dst, src, torch.randperm(2100, device=device)[:2048], steps))


@pytest.mark.parametrize("slot_dtype", INDEX_DTYPES, ids=str)
@pytest.mark.parametrize("step_dtype", INDEX_DTYPES, ids=str)
def test_any_integer_dtype_and_stride_of_indices(
    slot_dtype: torch.dtype, step_dtype: torch.dtype, device: torch.device
) -> None:
    dst, src = torch.zeros(2, 5, 6, device=device), torch.randn(2, 3, 2, 6, device=device)
    slots = torch.tensor([3, 9, 0, 9, 1, 9], device=device).to(slot_dtype)[::2]
    steps = torch.tensor([1, 9, 9, 0, 9, 9, 1], device=device).to(step_dtype)[::3]
    assert same_bits(*run_both(dst, src, slots, steps))
    assert dst.count_nonzero() == 3 * 2 * 6


@pytest.mark.parametrize("src_dtype", [torch.float32, torch.float64, torch.float16, torch.int32], ids=str)
@pytest.mark.parametrize("dst_dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int16], ids=str)
def test_casts_like_copy(src_dtype: torch.dtype, dst_dtype: torch.dtype, device: torch.device) -> None:
    # Values that must be rounded, up as well as down.
    src = (torch.randn(2, 3, 2, 9, device=device) * 100).to(src_dtype)
    dst = torch.zeros(2, 4, 9, dtype=dst_dtype, device=device)
    indices = torch.tensor([0, 2, 3], device=device), torch.tensor([1, 0, 1], device=device)
    assert same_bits(*run_both(dst, src, *indices))


def test_padding_never_reaches_a_live_slot(device: torch.device) -> None:
    dst, src = torch.randn(2, 4, 5, device=device), torch.randn(2, 2, 3, 5, device=device)
    before = dst.clone()
    steps, slots = torch.tensor([-1, 0], device=device), torch.tensor([0, 2], device=device)
    kernels.fused_mamba_state_scatter_with_mask(dst, src, slots, steps)
    assert same_bits(dst[:, 0], before[:, 0])
    assert same_bits(dst[:, 2], src[:, 1, 0])


@pytest.mark.parametrize("slot", [-1, 4, 2**31, 2**32 + 3, -(2**32), 2**62])
def test_slots_out_of_range_write_nothing(slot: int, device: torch.device) -> None:
    dst, src = torch.randn(2, 4, 5, device=device), torch.randn(2, 1, 3, 5, device=device)
    before = dst.clone()
    index = torch.tensor([slot], device=device), torch.tensor([1], device=device)
    kernels.fused_mamba_state_scatter_with_mask(dst, src, *index)
    assert same_bits(dst, before)


@pytest.mark.parametrize("step", [3, 2**31, 2**32 + 1])
def test_steps_out_of_range_write_nothing(step: int, device: torch.device) -> None:
    dst, src = torch.randn(2, 4, 5, device=device), torch.randn(2, 1, 3, 5, device=device)
    before = dst.clone()
    kernels.fused_mamba_state_scatter_with_mask(
        dst, src, torch.tensor([1], device=device), torch.tensor([step], device=device)
    )
    assert same_bits(dst, before)


def test_gaps_of_a_strided_pool_stay_untouched(device: torch.device) -> None:
    envelope = torch.full((2, 8, 16), float("nan"), device=device)
    dst = envelope[:, 1::2, 3:9].unflatten(-1, (2, 3))
    dst.zero_()
    src = torch.randn(2, 4, 2, 2, 3, device=device)
    slots, steps = torch.tensor([3, 1, 0, 2], device=device), torch.tensor([0, 1, 1, -1], device=device)
    expected = envelope.clone()
    mamba_state_scatter_reference(expected[:, 1::2, 3:9].unflatten(-1, (2, 3)), src, slots, steps)
    kernels.fused_mamba_state_scatter_with_mask(dst, src, slots, steps)
    assert same_bits(envelope, expected)


@pytest.mark.parametrize(
    ("dst_shape", "src_shape"),
    [
        ((0, 4, 5), (0, 2, 3, 5)),
        ((2, 0, 5), (2, 2, 3, 5)),
        ((2, 4, 0), (2, 2, 3, 0)),
        ((2, 4, 5), (2, 2, 0, 5)),
    ],
    ids=["no layers", "no slots", "empty state", "no steps"],
)
def test_empty_work_is_legal(dst_shape: tuple[int, ...], src_shape: tuple[int, ...], device: torch.device) -> None:
    dst, src = torch.randn(dst_shape, device=device), torch.randn(src_shape, device=device)
    before = dst.clone()
    kernels.fused_mamba_state_scatter_with_mask(
        dst, src, torch.tensor([0, 1], device=device), torch.tensor([0, 0], device=device)
    )
    assert same_bits(dst, before)


def windows(requests: int, dim: int, steps: int, window: int, device: torch.device) -> torch.Tensor:
    base = torch.randn(2, requests, dim, steps + window - 1, device=device)
    layer, request, channel, time = base.stride()
    return base.as_strided((2, requests, steps, dim, window), (layer, request, time, channel, time))


@pytest.mark.parametrize(("dim", "window"), [(1, 1), (5, 3), (8, 2), (7, 4)])
def test_conv_windows_may_overlap(dim: int, window: int, device: torch.device) -> None:
    src = windows(4, dim, 3, window, device)
    dst = torch.full((2, 6, dim, window), float("nan"), device=device)
    slots, steps = torch.tensor([5, 0, 6, 2], device=device), torch.tensor([2, 0, 1, -1], device=device)
    expected = dst.clone()
    mamba_state_scatter_reference(expected, src, slots, steps)
    kernels.fused_conv_window_scatter_with_mask(dst, src, slots, steps)
    assert same_bits(dst, expected)


def make_caches(device: torch.device) -> SimpleNamespace:
    return SimpleNamespace(
        temporal=torch.randn(2, 8, 3, 4, device=device),
        intermediate_ssm=torch.randn(2, 4, 3, 3, 4, device=device),
        conv=[torch.randn(2, 8, 6, 3, device=device), torch.randn(2, 8, 2, 1, device=device)],
        intermediate_conv_window=[windows(4, 6, 3, 3, device), windows(4, 2, 3, 1, device)],
    )


@pytest.mark.parametrize("tracked", [False, True])
def test_whole_cache_after_verification(tracked: bool, device: torch.device) -> None:
    caches = make_caches(device)
    copy = SimpleNamespace(
        temporal=caches.temporal.clone(),
        intermediate_ssm=caches.intermediate_ssm,
        conv=[pool.clone() for pool in caches.conv],
        intermediate_conv_window=caches.intermediate_conv_window,
    )
    slots, steps = torch.tensor([0, 2, 4, 6], device=device), torch.tensor([2, -1, 0, 1], device=device)
    track = (torch.tensor([1, 3, 5, 7], device=device), torch.tensor([0, 1, -1, 2], device=device)) if tracked else ()
    scatter_after_verify_reference(copy, slots, steps, *track)
    kernels.scatter_mamba_states_after_mtp_verify(caches, slots, steps, *(track or (None, None)))
    assert same_bits(caches.temporal, copy.temporal)
    assert all(same_bits(a, b) for a, b in zip(caches.conv, copy.conv, strict=True))


@st.composite
def scatter_calls(draw: st.DrawFn) -> tuple[torch.Tensor, ...]:
    layers, slots, requests, steps, size = (draw(st.integers(1, high)) for high in (3, 6, 5, 4, 9))
    count = draw(st.integers(1, requests))
    # Slots are distinct; beyond the pool's end they do not exist.
    chosen = draw(st.permutations(range(slots + count)))[:count]
    accepted = draw(st.lists(st.integers(-2, steps + 1), min_size=count, max_size=count))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.int8]))
    seed = torch.Generator().manual_seed(draw(st.integers(0, 1 << 16)))
    dst = torch.randn(layers, slots, size, generator=seed).to(dtype)
    src = torch.randn(layers, requests, steps, size, generator=seed).to(dtype)
    return dst, src, torch.tensor(chosen), torch.tensor(accepted)


@settings(max_examples=25, deadline=None)
@given(scatter_calls())
def test_equals_the_reference_for_any_valid_call(call: tuple[torch.Tensor, ...]) -> None:
    with interpreter():
        assert same_bits(*run_both(*call))
