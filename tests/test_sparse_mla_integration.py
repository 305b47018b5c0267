"""The sparse MLA prefill inside PyTorch and on GPUs: custom op, FakeTensors, torch.compile, CUDA graphs, devices."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from sparse_mla_calls import FP8, OUTPUTS, Arguments, assert_right, make_call, poison, reference, run
from torch._subclasses.fake_tensor import FakeTensorMode

import kernels
from helpers import topology
from helpers.atlas import spec
from helpers.calls import Call, relative_error, same_bits, snapshot
from helpers.topology import CPU, HOME, OTHER
from kernels.guards import GuardError
from kernels.sparse_mla import api

PREFILL = "sparse_mla_q8kv8_prefill_fwd"
SHAPES = {"out": (2, 64, 512), "max_logits": (2, 64), "lse": (2, 64)}


def dtype_of(output: str) -> torch.dtype:
    return torch.bfloat16 if output == "out" else torch.float32


@pytest.mark.parametrize("sink", [False, True])
def test_opcheck(sink: bool, device: torch.device) -> None:
    call = make_call(device, sink=sink)
    poison(call)
    # Without "test_schema", which compares FP8 inputs by arithmetic that PyTorch lacks; the next test does its work.
    parts = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    options = {"d_v": 512, "check_topk_length_values": False}
    torch.library.opcheck(api._prefill_op, (), {**call, **options}, test_utils=parts)


def test_op_writes_its_three_outputs_and_nothing_else(device: torch.device) -> None:
    call = make_call(device, sink=True)
    poison(call)
    before = snapshot({name: value for name, value in call.items() if isinstance(value, torch.Tensor)})
    api._prefill_op(**call, d_v=512, check_topk_length_values=False)
    changed = {name for name, tensor in before.items() if not same_bits(tensor, call[name])}
    assert changed == set(OUTPUTS)
    written = {argument.name for argument in api._prefill_op._opoverload._schema.arguments if argument.is_write}
    assert written == set(OUTPUTS)


@pytest.mark.parametrize("home", [HOME, OTHER], ids=str)
@pytest.mark.parametrize("given", [(), ("out",), ("max_logits", "lse"), OUTPUTS], ids=str)
def test_stand_ins_give_outputs_of_the_right_kind(given: tuple[str, ...], home: torch.device) -> None:
    call = Call(spec(PREFILL), spec(PREFILL).sample(CPU, 0))
    with topology.stand_ins():
        call.move_all(home)
        call.args |= {name: None for name in OUTPUTS if name not in given}
        for name, tensor in zip(OUTPUTS, call.run(), strict=True):
            assert tensor is call[name] or name not in given
            assert (tuple(tensor.shape), tensor.dtype, tensor.device) == (SHAPES[name], dtype_of(name), home)


@pytest.mark.parametrize("device_name", ["cuda:0", "cuda:1"])
def test_three_fake_outputs_are_accepted(device_name: str) -> None:
    with topology.stand_ins(), FakeTensorMode():
        call: Arguments = {
            "q": torch.empty(2, 64, 512, dtype=FP8, device=device_name),
            "kv": torch.empty(96, 1, 512, dtype=FP8, device=device_name),
            "indices": torch.empty(2, 1, 128, dtype=torch.int32, device=device_name),
            "sm_scale": 0.07,
            "q_scale": torch.empty((), device=device_name),
            "kv_scale": torch.empty((), device=device_name),
        }
        call |= {name: torch.empty(SHAPES[name], dtype=dtype_of(name), device=device_name) for name in OUTPUTS}
        for name, tensor in zip(OUTPUTS, kernels.sparse_mla_q8kv8_prefill_fwd(**call), strict=True):
            assert tensor is call[name]


def compiled(backend: str, **options: Any) -> Any:
    @torch.compile(fullgraph=True, backend=backend, **options)
    def step(call: Arguments) -> tuple[torch.Tensor, ...]:
        out, max_logits, lse = kernels.sparse_mla_q8kv8_prefill_fwd(**call)
        return out * 2, max_logits + 1, lse

    return step


@pytest.mark.parametrize("given", [True, False], ids=["given outputs", "fresh outputs"])
def test_compiled_call_equals_the_eager_one(given: bool, device: torch.device) -> None:
    eager = run(make_call(device, sink=True))
    call = {**eager, **{name: torch.zeros_like(eager[name]) if given else None for name in OUTPUTS}}
    out, max_logits, lse = compiled("aot_eager")(call)
    assert same_bits(out, eager["out"] * 2)
    assert same_bits(max_logits, eager["max_logits"] + 1)
    assert same_bits(lse, eager["lse"])
    assert not given or all(same_bits(call[name], eager[name]) for name in OUTPUTS)


def test_compiled_call_takes_other_sizes(device: torch.device) -> None:
    step = compiled("aot_eager", dynamic=True)
    for s_q, s_kv in ((2, 90), (3, 140), (5, 33)):
        call = make_call(device, s_q=s_q, s_kv=s_kv)
        out, max_logits, lse = step(call)
        assert_right({**call, "out": out / 2, "max_logits": max_logits - 1, "lse": lse})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv": lambda t: t.narrow(0, 0, 9).expand(9, 2, 576)}, "kv must be contiguous"),
        ({"q": lambda t: t.flatten(1)}, r"q must have shape \(s_q, h_q, d_qk\), got \(2, 36864\)"),
        ({"q": lambda t: t.narrow(1, 0, 16).clone()}, "padded to a positive multiple of 64, got 16"),
        ({"kv_scale": lambda t: t.double()}, "kv_scale must be float32, got torch.float64"),
    ],
    ids=["layout", "rank", "heads", "dtype"],
)
def test_compiled_mismatch_raises_the_guards_own_error(
    change: dict[str, Any], message: str, device: torch.device
) -> None:
    call = make_call(device)
    for name, how in change.items():
        call[name] = how(call[name])
    with pytest.raises(GuardError, match=message) as caught:
        compiled("aot_eager")(call)
    assert caught.value.function == PREFILL


def test_compiled_call_checks_length_values_when_asked_to(device: torch.device) -> None:
    call = make_call(device, lengths=True)
    call["topk_length"][0] = 129
    with pytest.raises(GuardError, match="topk_length values must satisfy"):
        compiled("aot_eager")({**call, "check_topk_length_values": True})


def test_compiled_padding_of_heads(device: torch.device) -> None:
    call = make_call(device, sink=True)
    q, sink = call["q"].narrow(1, 0, 16).clone(), call["attn_sink"].narrow(0, 0, 16).clone()
    padded = torch.compile(kernels.pad_q8kv8_heads, fullgraph=True, backend="aot_eager")(q, sink)
    for got, want in zip(padded, kernels.pad_q8kv8_heads(q, sink), strict=True):
        assert same_bits(got, want)


# On a GPU.

SERVING = {
    "q128-h64-d576-k2048": {"s_q": 128, "h_q": 64, "d_qk": 576, "topk": 2048, "s_kv": 8192},
    "q1024-h64-d576-k2048": {"s_q": 1024, "h_q": 64, "d_qk": 576, "topk": 2048, "s_kv": 32768},
    "q1024-h128-d512-k512": {"s_q": 1024, "h_q": 128, "d_qk": 512, "topk": 512, "s_kv": 32768},
    "q4096-h128-d576-k2048": {"s_q": 4096, "h_q": 128, "d_qk": 576, "topk": 2048, "s_kv": 65536},
    "q1024-h64-d512-k128": {"s_q": 1024, "h_q": 64, "d_qk": 512, "topk": 128, "s_kv": 8192},
    "q1024-h64-d576-k2048-len-sink": {"s_q": 1024, "d_qk": 576, "topk": 2048, "s_kv": 32768, "sink": True},
    "q333-h192-d576-k384": {"s_q": 333, "h_q": 192, "d_qk": 576, "topk": 384, "s_kv": 5000, "sink": True},
    "q333-h192-d512-k384-negative": {
        "s_q": 333,
        "h_q": 192,
        "d_qk": 512,
        "topk": 384,
        "s_kv": 5000,
        "lengths": True,
        "sm_scale": -0.07,
    },
}


@pytest.mark.gpu
@pytest.mark.parametrize("case", SERVING)
def test_serving_shapes(case: str) -> None:
    call = run(make_call(HOME, **SERVING[case]))
    tokens = torch.randperm(call["q"].shape[0], device=HOME)[:128]
    assert_right(call, tokens)


@pytest.mark.gpu
def test_first_tokens_of_a_long_prompt_do_not_shrink() -> None:
    call = make_call(HOME, s_q=256, s_kv=256, topk=256)
    causal = torch.arange(256, device=HOME, dtype=torch.int32).expand(256, 256)
    call["indices"] = causal.where(causal <= causal.T, -1).reshape(256, 1, 256).contiguous()
    run(call)
    assert_right(call)
    expected = reference(call)["out"]
    cosine = torch.cosine_similarity(call["out"].double(), expected, -1)
    ratio = call["out"].double().norm(dim=-1) / expected.norm(dim=-1)
    assert bool((cosine > 0.999).all())
    # A weight in e4m3 is off by up to 2^-4, and with few keys so is a head. Over the heads that must cancel.
    assert bool(((ratio - 1).abs() < 2**-4).all())
    assert bool(((ratio.mean(-1) - 1).abs() < 0.01).all())


@pytest.mark.gpu
@pytest.mark.parametrize("size", [{}, {"s_q": 300, "topk": 2048, "s_kv": 9000}], ids=["small", "large"])
def test_graph_capture_and_replay_with_refilled_inputs(size: dict[str, Any]) -> None:
    call = run(make_call(HOME, sink=True, **size))  # the documented warm-up: compiles the kernel outside the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.sparse_mla_q8kv8_prefill_fwd(**call)
    for _ in range(3):
        fresh = run(make_call(HOME, sink=True, **size))
        for name in ("q", "kv", "indices", "q_scale", "kv_scale", "attn_sink", "topk_length"):
            call[name].copy_(fresh[name])
        for name in OUTPUTS:
            call[name].fill_(float("nan"))
        graph.replay()
        assert all(same_bits(call[name], fresh[name]) for name in OUTPUTS)
        # Lengths alone, in place, as a server refills them step by step; shorter, so that poisoned rows stay unused.
        call["topk_length"] //= 2
        graph.replay()
        assert_right(call)


@pytest.mark.gpu
def test_outputs_allocated_inside_a_capture() -> None:
    call = run(make_call(HOME, lengths=True))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = kernels.sparse_mla_q8kv8_prefill_fwd(**{**call, **dict.fromkeys(OUTPUTS)})
    graph.replay()
    assert all(same_bits(tensor, call[name]) for tensor, name in zip(captured, OUTPUTS, strict=True))


@pytest.mark.gpu
def test_the_call_does_not_wait_for_the_device() -> None:
    call = run(make_call(HOME, sink=True))
    torch.cuda.set_sync_debug_mode("error")
    try:
        kernels.sparse_mla_q8kv8_prefill_fwd(**call)
        with pytest.raises(RuntimeError, match="synchronizing"):
            kernels.sparse_mla_q8kv8_prefill_fwd(**call, check_topk_length_values=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_compiled_with_inductor() -> None:
    eager = run(make_call(HOME, sink=True, s_q=64, topk=512, s_kv=4096))
    step = compiled("inductor")
    out, max_logits, lse = step({**eager, **dict.fromkeys(OUTPUTS)})
    assert relative_error(out, eager["out"] * 2) < 1e-6
    assert relative_error(max_logits, eager["max_logits"] + 1) < 1e-6
    assert same_bits(lse, eager["lse"])
    moved = {**eager, "topk_length": eager["topk_length"].cpu()}
    with pytest.raises(GuardError, match="topk_length must be a CUDA tensor"):
        step(moved)


@pytest.mark.gpu
def test_cache_beyond_31_bits() -> None:
    rows = 2**31 // 576 + 1000
    call = make_call(HOME, s_kv=8, s_q=4)
    call["kv"] = torch.empty(rows, 1, 576, dtype=torch.uint8, device=HOME).random_(0, 126).view(FP8)
    call["indices"].random_(rows - 500, rows)
    assert_right(run(call))


@pytest.mark.gpu
def test_queries_beyond_31_bits() -> None:
    tokens = 2**31 // (64 * 576) + 100
    call = make_call(HOME, s_q=tokens)
    last = torch.arange(tokens - 64, tokens, device=HOME)
    assert_right(run(call), last)


@pytest.mark.gpu
@pytest.mark.parametrize("shift", [1, 2, 4, 8])
def test_operands_at_odd_addresses(shift: int) -> None:
    call = make_call(HOME, s_q=5)
    for name in ("q", "kv"):
        room = torch.empty(call[name].numel() + shift, dtype=torch.uint8, device=HOME)
        room[shift:] = call[name].view(torch.uint8).flatten()
        call[name] = room[shift:].view(FP8).view(call[name].shape)
    assert_right(run(call))


@pytest.mark.gpu
def test_refused_call_leaves_gpu_memory_as_it_was() -> None:
    call = make_call(HOME, sink=True)
    poison(call)
    before = snapshot({name: value for name, value in call.items() if isinstance(value, torch.Tensor)})
    allocated = torch.cuda.memory_allocated()
    with pytest.raises(GuardError, match="kv_scale must be a CUDA tensor"):
        kernels.sparse_mla_q8kv8_prefill_fwd(**{**call, "out": None, "kv_scale": call["kv_scale"].cpu()})
    assert torch.cuda.memory_allocated() == allocated
    assert all(same_bits(tensor, call[name]) for name, tensor in before.items())


@pytest.mark.two_gpus
def test_runs_on_the_tensors_device_not_the_current_one() -> None:
    call = make_call(OTHER, sink=True, s_q=32)
    with torch.cuda.device(1):
        inside = {name: tensor.clone() for name, tensor in run(call).items() if name in OUTPUTS}
    torch.cuda.set_device(0)
    run(call)
    torch.cuda.synchronize(1)
    assert torch.cuda.current_device() == 0
    assert all(same_bits(call[name], inside[name]) for name in OUTPUTS)


@pytest.mark.two_gpus
def test_refusal_between_gpus_restores_the_current_device() -> None:
    call = make_call(OTHER)
    call["out"] = torch.empty(2, 64, 512, dtype=torch.bfloat16, device=HOME)
    with pytest.raises(GuardError, match="out must be on device cuda:1, got cuda:0"):
        kernels.sparse_mla_q8kv8_prefill_fwd(**call)
    assert torch.cuda.current_device() == 0


@pytest.mark.two_gpus
def test_a_fresh_thread_needs_no_set_device() -> None:
    call = make_call(OTHER, sink=True)
    thread = threading.Thread(target=run, args=(call,))
    thread.start()
    thread.join()
    torch.cuda.synchronize(1)
    assert_right(call)
