"""The ReplaySSM decode inside PyTorch: custom op, FakeTensors, torch.compile, CUDA graphs, devices and threads."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from kda_replayssm_steps import RINGS, WRITTEN, assert_close, make_step, run_and_compare
from torch._subclasses.fake_tensor import FakeTensorMode

import kernels
from helpers import topology
from helpers.atlas import spec
from helpers.calls import Call, relative_error, same_bits
from kernels.guards import GuardError
from kernels.kda_replayssm import api
from kernels.kda_replayssm.reference import kda_replayssm_decode_reference

DECODE = "helion_fused_recurrent_kda_replayssm_decode"


@pytest.mark.parametrize("forced", [True, False])
@pytest.mark.parametrize("lower_bound", [None, -5.0])
def test_opcheck(forced: bool, lower_bound: float | None, device: torch.device) -> None:
    args = make_step(device, batch=2, forced=forced, lower_bound=lower_bound)
    for name in WRITTEN:
        args[name].nan_to_num_(0.5)
    torch.library.opcheck(api._decode_op, (), args)


@pytest.mark.parametrize("index", [0, 1])
def test_stand_ins_pass_like_real_tensors(index: int) -> None:
    home = torch.device("cuda", index)
    call = Call(spec(DECODE), spec(DECODE).sample(topology.CPU, 0))
    call.args |= {name: topology.stand_in(t.shape, t.stride(), t.dtype, home) for name, t in call.tensors.items()}
    out, state = call.run()
    assert (out.shape, out.dtype, out.device) == ((5, 1, 2, 16), torch.bfloat16, home)
    assert (state.shape, state.dtype, state.device) == ((6, 2, 16, 16), torch.float32, home)


def test_fake_tensor_mode(device: torch.device) -> None:
    args = make_step(device, batch=2)
    with FakeTensorMode() as mode:
        fake = {name: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for name, v in args.items()}
        out, state = kernels.helion_fused_recurrent_kda_replayssm_decode(**fake)
        assert out is fake["out"]
        assert state is fake["initial_state"]
        fake["k_cache"] = fake["k_cache"].to(torch.int8)
        with pytest.raises(GuardError, match=r"`k_cache` must have a floating dtype, got torch\.int8"):
            kernels.helion_fused_recurrent_kda_replayssm_decode(**fake)


def compiled_step(backend: str) -> Any:
    @torch.compile(fullgraph=True, backend=backend)
    def step(args: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        out, state = kernels.helion_fused_recurrent_kda_replayssm_decode(**args)
        return out * 2, state

    return step


def copied(args: dict[str, Any]) -> dict[str, Any]:
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in args.items()}


def compare_compiled_with_eager(args: dict[str, Any], backend: str) -> None:
    eager = copied(args)
    kernels.helion_fused_recurrent_kda_replayssm_decode(**eager)
    doubled, state = compiled_step(backend)(args)
    assert same_bits(doubled, eager["out"] * 2)
    assert same_bits(state, eager["initial_state"])
    assert all(same_bits(args[name], eager[name]) for name in WRITTEN)


@pytest.mark.parametrize("options", [{}, {"forced": False, "lower_bound": -5.0}], ids=["forced", "sigmoid gate"])
def test_compiled_call_equals_the_eager_one(options: dict[str, Any], device: torch.device) -> None:
    compare_compiled_with_eager(make_step(device, batch=3, **options), "aot_eager")


def test_compiled_call_on_pools_that_share_one_buffer(device: torch.device) -> None:
    args = make_step(device, batch=2, dtype=torch.float32)
    eager = copied(args)
    kernels.helion_fused_recurrent_kda_replayssm_decode(**eager)
    pools = [args[name] for name in ("initial_state", *RINGS)]
    sizes = [pool[0].numel() for pool in pools]
    buffer = torch.cat([pool.flatten(1) for pool in pools], dim=1)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(buffer: torch.Tensor, args: dict[str, Any]) -> torch.Tensor:
        parts = [
            part.unflatten(1, pool.shape[1:]) for part, pool in zip(buffer.split(sizes, dim=1), pools, strict=True)
        ]
        views = dict(zip(("initial_state", *RINGS), parts, strict=True))
        out, _ = kernels.helion_fused_recurrent_kda_replayssm_decode(**{**args, **views})
        return out

    assert same_bits(step(buffer, args), eager["out"])
    for name, part in zip(("initial_state", *RINGS), buffer.split(sizes, dim=1), strict=True):
        assert same_bits(part, eager[name].flatten(1))


def test_compiled_mismatch_raises_the_guards_own_error(device: torch.device) -> None:
    args = make_step(device, batch=2)
    args["write_pos"] = args["write_pos"].long()
    with pytest.raises(GuardError, match=r"`write_pos` must be a 1D int32 tensor\.") as caught:
        compiled_step("aot_eager")(args)
    assert caught.value.function == DECODE


SERVING: list[dict[str, Any]] = [
    {"batch": 1, "heads": 32, "value_heads": 32},
    {"batch": 3, "heads": 32, "value_heads": 32, "positions": "append", "forced": False},
    {"batch": 16, "heads": 8, "value_heads": 8, "positions": "flush"},
    {"batch": 77, "heads": 8, "value_heads": 32},
    {"batch": 128, "heads": 32, "value_heads": 32},
    {"batch": 16, "heads": 32, "value_heads": 32, "length": 4},
    {"batch": 16, "heads": 8, "value_heads": 16, "length": 32},
    {"batch": 5, "heads": 8, "value_heads": 8, "length": 100},
    {"batch": 16, "heads": 8, "value_heads": 8, "lower_bound": -5.0},
    {"batch": 16, "heads": 8, "value_heads": 8, "normalise": False, "index": torch.int32},
    {"batch": 16, "heads": 8, "value_heads": 8, "dtype": torch.float16},
    {"batch": 16, "heads": 8, "value_heads": 8, "ring": torch.float32},
    {"batch": 16, "heads": 8, "value_heads": 8, "dtype": torch.float32},
    {"batch": 4, "heads": 4, "value_heads": 4, "K": 256, "V": 256},
]


@pytest.mark.gpu
@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SERVING, ids=lambda shape: "-".join(f"{k}{v}" for k, v in shape.items()))
def test_serving_shapes(shape: dict[str, Any], state: torch.dtype) -> None:
    torch.manual_seed(torch.seed())
    args = make_step(topology.HOME, state=state, **{"K": 128, "V": 128, "length": 16, **shape})
    errors = run_and_compare(args)
    print(errors)
    assert_close(errors, args)


@pytest.mark.gpu
def test_the_interpreter_and_the_gpu_agree() -> None:
    args = make_step(topology.CPU, heads=2, value_heads=4, length=16)
    on_gpu = {name: v.to(topology.HOME) if isinstance(v, torch.Tensor) else v for name, v in args.items()}
    with kernels.interpreter():
        kernels.helion_fused_recurrent_kda_replayssm_decode(**args)
    kernels.helion_fused_recurrent_kda_replayssm_decode(**on_gpu)
    assert all(relative_error(on_gpu[name], args[name]) < 2e-3 for name in WRITTEN)


@pytest.mark.gpu
@pytest.mark.parametrize("forced", [True, False])
def test_graph_capture_and_replay_with_refilled_inputs(forced: bool) -> None:
    shape: dict[str, Any] = {"batch": 16, "heads": 8, "value_heads": 16, "K": 128, "V": 128, "length": 16}
    args = make_step(topology.HOME, forced=forced, **shape)
    kernels.helion_fused_recurrent_kda_replayssm_decode(**args)  # the documented warm-up
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.helion_fused_recurrent_kda_replayssm_decode(**args)
    for _ in range(3):
        fresh = make_step(topology.HOME, forced=forced, **shape)
        fresh["ssm_state_indices"][3] = -1
        for name, value in fresh.items():
            if isinstance(value, torch.Tensor):
                args[name].copy_(value)
        kernels.helion_fused_recurrent_kda_replayssm_decode(**fresh)
        graph.replay()
        assert all(same_bits(args[name], fresh[name]) for name in WRITTEN)
        assert bool((args["out"][3] == 0).all())


@pytest.mark.gpu
def test_compiled_with_inductor() -> None:
    args = make_step(topology.HOME, batch=16, heads=8, value_heads=16, K=128, V=128, length=16)
    compare_compiled_with_eager(args, "inductor")
    args["d_cache"] = args["d_cache"].cpu()
    with pytest.raises(GuardError, match=r"ReplaySSM inputs must be on the same device\.") as caught:
        compiled_step("inductor")(args)
    assert dict(caught.value.offenders) == {"d_cache": topology.CPU}


@pytest.mark.gpu
def test_caches_left_on_the_cpu_are_refused_for_real() -> None:
    call = Call.valid(spec(DECODE), on=topology.HOME)
    for name in RINGS:
        call.move(name, topology.CPU)
    before = copied(call.args)
    with pytest.raises(GuardError, match=r"ReplaySSM inputs must be on the same device\.") as caught:
        call.run()
    assert call.real
    assert dict(caught.value.offenders) == dict.fromkeys(RINGS, topology.CPU)
    assert all(same_bits(call[name], before[name]) for name in WRITTEN)


@pytest.mark.gpu
def test_the_call_does_not_wait_for_the_device() -> None:
    args = make_step(topology.HOME)
    kernels.helion_fused_recurrent_kda_replayssm_decode(**args)
    torch.cuda.set_sync_debug_mode("error")
    try:
        kernels.helion_fused_recurrent_kda_replayssm_decode(**args)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_slot_times_stride_beyond_31_bits() -> None:
    args = make_step(topology.HOME, batch=2, spare_slots=0, heads=1, value_heads=1, state=torch.bfloat16)
    spread = (1 << 31) + 64
    envelope = torch.zeros(spread + 4096, dtype=torch.bfloat16, device=topology.HOME)
    for i, name in enumerate(("initial_state", "d_cache", "k_cache")):
        old = args[name]
        args[name] = envelope.as_strided(old.shape, (spread, *old.stride()[1:]), 1024 * i)
        args[name].copy_(old)
    assert_close(run_and_compare(args), args)


@pytest.mark.two_gpus
def test_runs_on_the_tensors_device_not_the_current_one() -> None:
    args = make_step(topology.OTHER, heads=8, value_heads=8, K=128, V=128, length=16)
    inside = copied(args)
    with torch.cuda.device(1):
        kernels.helion_fused_recurrent_kda_replayssm_decode(**inside)
    torch.cuda.set_device(0)
    kernels.helion_fused_recurrent_kda_replayssm_decode(**args)
    torch.cuda.synchronize(1)
    assert torch.cuda.current_device() == 0
    assert all(same_bits(args[name], inside[name]) for name in WRITTEN)


@pytest.mark.two_gpus
def test_refusal_between_gpus_restores_the_current_device() -> None:
    call = Call.valid(spec(DECODE), on=topology.HOME)
    call.move("g_cache", topology.OTHER)
    with pytest.raises(GuardError, match=r"ReplaySSM inputs must be on the same device\."):
        call.run()
    assert call.real
    assert torch.cuda.current_device() == 0


@pytest.mark.two_gpus
def test_a_fresh_thread_needs_no_set_device() -> None:
    args = make_step(topology.OTHER, heads=2, value_heads=4)
    want = {name: args[name].to(torch.float64, copy=True) for name in WRITTEN}
    kda_replayssm_decode_reference(**{**args, **want})
    thread = threading.Thread(target=kernels.helion_fused_recurrent_kda_replayssm_decode, kwargs=args)
    thread.start()
    thread.join()
    torch.cuda.synchronize(1)
    assert relative_error(args["out"], want["out"]) < 3e-3
