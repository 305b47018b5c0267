"""The sparse MLA prefill refuses what it must, in order, in the agreed words, and touches nothing when it does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from sparse_mla_calls import FP8, make_call

import kernels
from helpers import topology
from helpers.atlas import records, spec
from helpers.calls import Call, same_bits, snapshot
from helpers.topology import CPU, HOME, OTHER
from kernels.guards import GuardError, HardwareError, compute_capability
from kernels.sparse_mla import api, checks

PREFILL = "sparse_mla_q8kv8_prefill_fwd"
BF16, F16, F32, F64, I32, I64 = (
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.int32,
    torch.int64,
)


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test when a kernel is launched or an output allocated."""

    def touched(*args: Any, **kwargs: Any) -> None:
        pytest.fail("a refused call launched or allocated")

    monkeypatch.setattr(api, "launch", touched)
    monkeypatch.setattr(api, "_allocated", touched)


def refused(call: Call) -> GuardError:
    with pytest.raises(GuardError) as caught:
        call.run()
    return caught.value


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("id", [r.id for r in records().values() if r.function == PREFILL])
def test_refusal_names_the_guard_and_touches_nothing(id: str) -> None:
    entry = records()[id]
    call = Call.valid(spec(PREFILL))
    entry.provoke(call)
    before = snapshot(call.tensors)
    with entry.context():
        error = refused(call)
    assert str(error) == entry.example
    assert isinstance(error, RuntimeError if isinstance(error, HardwareError) else ValueError)
    assert (error.guard, error.argument, error.function) == (entry.guard, entry.argument, PREFILL)
    assert all(same_bits(tensor, call[name]) for name, tensor in before.items())


# The order: a call with every fault at once, mended one at a time.


def fake(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device = HOME, *, gap: bool = False) -> torch.Tensor:
    """A stand-in; with a gap, its elements lie two apart."""
    packed = torch.empty(shape, device="meta").stride()
    return topology.stand_in(shape, tuple((2 if gap else 1) * step for step in packed), dtype, device)


def all_wrong() -> dict[str, Any]:
    return {
        "q": fake((32, 448), BF16, CPU, gap=True),
        "kv": fake((96, 320), BF16, CPU, gap=True),
        "indices": fake((3, 100), I64, CPU, gap=True),
        "sm_scale": 1.0,
        "q_scale": 0.01,
        "kv_scale": 0.01,
        "d_v": 256,
        "attn_sink": fake((16,), BF16, CPU, gap=True),
        "topk_length": fake((3,), I64, CPU, gap=True),
        "out": fake((2, 16, 512), F16, OTHER, gap=True),
        "max_logits": fake((2, 16), F16, OTHER, gap=True),
        "lse": fake((2, 16), F16, OTHER, gap=True),
    }


def statistics() -> tuple[torch.Tensor, torch.Tensor]:
    """max_logits and lse that overlap without sharing a start address."""
    workspace = fake((192,), F32)
    return workspace.narrow(0, 0, 128).view(2, 64), workspace.narrow(0, 64, 128).view(2, 64)


def output_steps(name: str, shape: tuple[int, ...], dtype: torch.dtype, mended: dict[str, Any]) -> Iterator[Any]:
    yield "out_shape", name, {name: fake(shape, F16, OTHER, gap=True)}
    yield "out_dtype", name, {name: fake(shape, dtype, OTHER, gap=True)}
    yield "out_device", name, {name: fake(shape, dtype, HOME, gap=True)}
    yield "out_layout", name, mended


def scale_steps(name: str) -> Iterator[Any]:
    yield "scale_tensor", name, {name: fake((2,), F64, CPU)}
    yield "cuda", name, {name: fake((2,), F64, OTHER)}
    yield "device", name, {name: fake((2,), F64)}
    yield "scale_dtype", name, {name: fake((2,), F32)}
    yield "scale_shape", name, {name: fake((), F32)}


def companion_steps(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Iterator[Any]:
    yield "cuda", name, {name: fake(shape, dtype, OTHER, gap=True)}
    yield "device", name, {name: fake(shape, dtype, gap=True)}
    yield "contiguous", name, {name: fake(shape, dtype)}


def steps() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Guard, argument, and what mends that fault and no other."""
    yield "q_rank", "q", {"q": fake((2, 16, 448), BF16, CPU, gap=True)}
    yield "kv_rank", "kv", {"kv": fake((96, 2, 320), BF16, CPU, gap=True)}
    yield "indices_rank", "indices", {"indices": fake((3, 1, 100), I64, CPU, gap=True)}
    yield "cuda", "q", {"q": fake((2, 16, 448), BF16, gap=True)}
    yield "cuda", "kv", {"kv": fake((96, 2, 320), BF16, OTHER, gap=True)}
    yield "cuda", "indices", {"indices": fake((3, 1, 100), I64, OTHER, gap=True)}
    yield "device", "kv", {"kv": fake((96, 2, 320), BF16, gap=True)}
    yield "device", "indices", {"indices": fake((3, 1, 100), I64, gap=True)}
    yield "fp8", "q", {"q": fake((2, 16, 448), FP8, gap=True)}
    yield "fp8", "kv", {"kv": fake((96, 2, 320), FP8, gap=True)}
    yield "contiguous", "q", {"q": fake((2, 16, 448), FP8)}
    yield "contiguous", "kv", {"kv": fake((96, 2, 320), FP8)}
    yield "contiguous", "indices", {"indices": fake((3, 1, 100), I64)}
    yield "kv_width", "kv", {"kv": fake((96, 2, 448), FP8)}
    yield "heads", "q", {"q": fake((2, 64, 448), FP8)}
    yield "kv_heads", "kv", {"kv": fake((96, 1, 448), FP8)}
    yield "width", "q", {"q": fake((2, 64, 512), FP8), "kv": fake((96, 1, 512), FP8)}
    yield "indices_shape", "indices", {"indices": fake((2, 1, 100), I64)}
    yield "indices_dtype", "indices", {"indices": fake((2, 1, 100), I32)}
    yield "topk", "indices", {"indices": fake((2, 1, 128), I32)}
    yield "length_shape", "topk_length", {"topk_length": fake((2,), I32, CPU, gap=True)}
    yield from companion_steps("topk_length", (2,), I32)
    yield "value_width", "d_v", {"d_v": 512}
    yield "sink_shape", "attn_sink", {"attn_sink": fake((64,), F32, CPU, gap=True)}
    yield from companion_steps("attn_sink", (64,), F32)
    yield from scale_steps("q_scale")
    yield from scale_steps("kv_scale")
    max_logits, lse = statistics()
    out = fake((2, 64, 512), BF16)
    yield from output_steps("out", (2, 64, 512), BF16, {"out": out})
    yield from output_steps("max_logits", (2, 64), F32, {"max_logits": max_logits})
    yield from output_steps("lse", (2, 64), F32, {"lse": lse})
    overlapping = {
        "kv": out.view(FP8).flatten().narrow(0, 0, 96 * 512).view(96, 1, 512),
        "q_scale": max_logits.flatten().narrow(0, 0, 1),
    }
    lse = fake((2, 64), F32)
    yield "alias", "lse", {"lse": lse, "attn_sink": lse.select(0, 1)} | overlapping
    yield "overlap", "out", {"kv": fake((96, 1, 512), FP8)}
    yield "overlap", "max_logits", {"q_scale": fake((), F32)}
    yield "overlap", "lse", {"attn_sink": fake((64,), F32)}


@pytest.mark.usefixtures("untouched")
def test_checks_come_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "compute_capability", lambda device: (8, 0))
    call = Call.valid(spec(PREFILL), on=CPU)
    call.args |= all_wrong()
    for guard, argument, mend in steps():
        error = refused(call)
        assert (error.guard, error.argument) == (f"sparse_mla.{guard}", argument)
        call.args |= mend
    assert refused(call).guard == "sparse_mla.hardware"


def test_call_with_every_fault_mended_is_accepted() -> None:
    call = Call.valid(spec(PREFILL), on=CPU)
    call.args |= all_wrong()
    for _, _, mend in steps():
        call.args |= mend
    # On stand-ins it goes through to the op's fake implementation.
    assert [tuple(tensor.shape) for tensor in call.run()] == [(2, 64, 512), (2, 64), (2, 64)]


def test_sink_without_lengths_comes_before_the_sinks_own_faults_and_after_d_v() -> None:
    call = Call.valid(spec(PREFILL))
    call.args |= {"topk_length": None, "attn_sink": fake((3,), F64, CPU), "d_v": 64, "q_scale": 1.0}
    assert refused(call).guard == "sparse_mla.value_width"
    call["d_v"] = 512
    assert str(refused(call)) == "attn_sink requires topk_length to be provided as well"


@pytest.mark.parametrize("length", [-1, 129])
def test_length_values_are_judged_when_asked_for_and_before_d_v(length: int, device: torch.device) -> None:
    call = Call.valid(spec(PREFILL), on=device)
    call["topk_length"][1], call["d_v"] = length, 64
    assert refused(call).guard == "sparse_mla.value_width"
    call["check_topk_length_values"] = True
    assert str(refused(call)) == "topk_length values must satisfy 0 <= topk_length <= topk (128)"
    call["topk_length"][1], call["d_v"] = 128, 512
    call.run()


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", ["q_scale", "kv_scale"])
def test_sparse_scale_is_not_contiguous(name: str, interpreted: torch.device) -> None:
    call = Call.valid(spec(PREFILL), on=interpreted)
    call[name] = call[name].to_sparse()
    assert str(refused(call)) == f"{name} must be contiguous"


def test_no_check_reads_a_value() -> None:
    # A FakeTensor has none: reading one raises. The whole list of checks is walked through, options included.
    call = Call.valid(spec(PREFILL))
    call.args = {
        name: topology.stand_in(value.shape, value.stride(), value.dtype, OTHER)
        if isinstance(value, torch.Tensor)
        else value
        for name, value in call.args.items()
    }
    for name, tensor in zip(("out", "max_logits", "lse"), call.run(), strict=True):
        assert tensor is call[name]


# What people met.


def test_buffer_on_the_first_gpu_in_rank_code() -> None:
    call = Call.valid(spec(PREFILL))
    call.move_all(OTHER)
    call.move("out", HOME)
    error = refused(call)
    assert str(error) == "out must be on device cuda:1, got cuda:0"
    assert dict(error.offenders) == {"out": HOME}
    assert error.fix == "out = torch.empty((2, 64, 512), dtype=torch.bfloat16, device=q.device)"
    assert error.__notes__[0] == "odd one out: out on cuda:0; the other 9 on cuda:1"


@pytest.mark.parametrize("name", ["q_scale", "kv_scale"])
def test_three_wrong_scales_three_messages(name: str) -> None:
    call = Call.valid(spec(PREFILL))
    scale, messages = call[name], []
    for wrong in (0.01, scale.to(F64), topology.place(scale, OTHER)):
        call[name] = wrong
        messages.append(str(refused(call)))
    assert messages == [
        f"{name} must be a torch.Tensor",
        f"{name} must be float32, got torch.float64",
        f"{name} must be on q's device cuda:0, got cuda:1",
    ]


def test_outputs_that_overlap_without_sharing_a_start(device: torch.device) -> None:
    call = make_call(device)
    workspace = torch.full((192,), 7.0, device=device)
    call |= {
        "out": torch.full((2, 64, 512), 7.0, dtype=BF16, device=device),
        "max_logits": workspace[:128].view(2, 64),
        "lse": workspace[64:].view(2, 64),
    }
    with pytest.raises(GuardError, match=r"^out, max_logits and lse must not alias each other"):
        kernels.sparse_mla_q8kv8_prefill_fwd(**call)
    assert bool((workspace == 7).all() and (call["out"] == 7).all())
    # Side by side in one workspace is no overlap.
    workspace = torch.full((256,), 7.0, device=device)
    call |= {"max_logits": workspace[:128].view(2, 64), "lse": workspace[128:].view(2, 64)}
    kernels.sparse_mla_q8kv8_prefill_fwd(**call)


def test_empty_outputs_do_not_alias(device: torch.device) -> None:
    call = make_call(device, s_q=0)
    statistics = torch.empty(0, 64, device=device)
    call |= {"max_logits": statistics, "lse": statistics}
    out, _, _ = kernels.sparse_mla_q8kv8_prefill_fwd(**call)
    assert out.shape == (0, 64, 512)


def test_cpu_tensors_are_refused_without_the_interpreter() -> None:
    call = Call.valid(spec(PREFILL), on=CPU)
    assert str(refused(call)) == "q must be a CUDA tensor"


@pytest.mark.parametrize("name", ["q", "kv", "indices", "topk_length", "attn_sink", "q_scale", "kv_scale"])
def test_zero_dimensional_tensors_are_refused_not_crashed_on(name: str) -> None:
    call = Call.valid(spec(PREFILL))
    call[name] = fake((), call[name].dtype)
    if name.endswith("_scale"):
        call.run()
    else:
        assert refused(call).argument == name


# Hardware.


@pytest.mark.parametrize(("capability", "name"), [((7, 5), "sm_75"), ((8, 0), "sm_80"), ((8, 6), "sm_86")])
def test_gpus_without_fp8_are_refused_last(
    capability: tuple[int, int], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "compute_capability", lambda device: capability)
    error = refused(Call.valid(spec(PREFILL)))
    assert isinstance(error, RuntimeError)
    assert not isinstance(error, ValueError)
    assert str(error) == f"{PREFILL} needs an FP8-capable GPU (sm_89 or newer), got {name}"


@pytest.mark.parametrize("capability", [(8, 9), (9, 0), (10, 0), (12, 0), None])
def test_gpus_with_fp8_are_accepted(capability: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "compute_capability", lambda device: capability)
    call = Call.valid(spec(PREFILL))
    call.move_all(OTHER)
    call.run()


def test_devices_that_are_not_there_have_no_capability() -> None:
    assert compute_capability(CPU) is None
    assert compute_capability(torch.device("cuda", 99)) is None
