"""The scatter inside PyTorch: custom ops, FakeTensors, torch.compile, CUDA graphs, devices and threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import kernels
from helpers import topology
from helpers.atlas import spec
from helpers.calls import Call, same_bits, snapshot
from kernels.guards import GuardError
from kernels.mamba_scatter import api
from kernels.mamba_scatter.reference import mamba_state_scatter_reference

STATE = "fused_mamba_state_scatter_with_mask"
CONV = "fused_conv_window_scatter_with_mask"
VERIFY = "scatter_mamba_states_after_mtp_verify"


@pytest.mark.parametrize(("function", "op"), [(STATE, api._state_op), (CONV, api._conv_op)])
def test_opcheck(function: str, op: Callable[..., None], device: torch.device) -> None:
    call = Call.valid(spec(function), on=device)
    torch.library.opcheck(op, tuple(call.args.values()))


@pytest.mark.parametrize("function", [STATE, CONV])
@pytest.mark.parametrize("index", [0, 1])
def test_stand_ins_pass_like_real_tensors(function: str, index: int) -> None:
    home = torch.device("cuda", index)
    call = Call(spec(function), spec(function).sample(topology.CPU, 0))
    call.args = {name: topology.stand_in(t.shape, t.stride(), t.dtype, home) for name, t in call.tensors.items()}
    assert call.run() is None


@pytest.mark.parametrize("function", [STATE, CONV])
def test_compiled_call_equals_the_reference(function: str, device: torch.device) -> None:
    call = Call.valid(spec(function), on=device)
    expected = call.spec.expected(call.args)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(*args: torch.Tensor) -> torch.Tensor:
        getattr(kernels, function)(*args)
        return args[0] + 1

    assert same_bits(step(*call.args.values()), expected["dst"] + 1)
    assert same_bits(call["dst"], expected["dst"])


def test_compiled_mismatch_raises_the_guards_own_error(device: torch.device) -> None:
    call = Call.valid(spec(STATE), on=device)
    call["step_indices_raw"] = call["step_indices_raw"][:2]

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(*args: torch.Tensor) -> None:
        kernels.fused_mamba_state_scatter_with_mask(*args)

    with pytest.raises(GuardError, match="indices length mismatch") as caught:
        step(*call.args.values())
    assert caught.value.function == STATE


@pytest.mark.parametrize("function", [STATE, CONV])
def test_a_subclass_without_behaviour_of_its_own_runs(function: str, device: torch.device) -> None:
    class Named(torch.Tensor):
        pass

    call = Call.valid(spec(function), on=device)
    expected = call.spec.expected(call.args)
    call["src"] = call["src"].as_subclass(Named)
    call.run()
    assert same_bits(call["dst"], expected["dst"])


@torch.compile(fullgraph=True, backend="eager")
def scatter_compiled(*args: Any) -> None:
    kernels.scatter_mamba_states_after_mtp_verify(*args)


def test_compiled_scatter_of_a_cache_equals_the_reference(device: torch.device) -> None:
    call = Call.valid(spec(VERIFY), on=device)
    expected = call.spec.expected(call.args)
    scatter_compiled(*call.args.values())
    assert all(same_bits(call.written()[name], value) for name, value in expected.items())


def test_compiled_scatter_of_a_cache_is_refused_as_a_whole(device: torch.device) -> None:
    call = Call.valid(spec(VERIFY), on=device)
    call["mamba_caches.conv.0"] = call["mamba_caches.conv.0"][:, :, :, :1]
    before = snapshot(call.tensors)
    with pytest.raises(GuardError, match="Window dims mismatch"):
        scatter_compiled(*call.args.values())
    assert all(same_bits(tensor, call[name]) for name, tensor in before.items())


def test_compiled_scatter_of_a_cache_refuses_half_a_pair(device: torch.device) -> None:
    call = Call.valid(spec(VERIFY), on=device)
    call["mamba_steps_to_track"] = None
    with pytest.raises(GuardError, match="must be given together"):
        scatter_compiled(*call.args.values())


@pytest.mark.gpu
@pytest.mark.parametrize("function", [STATE, CONV])
def test_compiled_with_inductor(function: str) -> None:
    call = Call.valid(spec(function), on=topology.HOME)
    expected = call.spec.expected(call.args)

    @torch.compile(fullgraph=True)
    def step(*args: torch.Tensor) -> torch.Tensor:
        getattr(kernels, function)(*args)
        return args[0] * 2

    assert same_bits(step(*call.args.values()), expected["dst"] * 2)
    call.move("step_indices_raw", topology.CPU)
    with pytest.raises(GuardError, match="step_indices_raw must be on dst's device cuda:0, got cpu"):
        step(*call.args.values())


@pytest.mark.gpu
@pytest.mark.parametrize("function", [STATE, CONV])
def test_graph_capture_and_replay_with_refilled_inputs(function: str) -> None:
    call = Call.valid(spec(function), on=topology.HOME)
    call.run()  # the documented warm-up: compiles the kernel outside the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call.run()
    for seed in (1, 2, 3):
        fresh = Call.valid(spec(function), on=topology.HOME, seed=seed)
        # Windows overlap in memory, so the src of a conv call is refilled through its storage.
        for name, tensor in fresh.tensors.items():
            call[name].untyped_storage().copy_(tensor.untyped_storage())
        expected = call.spec.expected(call.args)
        graph.replay()
        assert same_bits(call["dst"], expected["dst"])


@pytest.mark.gpu
def test_slot_times_stride_beyond_31_bits() -> None:
    slots, entry = 3, (1 << 30) + 16
    envelope = torch.empty(slots * entry, dtype=torch.bfloat16, device=topology.HOME)
    envelope.fill_(-1)
    dst = envelope.as_strided((1, slots, 64), (slots * entry, entry, 1))
    src = torch.randn(1, 1, 2, 64, device=topology.HOME).to(torch.bfloat16)
    index = torch.tensor([slots - 1], device=topology.HOME), torch.tensor([1], device=topology.HOME)
    kernels.fused_mamba_state_scatter_with_mask(dst, src, *index)
    assert same_bits(dst[:, -1], src[:, 0, 1])
    envelope[(slots - 1) * entry :][:64] = -1
    assert bool((envelope == -1).all())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("requests", [1, 8, 32])
def test_serving_shapes(dtype: torch.dtype, requests: int) -> None:
    device = topology.HOME
    layers, slots, steps, entry = 4, 64, 4, (32, 128, 128)
    dst = torch.randn(layers, slots, *entry, device=device).to(dtype)
    src = torch.randn(layers, requests, steps, *entry, device=device).to(dtype)
    where = torch.randperm(slots, device=device)[:requests].to(torch.int32)
    accepted = torch.randint(-1, steps, (requests,), device=device, dtype=torch.int32)
    expected = dst.clone()
    mamba_state_scatter_reference(expected, src, where, accepted)
    kernels.fused_mamba_state_scatter_with_mask(dst, src, where, accepted)
    assert torch.equal(dst.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.gpu
def test_the_call_does_not_wait_for_the_device() -> None:
    call = Call.valid(spec(STATE), on=topology.HOME)
    call.run()
    with torch.cuda.device(0):
        torch.cuda.set_sync_debug_mode("error")
        try:
            call.run()
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.two_gpus
@pytest.mark.parametrize("function", [STATE, CONV])
def test_runs_on_the_tensors_device_not_the_current_one(function: str) -> None:
    with torch.cuda.device(1):
        inside = Call.valid(spec(function), on=topology.OTHER)
        inside.run()
    torch.cuda.set_device(0)
    outside = Call.valid(spec(function), on=topology.OTHER)
    outside.run()
    torch.cuda.synchronize(1)
    assert torch.cuda.current_device() == 0
    assert same_bits(outside["dst"], inside["dst"])


@pytest.mark.two_gpus
def test_refusal_between_gpus_restores_the_current_device() -> None:
    call = Call.valid(spec(STATE), on=topology.HOME)
    call.move("src", topology.OTHER)
    with pytest.raises(GuardError, match=r"index=0\).*index=1\)"):
        call.run()
    assert torch.cuda.current_device() == 0


@pytest.mark.two_gpus
def test_a_fresh_thread_needs_no_set_device() -> None:
    call = Call.valid(spec(STATE), on=topology.OTHER)
    expected = call.spec.expected(call.args)
    thread = threading.Thread(target=call.run)
    thread.start()
    thread.join()
    torch.cuda.synchronize(1)
    assert same_bits(call["dst"], expected["dst"])
