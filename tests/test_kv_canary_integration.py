"""The canary plan inside PyTorch: custom ops, FakeTensors, torch.compile, CUDA graphs, devices and threads."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from kv_canary_batches import assert_plan, copied, outputs, plans, serving_batch

import kernels
from helpers import topology
from helpers.atlas import spec
from helpers.calls import Call, same_bits, snapshot
from kernels.guards import DeviceError, GuardError
from kernels.kv_canary import api
from kernels.kv_canary.reference import plan_in_torch

PLAN = "launch_canary_plan_kernels"
SCATTER = "launch_scatter_req_token_ids_kernel"
BOTH = pytest.mark.parametrize("function", [PLAN, SCATTER])
INPUTS = ("req_pool_indices", "prefix_lens", "extend_seq_lens", "req_to_token", "full_to_swa_index_mapping")


def same(call: Call, want: dict[str, torch.Tensor]) -> bool:
    return all(same_bits(call[name], want[name]) for name in call.spec.outputs)


def flat(call: Call) -> tuple[Any, ...]:
    """The arguments as the custom op takes them."""
    if call.spec.function == SCATTER:
        return tuple(call.args.values())
    return (*api._flat(call.args).values(), *(call.args[name] for name in api._NUMBERS))


@BOTH
def test_opcheck(function: str, device: torch.device) -> None:
    op = api._plan_op if function == PLAN else api._scatter_op
    torch.library.opcheck(op, flat(Call.valid(spec(function), on=device)))


def test_opcheck_without_mapping_and_tokens(device: torch.device) -> None:
    call = Call.valid(spec(PLAN), on=device)
    tokens = ("req_to_verify_expected_tokens", "req_to_verify_expected_tokens_valid_lens")
    call.args |= dict.fromkeys(("full_to_swa_index_mapping", *tokens)) | {"swa_window_size": 0}
    torch.library.opcheck(api._plan_op, flat(call))


@BOTH
@pytest.mark.parametrize("index", [0, 1])
def test_stand_ins_pass_like_real_tensors(function: str, index: int) -> None:
    call = Call.valid(spec(function), on=topology.CPU)
    for name, tensor in call.tensors.items():
        call[name] = topology.stand_in(tensor.shape, tensor.stride(), tensor.dtype, torch.device("cuda", index))
    assert call.run() is None


def test_fake_mode_allocates_and_plans() -> None:
    with topology.stand_ins():
        device = torch.device("cuda", 1)
        lens = torch.ones(3, dtype=torch.int64, device=device)
        verify = kernels.VerifyPlan.allocate(verify_capacity=9, device=device)
        kernels.launch_canary_plan_kernels(
            verify_plan_out=verify,
            write_plan_out=kernels.WritePlan.allocate(write_req_capacity=4, device=device),
            req_pool_indices=lens,
            prefix_lens=lens,
            extend_seq_lens=lens,
            req_to_token=torch.zeros(5, 6, dtype=torch.int32, device=device),
            swa_window_size=0,
            full_to_swa_index_mapping=None,
            verify_capacity=9,
            req_to_verify_expected_tokens=None,
            req_to_verify_expected_tokens_valid_lens=None,
            kv_token_id_vs_position_offset=0,
        )
    assert (verify.enable.shape, verify.enable.dtype, verify.enable.device) == ((1,), torch.int32, device)


@BOTH
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.gpu)])
def test_compiled_call_equals_the_reference(function: str, backend: str, device: torch.device) -> None:
    call = Call.valid(spec(function), on=device)
    want, first = call.spec.expected(call.args), call.spec.outputs[0]

    @torch.compile(fullgraph=True, backend=backend)
    def step(args: dict[str, Any], written: torch.Tensor) -> torch.Tensor:
        getattr(kernels, function)(**args)
        return written + 1

    assert same_bits(step(call.args, call[first]), want[first] + 1)
    assert same(call, want)


def test_plans_allocated_inside_a_compiled_step(device: torch.device) -> None:
    call = Call.valid(spec(PLAN), on=device)
    want = call.spec.expected(call.args)
    inputs = {name: value for name, value in call.args.items() if not name.endswith("_plan_out")}

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        lens = inputs["prefix_lens"]
        verify = kernels.VerifyPlan.allocate(verify_capacity=32, device=lens.device)
        write = kernels.WritePlan.allocate(write_req_capacity=6, device=lens.device)
        kernels.launch_canary_plan_kernels(verify_plan_out=verify, write_plan_out=write, **inputs)
        return verify.verify_num_valid, write.write_offsets

    total, offsets = step(inputs)
    assert same_bits(total, want["verify_plan_out.verify_num_valid"])
    assert same_bits(offsets, want["write_plan_out.write_offsets"])


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.gpu)])
def test_compiled_mismatch_raises_the_guards_own_error(backend: str, device: torch.device) -> None:
    call = Call.valid(spec(PLAN), on=device)
    call["extend_seq_lens"] = call["extend_seq_lens"][:2]
    before = snapshot(call.tensors)

    @torch.compile(fullgraph=True, backend=backend)
    def step(args: dict[str, Any]) -> None:
        kernels.launch_canary_plan_kernels(**args)

    with pytest.raises(GuardError) as caught:
        step(call.args)
    assert str(caught.value) == "kv-canary: extend_seq_lens length must be 4, got 2"
    assert caught.value.function == PLAN
    assert all(same_bits(tensor, call[name]) for name, tensor in before.items())


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_device_mix_names_the_argument(backend: str) -> None:
    call = Call.valid(spec(PLAN), on=topology.HOME)
    call.move("req_pool_indices", topology.CPU)

    @torch.compile(fullgraph=True, backend=backend)
    def step(args: dict[str, Any]) -> None:
        kernels.launch_canary_plan_kernels(**args)

    with pytest.raises(DeviceError) as caught:
        step(call.args)
    message = "kv-canary: req_pool_indices must be on out_verify_offsets_scratch's device cuda:0, got cpu"
    assert str(caught.value) == message


def assert_like_plain_pytorch(args: dict[str, Any]) -> None:
    other = copied(args)
    kernels.launch_canary_plan_kernels(**args)
    plan_in_torch(**other)
    assert_plan(args, outputs(other))


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("window", [0, 512])
@pytest.mark.parametrize("bs", [1, 2, 16, 17, 64, 256, 257, 512, 1000, 1024, 1025, 4096])
def test_serving_shapes(bs: int, window: int, tokens: bool) -> None:
    assert_like_plain_pytorch(serving_batch(bs, topology.HOME, window=window, tokens=tokens, seed=bs))


@pytest.mark.gpu
@pytest.mark.parametrize("bs", [1, 7, 300])
def test_long_contexts(bs: int) -> None:
    assert_like_plain_pytorch(serving_batch(bs, topology.HOME, max_len=32768, tokens=True))


@pytest.mark.gpu
@pytest.mark.parametrize("bs", [64, 4096])
@pytest.mark.parametrize("length", [0, 1, 2, 15, 16, 17])
def test_short_contexts(bs: int, length: int) -> None:
    lens = torch.full((bs,), length)
    assert_like_plain_pytorch(serving_batch(bs, topology.HOME, max_len=32, tokens=True, lens=lens))


@pytest.mark.gpu
def test_one_long_request_among_thousands_of_padding() -> None:
    lens = torch.zeros(4096, dtype=torch.int64)
    lens[[0, 1, 2048, 4095]] = torch.tensor([1, 2048, 777, 2048])
    assert_like_plain_pytorch(serving_batch(4096, topology.HOME, tokens=True, lens=lens))


@pytest.mark.gpu
@pytest.mark.parametrize("bs", [4, 64, 4096])
def test_plan_that_does_not_fit_writes_no_entry(bs: int) -> None:
    args = serving_batch(bs, topology.HOME, tokens=True)
    total = int(torch.where(args["req_pool_indices"] > 0, args["prefix_lens"], 0).sum())
    for capacity, enabled in ((total, 1), (total - 1, 0)):
        args |= plans(capacity, bs + 8, topology.HOME) | {"verify_capacity": capacity}
        assert_like_plain_pytorch(args)
        assert args["verify_plan_out"].enable.tolist() == [enabled]


@pytest.mark.gpu
def test_unaligned_plans_and_inputs() -> None:
    args = serving_batch(300, topology.HOME, window=512, tokens=True)
    for name in ("verify_plan_out", "write_plan_out"):
        args[name] = type(args[name])(**{k: _shifted(v) for k, v in vars(args[name]).items()})
    for name in INPUTS:
        args[name] = _shifted(args[name])
    other = copied(args)
    kernels.launch_canary_plan_kernels(**args)
    plan_in_torch(**other)
    for name, tensor in outputs(args).items():
        assert same_bits(tensor, outputs(other)[name])


def _shifted(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy that starts one element past an aligned address."""
    room = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
    return room.narrow(0, 1, tensor.numel()).view(tensor.shape).copy_(tensor)


@pytest.mark.gpu
def test_tables_beyond_31_bits_of_elements() -> None:
    device, width = topology.HOME, (1 << 29) + 48
    args = serving_batch(4, device, tokens=True, max_len=32)
    table = torch.empty(5, width, dtype=torch.int32, device=device)
    table[:, :8] = torch.arange(40, dtype=torch.int32, device=device).view(5, 8)
    args["req_to_token"] = args["req_to_verify_expected_tokens"] = table
    args["req_pool_indices"] = torch.tensor([4, 0, 1, 4], device=device)
    args["prefix_lens"] = torch.tensor([7, 7, 5, 3], device=device)
    args["req_to_verify_expected_tokens_valid_lens"] = torch.tensor([8, 8, 2, 3], device=device)
    kernels.launch_canary_plan_kernels(**args)
    verify, write = args["verify_plan_out"], args["write_plan_out"]
    slots = [*range(32, 39), *range(8, 13), *range(32, 35)]
    assert verify.verify_slot_indices[:15].tolist() == slots
    assert verify.verify_expected_tokens[:15].tolist() == [*slots[:9], -1, -1, -1, *slots[12:]]
    assert write.write_seed_slot_indices[:4].tolist() == [38, -1, 12, 34]


@pytest.mark.gpu
@BOTH
def test_graph_capture_and_replay_with_refilled_inputs(function: str) -> None:
    call = Call.valid(spec(function), on=topology.HOME)
    call.run()  # the documented warm-up: compiles the kernel outside the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call.run()
    for seed in (1, 2, 3):
        fresh = Call.valid(spec(function), on=topology.HOME, seed=seed)
        for name, tensor in fresh.tensors.items():
            call[name].copy_(tensor)
        want = call.spec.expected(call.args)
        graph.replay()
        assert same(call, want)


@pytest.mark.gpu
def test_graph_of_a_serving_batch_follows_its_inputs() -> None:
    args = serving_batch(64, topology.HOME, window=512, tokens=True)
    kernels.launch_canary_plan_kernels(**args)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.launch_canary_plan_kernels(**args)
    for seed in (1, 2):
        fresh = serving_batch(64, topology.HOME, window=512, tokens=True, seed=seed)
        other = copied(fresh)
        for name in (*INPUTS, "req_to_verify_expected_tokens", "req_to_verify_expected_tokens_valid_lens"):
            args[name].copy_(fresh[name])
        for tensor in outputs(args).values():
            tensor.fill_(-77)
        graph.replay()
        plan_in_torch(**other)
        assert_plan(args, outputs(other))


@pytest.mark.gpu
@BOTH
def test_the_call_does_not_wait_for_the_device(function: str) -> None:
    call = Call.valid(spec(function), on=topology.HOME)
    call.run()
    with torch.cuda.device(0):
        torch.cuda.set_sync_debug_mode("error")
        try:
            call.run()
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_plan_is_a_single_launch() -> None:
    args = serving_batch(64, topology.HOME, window=512, tokens=True)
    kernels.launch_canary_plan_kernels(**args)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        kernels.launch_canary_plan_kernels(**args)
        torch.cuda.synchronize()
    on_gpu = [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    assert [name for name in on_gpu if "kernel" in name or "Mem" in name] == ["plan_kernel"]


@pytest.mark.two_gpus
@BOTH
def test_runs_on_the_tensors_device_not_the_current_one(function: str) -> None:
    with torch.cuda.device(1):
        inside = Call.valid(spec(function), on=topology.OTHER)
        inside.run()
    torch.cuda.set_device(0)
    outside = Call.valid(spec(function), on=topology.OTHER)
    outside.run()
    torch.cuda.synchronize(1)
    assert torch.cuda.current_device() == 0
    assert same(outside, inside.written())


@pytest.mark.two_gpus
def test_refusal_between_gpus_changes_nothing_and_restores_the_current_device() -> None:
    call = Call.valid(spec(PLAN), on=topology.HOME)
    call.move("req_to_token", topology.OTHER)
    before = snapshot(call.tensors)
    with pytest.raises(DeviceError, match="device cuda:0, got cuda:1"):
        call.run()
    assert torch.cuda.current_device() == 0
    assert all(same_bits(tensor, call[name]) for name, tensor in before.items())


@pytest.mark.two_gpus
@BOTH
def test_a_fresh_thread_needs_no_set_device(function: str) -> None:
    call = Call.valid(spec(function), on=topology.OTHER)
    want = call.spec.expected(call.args)
    thread = threading.Thread(target=call.run)
    thread.start()
    thread.join()
    torch.cuda.synchronize(1)
    assert same(call, want)
