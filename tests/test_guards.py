"""The vocabulary of checks: what each predicate accepts, on real tensors and on stand-ins."""

from __future__ import annotations

import threading
from unittest import mock

import pytest
import torch

from helpers import topology
from kernels import guards
from kernels.guards import DeviceError, DtypeTypeError, Guard, GuardError, HardwareError, explain_refusal, interpreter

DEVICE = Guard("test.device", DeviceError, "{argument} must be on {expected}, got {got}")


def fake(*shape: int, device: torch.device = topology.HOME) -> torch.Tensor:
    return topology.stand_in(shape, None, torch.float32, device)


@pytest.mark.parametrize(
    ("error", "base"), [(DeviceError, ValueError), (DtypeTypeError, TypeError), (HardwareError, RuntimeError)]
)
def test_the_family_is_caught_as_the_builtin(error: type[GuardError], base: type[Exception]) -> None:
    assert issubclass(error, base)
    assert issubclass(error, GuardError)


def test_message_is_the_whole_string_and_notes_come_once() -> None:
    error = DEVICE.refuse("src", expected=topology.HOME, got=topology.CPU)
    arguments = {"dst": fake(2), "src": torch.zeros(2), "n": 3}
    explain_refusal(error, "f", arguments)
    explain_refusal(error, "outer", arguments)
    assert str(error) == "src must be on cuda:0, got cpu"
    assert error.function == "f"
    assert error.stand_ins == ("dst",)
    assert len(error.__notes__) == len(set(error.__notes__)) == 3


def test_alias_note_translates_internal_names() -> None:
    error = DEVICE.refuse("lut_tensor", expected=topology.HOME, got=topology.CPU)
    explain_refusal(error, "f", {"a": fake(1), "mapping": torch.zeros(1)}, aliases={"lut_tensor": "mapping"})
    assert error.argument == "mapping"
    assert "name: lut_tensor is the kernel's name for mapping" in error.__notes__


def test_cpu_has_a_vote_only_where_the_kernel_runs_on_it() -> None:
    arguments = {"a": torch.zeros(1), "b": torch.zeros(1), "c": fake(1)}
    for runs_on_cpu, odd in ((False, {"a", "b"}), (True, {"c"})):
        error = DEVICE.refuse("c", expected=topology.CPU, got=topology.HOME)
        explain_refusal(error, "f", arguments, runs_on_cpu=runs_on_cpu)
        assert set(error.offenders) == odd
    error = DEVICE.refuse("c", expected=topology.CPU, got=topology.HOME)
    with interpreter():
        explain_refusal(error, "f", arguments)
    assert set(error.offenders) == {"c"}
    assert error.fix == "c = c.to(a.device)"


@pytest.mark.parametrize(
    ("shape", "stride", "packed"),
    [
        ((2, 3, 4, 5), (99, 20, 5, 1), True),
        ((2, 3, 4, 5), (60, 20, 1, 4), False),
        ((2, 3, 1, 5), (60, 20, 77, 1), True),
        ((2, 3, 0, 5), (15, 5, 5, 1), True),
        ((2, 3, 4, 0), (12, 4, 1, 1), True),
        ((2, 3, 4, 1), (12, 4, 1, 99), True),
        ((2, 3), (1, 2), True),
    ],
)
def test_packed_from_the_third_dim(shape: tuple[int, ...], stride: tuple[int, ...], packed: bool) -> None:
    assert guards.packed_from(topology.stand_in(shape, stride, torch.float32, topology.HOME), 2) is packed


@pytest.mark.parametrize("make", [torch.zeros, fake], ids=["real", "stand-in"])
def test_overlap_is_about_memory_not_start_addresses(make: object) -> None:
    base = make(100)  # type: ignore[operator]
    first, second, third = base.narrow(0, 0, 60), base.narrow(0, 59, 10), base.narrow(0, 60, 40)
    assert guards.overlap(first, second)
    assert guards.overlap(second, third)
    assert not guards.overlap(first, third)
    assert not guards.overlap(first, make(100))  # type: ignore[operator]
    assert not guards.overlap(base.narrow(0, 5, 0), base)


def test_device_without_index_is_the_current_one_not_the_first() -> None:
    with (
        mock.patch("torch.cuda.is_available", return_value=True),
        mock.patch("torch.cuda.current_device", return_value=1),
    ):
        assert guards.resolve_device("cuda") == torch.device("cuda", 1)
    assert guards.resolve_device("cuda:0") == guards.resolve_device(torch.device("cuda", 0)) == torch.device("cuda", 0)
    assert guards.resolve_device("cpu") == torch.device("cpu")


def test_interpreter_belongs_to_the_thread_that_opted_in() -> None:
    seen: list[bool] = []
    with interpreter():
        thread = threading.Thread(target=lambda: seen.append(guards.interpreting()))
        thread.start()
        thread.join()
        assert guards.interpreting()
    assert seen == [False]
    assert not guards.interpreting()


@pytest.mark.parametrize(("variable", "default"), [("1", True), ("0", False), ("", False)])
def test_interpreter_has_the_last_word_over_the_environment(
    monkeypatch: pytest.MonkeyPatch, variable: str, default: bool
) -> None:
    monkeypatch.setenv(guards.INTERPRETER_VARIABLE, variable)
    assert guards.interpreting() is default
    with interpreter(on=False):
        assert not guards.interpreting()
        with interpreter():
            assert guards.interpreting()
        assert not guards.interpreting()
    assert guards.interpreting() is default


def test_bool_is_no_integer() -> None:
    assert guards.is_integer(torch.uint8)
    assert not any(guards.is_integer(dtype) for dtype in (torch.bool, torch.float16, torch.complex64))


@pytest.mark.parametrize("device", [topology.HOME, topology.OTHER, topology.CPU], ids=str)
def test_place_keeps_strides_gaps_and_overlap(device: torch.device) -> None:
    gaps = torch.arange(40.0).as_strided((2, 3), (20, 2))
    windows = torch.arange(10.0).as_strided((4, 3), (1, 1))
    for tensor in (gaps, windows, torch.zeros(0, 3)):
        moved = topology.place(tensor, device)
        assert (moved.shape, moved.stride(), moved.device) == (tensor.shape, tensor.stride(), device)
        if not topology.is_stand_in(moved):
            assert torch.equal(moved.cpu(), tensor)
        assert topology.is_stand_in(moved) is not topology.exists(device)
