"""The sparse MLA prefill computes attention over the valid indices, and reads nothing else."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sparse_mla_calls import FP8, NAN_BYTE, OUTPUTS, Arguments, assert_right, make_call, reference, run

import kernels
from helpers import topology
from helpers.calls import relative_error, same_bits
from kernels.guards import GuardError, interpreter

INF = math.inf
INT32 = torch.iinfo(torch.int32)


@pytest.fixture(autouse=True)
def seed() -> int:
    """Fresh numbers in every run; pytest prints the seed of a test that fails."""
    fresh = torch.seed()
    torch.manual_seed(fresh)
    return fresh


VARIANTS: dict[str, dict[str, Any]] = {
    "576 channels": {},
    "512 channels": {"d_qk": 512},
    "lengths": {"lengths": True, "s_q": 3},
    "sink": {"sink": True},
    "sink, 512 channels": {"sink": True, "d_qk": 512},
    "128 heads": {"h_q": 128, "sink": True},
    "192 heads": {"h_q": 192, "s_q": 1},
    "topk 384": {"topk": 384, "s_kv": 500},
    "one cache row": {"s_kv": 1},
    "one token": {"s_q": 1},
    "negative softmax scale": {"sm_scale": -0.1},
    "negative query scale": {"q_scale": -0.01},
    "negative cache scale": {"kv_scale": -0.012},
    "two negative scales": {"sm_scale": -0.1, "kv_scale": -0.012, "sink": True},
    "no scale": {"sm_scale": 0.0, "lengths": True},
    "one key takes all": {"sm_scale": 2.0},
    "the smallest takes all": {"sm_scale": -2.0},
    "integer softmax scale": {"sm_scale": 1},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_the_reference(variant: str, device: torch.device) -> None:
    assert_right(run(make_call(device, **VARIANTS[variant])))


def test_outputs_that_are_left_out_are_allocated(device: torch.device) -> None:
    call = run(make_call(device, sink=True))
    without = {name: value for name, value in call.items() if name not in OUTPUTS}
    for name, tensor in zip(OUTPUTS, kernels.sparse_mla_q8kv8_prefill_fwd(**without), strict=True):
        assert same_bits(tensor, call[name])
        assert tensor.is_contiguous()


def test_scales_may_have_any_shape_of_one_element(device: torch.device) -> None:
    call = make_call(device)
    call |= {"q_scale": call["q_scale"].reshape(1), "kv_scale": call["kv_scale"].reshape(1, 1)}
    assert_right(run(call))


# Which indices count.


def with_indices(call: Arguments, rows: list[list[int]]) -> Arguments:
    """The call with these indices in front of each token's row and -1 behind them."""
    call["indices"].fill_(-1)
    for token, row in enumerate(rows):
        call["indices"][token, 0, : len(row)] = torch.tensor(row, dtype=torch.int32)
    return call


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize(
    "nothing", [[], [-1] * 128, [150] * 128, [151, -2, INT32.min, INT32.max, 2**30]], ids=("none", "-1", "end", "far")
)
def test_token_without_a_valid_index(nothing: list[int], sink: bool, device: torch.device) -> None:
    call = make_call(device, sink=sink, lengths=True)
    call["topk_length"].fill_(128)
    run(with_indices(call, [nothing, [5, 7]]))
    assert bool((call["out"][0] == 0).all())
    assert bool((call["max_logits"][0] == -INF).all())
    assert bool((call["lse"][0] == INF).all())
    assert_right(call)


@pytest.mark.parametrize("length", [0, -1, INT32.min])
def test_length_of_nothing(length: int, device: torch.device) -> None:
    call = make_call(device, sink=True)
    call["topk_length"][0] = length
    assert bool((run(call)["out"][0] == 0).all())
    assert_right(call)


@pytest.mark.parametrize("length", [129, 4096, INT32.max])
def test_length_past_the_row_is_taken_as_the_whole_row(length: int, device: torch.device) -> None:
    call = make_call(device, lengths=True)
    # Were the length believed, token 0 would attend to token 1's keys.
    call["topk_length"][0] = length
    run(call)
    call["topk_length"].clamp_(max=128)
    assert_right(call)


def test_index_that_repeats_counts_as_often(device: torch.device) -> None:
    call = run(with_indices(make_call(device, h_q=64), [[3] * 128, [3, 3, 3, 9]]))
    assert_right(call)
    value = call["kv"][3, 0, :512].double() * call["kv_scale"].double()
    assert relative_error(call["out"][0], value.expand(64, 512)) < 4e-3
    assert relative_error(call["lse"][0], call["max_logits"][0].double() + math.log(128)) < 1e-5


@pytest.mark.parametrize("place", [0, 31, 32, 63, 64, 127])
def test_single_valid_index_anywhere_in_the_row(place: int, device: torch.device) -> None:
    # Up to there the running maximum is -inf, behind it every weight is zero.
    call = make_call(device, s_q=1)
    assert_right(run(with_indices(call, [[-1] * place + [11]])))


def has_full_length(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether out is as long as it should be: each token's within 1%, and no head of it off by 5%.

    Weights in e4m3 round each weight by up to one part in 16, which moves the length of a single head with two to eight
    keys by up to 2.4%. Over the 64 heads of a token that averages out.
    """
    tokens = got.flatten(1).norm(dim=1) / expected.flatten(1).norm(dim=1)
    heads = got.norm(dim=-1) / expected.norm(dim=-1)
    return bool(((tokens - 1).abs() < 0.01).all() and ((heads - 1).abs() < 0.05).all())


def first_tokens(device: torch.device) -> Arguments:
    """Six tokens of a prompt, each with all keys up to its own and -1 behind them."""
    return with_indices(make_call(device, s_q=6, s_kv=6, h_q=64), [list(range(token + 1)) for token in range(6)])


def test_first_tokens_of_a_prompt_do_not_shrink(device: torch.device) -> None:
    call = run(first_tokens(device))
    got, expected = call["out"].double(), reference(call)["out"]
    assert bool((torch.cosine_similarity(got, expected, -1) > 0.999).all())
    assert has_full_length(got, expected)


@pytest.mark.parametrize("masked", [1, 122])
def test_masked_keys_in_the_denominator_would_be_noticed(masked: int) -> None:
    # A row that was zeroed and not masked has a logit of 0: it adds 1 to the denominator, and nothing above it.
    expected = reference(first_tokens(topology.CPU))
    total = expected["lse"].exp()
    shrunk = expected["out"] * (total / (total + masked))[..., None]
    assert has_full_length(expected["out"].bfloat16().double(), expected["out"])
    assert not any(has_full_length(shrunk[token, None], expected["out"][token, None]) for token in range(6))


def test_rows_beyond_the_cache_are_not_read(device: torch.device) -> None:
    call = make_call(device, s_kv=40)
    around = torch.full((120, 1, 576), NAN_BYTE, dtype=torch.uint8, device=device)
    around[40:80] = call["kv"].view(torch.uint8)
    call["kv"] = around[40:80].view(FP8)
    call["indices"].random_(-40, 80)
    call["indices"][0, 0, :2] = torch.tensor([0, 39])
    call["indices"][1, 0, :2] = torch.tensor([0, 39])
    assert_right(run(call))


def test_empty_cache(device: torch.device) -> None:
    call = run(make_call(device, s_kv=0, sink=True))
    assert_right(call)
    assert bool((call["out"] == 0).all())


def test_no_tokens(device: torch.device) -> None:
    out, max_logits, lse = (run(make_call(device, s_q=0, sink=True))[name] for name in OUTPUTS)
    assert (out.shape, max_logits.shape, lse.shape) == ((0, 64, 512), (0, 64), (0, 64))


# Special values.


@pytest.mark.filterwarnings("ignore:overflow encountered in exp2")
@pytest.mark.parametrize("sink", [-INF, -1000.0, -5.0, 0.0, 30.0, 1000.0, INF])
def test_sink_of_any_size(sink: float, device: torch.device) -> None:
    call = make_call(device, sink=True)
    call["attn_sink"].fill_(sink)
    call["indices"][0] = -1
    assert_right(run(call))
    assert bool((call["out"][0] == 0).all())


def test_sink_is_in_neither_statistic(device: torch.device) -> None:
    call = run(make_call(device, sink=True))
    before = [call[name].clone() for name in OUTPUTS]
    call["attn_sink"] += 3
    run(call)
    assert not same_bits(call["out"], before[0])
    assert same_bits(call["max_logits"], before[1])
    assert same_bits(call["lse"], before[2])


@pytest.mark.parametrize("scale", ["q_scale", "kv_scale"])
def test_nan_stays_visible(scale: str, device: torch.device) -> None:
    call = with_indices(make_call(device), [[1, 2, 3], []])
    call[scale].fill_(math.nan)
    run(call)
    for name in OUTPUTS:
        assert bool(call[name][0].isnan().all()), name
    assert bool((call["out"][1] == 0).all()), "no valid index is no valid index"


@pytest.mark.gpu  # Triton's interpreter takes the NaN of e4m3 for 480
@pytest.mark.parametrize("channel", [0, 300, 560])
def test_nan_in_a_valid_row_stays_visible(channel: int, device: torch.device) -> None:
    call = with_indices(make_call(device), [[1, 2, 3], [1, 2]])
    call["kv"].view(torch.uint8)[3, 0, channel] = NAN_BYTE
    run(call)
    for name in OUTPUTS:
        assert bool(call[name][0].isnan().all()), name
        assert bool(call[name][1].isfinite().all()), name


def test_values_of_full_magnitude(device: torch.device) -> None:
    call = make_call(device, sm_scale=1e-4)
    for name in ("q", "kv"):
        call[name].copy_((torch.randint(0, 2, call[name].shape) * 896 - 448).to(FP8))
    assert_right(run(call))


# Heads of a tensor-parallel rank.


@pytest.mark.parametrize(("heads", "padded"), [(0, 64), (1, 64), (16, 64), (64, 64), (65, 128), (128, 128), (130, 192)])
def test_padded_number_of_heads(heads: int, padded: int) -> None:
    assert kernels.q8kv8_padded_num_heads(heads) == padded


@pytest.mark.parametrize("heads", [8, 16, 40])
def test_padded_heads_equal_the_reference_after_slicing(heads: int, device: torch.device) -> None:
    whole = make_call(device, sink=True)
    few = {name: value for name, value in whole.items() if name not in OUTPUTS}
    few["q"], few["attn_sink"] = whole["q"][:, :heads].contiguous(), whole["attn_sink"][:heads].contiguous()
    with pytest.raises(GuardError, match=f"padded to a positive multiple of 64, got {heads}"):
        kernels.sparse_mla_q8kv8_prefill_fwd(**few)
    expected = reference(few)
    few["q"], few["attn_sink"] = kernels.pad_q8kv8_heads(few["q"], few["attn_sink"])
    for name, tensor in zip(OUTPUTS, kernels.sparse_mla_q8kv8_prefill_fwd(**few), strict=True):
        assert tensor.shape[1] == 64
        assert bool(tensor.isfinite().all()), "padded heads stay finite"
        assert relative_error(tensor[:, :heads], expected[name]) < 2e-2


def test_full_heads_are_not_copied(device: torch.device) -> None:
    call = make_call(device)
    q, sink = kernels.pad_q8kv8_heads(call["q"])
    assert q is call["q"]
    assert sink is None


@settings(max_examples=12, deadline=None, derandomize=False)
@given(data=st.data())
def test_any_call_equals_the_reference(data: st.DataObject) -> None:
    device = topology.runnable()
    torch.manual_seed(data.draw(st.integers(0, 2**32), label="seed"))
    sink = data.draw(st.booleans(), label="sink")
    call = make_call(
        device,
        s_q=data.draw(st.integers(1, 3), label="s_q"),
        h_q=data.draw(st.sampled_from([64, 128]), label="h_q"),
        d_qk=data.draw(st.sampled_from([512, 576]), label="d_qk"),
        topk=data.draw(st.sampled_from([128, 256]), label="topk"),
        s_kv=data.draw(st.integers(1, 300), label="s_kv"),
        sm_scale=data.draw(st.integers(-25, 25), label="sm_scale, hundredths") / 100,
        sink=sink,
        lengths=data.draw(st.booleans(), label="lengths"),
    )
    drop = data.draw(st.floats(0, 1), label="share of indices dropped")
    call["indices"][torch.rand(call["indices"].shape, device=device) < drop] = -1
    with interpreter(device.type == "cpu"):
        assert_right(run(call))
