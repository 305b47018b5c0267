"""How a checked call reaches a device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from compiled import compile_for
from triton.knobs import HookChain
from triton.runtime.errors import InterpreterError

from helpers import topology
from kernels import launch as launch_module
from kernels.launch import launch, needs_dispatch


@triton.jit
def _doubled(value):
    return value * 2 + tl.max(tl.zeros([2], tl.float32), 0)


@triton.jit
def running_sums(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    values = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)
    tl.store(out_ptr + offsets, _doubled(tl.cumsum(values, 0)), mask=offsets < n)


def test_a_kernel_with_helpers_and_library_functions_runs(device: torch.device) -> None:
    x, out = torch.arange(5.0, device=device), torch.full((5,), float("nan"), device=device)
    launch(running_sums, (1,), x, out, 5, device=device, BLOCK=8)
    assert out.tolist() == [0.0, 2.0, 6.0, 12.0, 20.0]


@triton.jit
def count_to(out_ptr, n):
    total = 0
    for i in range(n):
        total += i
    tl.store(out_ptr, total)


def test_a_loop_with_a_bound_from_the_host(device: torch.device) -> None:
    out = torch.zeros(1, dtype=torch.int32, device=device)
    launch(count_to, (1,), out, 5, device=device)
    assert out.item() == 10


def test_interpreting_leaves_the_compiler_as_it_was(interpreted: torch.device) -> None:
    x, out = torch.zeros(4), torch.zeros(4)
    launch(running_sums, (1,), x, out, 4, device=interpreted, BLOCK=4)
    with pytest.raises(RuntimeError, match="outside of the scope of a kernel"):
        _doubled(1.0)
    signature = {"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    assert compile_for("sm_90", running_sums, signature, {"BLOCK": 8}).registers > 0


def test_the_compiler_is_restored_after_an_error_too(interpreted: torch.device) -> None:
    with pytest.raises(InterpreterError):
        launch(running_sums, (1,), torch.zeros(4), "not a tensor", 4, device=interpreted, BLOCK=4)
    with pytest.raises(RuntimeError, match="outside of the scope of a kernel"):
        _doubled(1.0)


class Recorder:
    """Looks like a kernel and notes which device was current when it was launched."""

    def __init__(self) -> None:
        self.current: list[int] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, **options: self.current.append(torch.cuda.current_device())


def test_an_empty_grid_launches_nothing() -> None:
    recorder = Recorder()
    launch(recorder, (0, 3), device=topology.CPU)
    launch(recorder, (3, 0), device=topology.HOME)
    assert recorder.current == []


def test_plain_tensors_skip_the_dispatcher_and_others_do_not() -> None:
    plain = torch.zeros(2)
    assert not needs_dispatch(plain, None, torch.nn.Parameter(plain))
    assert needs_dispatch(plain, topology.stand_in((2,), None, torch.float32, topology.HOME))
    with topology.stand_ins():
        assert needs_dispatch(plain)


class Loaded(torch.nn.Parameter):
    """A subclass as serving engines have them: it knows more, and behaves the same."""


def test_subclasses_that_do_not_dispatch_are_plain() -> None:
    assert not needs_dispatch(Loaded(torch.zeros(2), requires_grad=False), None)


def test_a_transform_of_torch_func_is_dispatched() -> None:
    seen: list[bool] = []

    def noted(x: torch.Tensor) -> torch.Tensor:
        seen.append(needs_dispatch(x))
        return x

    torch.func.functionalize(noted)(torch.zeros(2))
    torch.vmap(noted)(torch.zeros(2))
    assert seen == [True, True]


@triton.jit
def scaled(x_ptr, out_ptr, n, factor, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    values = tl.load(x_ptr + offsets, mask=offsets < n, other=0)
    tl.store(out_ptr + offsets, values * factor, mask=offsets < n)


@pytest.mark.gpu
def test_every_signature_is_compiled_for_what_it_is() -> None:
    # Each of these differs from the ones before in what Triton specialises on; twice, so that the second launch of a
    # signature takes the compiled form.
    base = torch.arange(64, device=topology.HOME)
    for _ in range(2):
        for x in (base, base[1:], base.to(torch.int32), base.to(torch.float32)):
            for n in (1, 2, 16, 33):
                for factor in (1, 2, 16, -5, 2**31, -(2**31), -(2**40)):
                    out = torch.full((64,), -7, dtype=x.dtype, device=x.device)
                    launch(scaled, (1,), x, out, n, factor, device=x.device, BLOCK=64)
                    expected = torch.full_like(out, -7)
                    wide = x[:n].double() if x.is_floating_point() else x[:n].long()
                    expected[:n] = (wide * factor).to(x.dtype)
                    assert torch.equal(out, expected), (x.dtype, x.storage_offset(), n, factor)


@pytest.mark.parametrize(
    ("hook", "heard"), [(None, False), (HookChain(), False), (print, True)], ids=["none", "empty chain", "function"]
)
def test_profilers_are_heard(hook: Any, heard: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.knobs.runtime, "launch_enter_hook", hook)
    monkeypatch.setattr(triton.knobs.runtime, "launch_exit_hook", HookChain())
    assert launch_module._hooks() is heard
    chain = HookChain()
    chain.add(print)
    monkeypatch.setattr(triton.knobs.runtime, "launch_exit_hook", chain)
    assert launch_module._hooks()


@pytest.mark.two_gpus
def test_current_device_is_switched_and_restored() -> None:
    recorder = Recorder()
    torch.cuda.set_device(0)
    launch(recorder, (1,), device=topology.OTHER)
    assert recorder.current == [1]
    assert torch.cuda.current_device() == 0
