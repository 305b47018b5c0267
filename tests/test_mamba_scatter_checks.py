"""The state scatter refuses what it must, in order, in the agreed words, and touches nothing when it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import kernels
from helpers import topology
from helpers.atlas import records, spec
from helpers.calls import Call, same_bits, snapshot
from kernels.guards import DeviceError, GuardError
from kernels.mamba_scatter import api

FUNCTIONS = (
    "fused_mamba_state_scatter_with_mask",
    "fused_conv_window_scatter_with_mask",
    "scatter_mamba_states_after_mtp_verify",
)


@pytest.fixture
def no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    def launched(*args: Any, **kwargs: Any) -> None:
        pytest.fail("a refused call launched a kernel")

    monkeypatch.setattr(api, "launch", launched)


def refused(call: Call) -> GuardError:
    with pytest.raises(GuardError) as caught:
        call.run()
    return caught.value


@pytest.mark.usefixtures("no_launch")
@pytest.mark.parametrize("id", [r.id for r in records().values() if r.function in FUNCTIONS])
def test_refusal_names_the_guard_and_launches_nothing(id: str) -> None:
    entry = records()[id]
    call = Call.valid(spec(entry.function))
    entry.provoke(call)
    before = snapshot(call.tensors)
    error = refused(call)
    assert str(error) == entry.example
    assert isinstance(error, ValueError)
    assert (error.guard, error.function) == (entry.guard, entry.function)
    assert all(same_bits(tensor, call[name]) for name, tensor in before.items())


# All faults at once; mending them one by one must bring up the guards in this order.
STATE_ORDER: list[tuple[str, Callable[[Call], None]]] = [
    ("mamba_scatter.state.device", lambda c: c.move("src", c.cpu)),
    ("mamba_scatter.state.cuda", lambda c: (c.move("dst", c.home), c.move("src", c.home))),
    ("mamba_scatter.state.rank", lambda c: c.__setitem__("src", big(2, 8, 3, 4, 5).transpose(-1, -2))),
    ("mamba_scatter.state.layers", lambda c: c.__setitem__("dst", strided_pool(2, (2, 5)))),
    ("mamba_scatter.state.trailing", lambda c: c.__setitem__("dst", strided_pool(2, (5, 4)))),
    ("mamba_scatter.index.rank", lambda c: c.__setitem__("dst_indices_raw", torch.zeros(3))),
    ("mamba_scatter.index.length", lambda c: c.__setitem__("dst_indices_raw", torch.zeros(9))),
    ("mamba_scatter.state.packed", lambda c: c.__setitem__("dst", big(2, 6, 5, 4))),
    ("mamba_scatter.state.src_contiguous", lambda c: c.__setitem__("src", big(2, 8, 3, 5, 4))),
    ("mamba_scatter.index.device", lambda c: c.move("dst_indices_raw", c.home)),
    ("mamba_scatter.index.device", lambda c: c.move("step_indices_raw", c.home)),
    ("mamba_scatter.index.dtype", lambda c: c.__setitem__("dst_indices_raw", c["dst_indices_raw"].to(torch.int32))),
    ("mamba_scatter.index.dtype", lambda c: c.__setitem__("step_indices_raw", c["step_indices_raw"].to(torch.uint8))),
    ("mamba_scatter.index.requests", lambda c: c.__setitem__("src", big(2, 9, 3, 5, 4))),
]


def big(*shape: int) -> torch.Tensor:
    return topology.stand_in(shape, None, torch.float32, topology.HOME)


def strided_pool(layers: int, state: tuple[int, int]) -> torch.Tensor:
    rows, columns = state
    size = rows * columns
    return topology.stand_in((layers, 6, *state), (6 * size, size, 1, rows), torch.float32, topology.HOME)


@pytest.mark.usefixtures("no_launch")
def test_state_checks_come_in_order() -> None:
    call = Call.valid(spec("fused_mamba_state_scatter_with_mask"), on=topology.CPU)
    call.args |= {
        "dst": torch.zeros(3, 6, 2, 5),
        "src": topology.stand_in((2,), None, torch.float32, topology.HOME),
        "dst_indices_raw": torch.zeros(3, 1),
        "step_indices_raw": torch.zeros(9),
    }
    for guard, mend in STATE_ORDER:
        assert refused(call).guard == guard
        mend(call)
    # Every fault is mended: on stand-ins the call goes through to the op's fake implementation.
    call.run()


def test_conv_checks_come_in_order() -> None:
    call = Call.valid(spec("fused_conv_window_scatter_with_mask"))
    pool, windows = call["dst"], call["src"]
    call["dst"] = pool.transpose(2, 3).narrow(0, 0, 1).flatten(1)
    call["dst_indices_raw"] = torch.zeros(3, 1)
    call["step_indices_raw"] = torch.zeros(5, dtype=torch.bool)
    call.move("src", call.other)
    steps = [
        ("mamba_scatter.conv.device", "src", windows),
        ("mamba_scatter.conv.rank", "dst", pool.transpose(2, 3).narrow(0, 0, 1)),
        ("mamba_scatter.conv.layers", "dst", pool.transpose(2, 3)),
        ("mamba_scatter.conv.window", "dst", topology.stand_in((2, 6, 4, 3), (72, 12, 1, 4), pool.dtype, call.home)),
        ("mamba_scatter.index.rank", "dst_indices_raw", torch.zeros(3)),
        ("mamba_scatter.index.length", "dst_indices_raw", torch.zeros(5)),
        ("mamba_scatter.conv.packed", "dst", pool),
        ("mamba_scatter.index.device", "dst_indices_raw", big(5)),
        ("mamba_scatter.index.device", "step_indices_raw", big(5).to(torch.bool)),
        ("mamba_scatter.index.dtype", "dst_indices_raw", big(5).to(torch.int16)),
        ("mamba_scatter.index.dtype", "step_indices_raw", big(5).to(torch.int16)),
    ]
    for guard, name, mended in steps:
        assert refused(call).guard == guard
        call[name] = mended
    assert refused(call).guard == "mamba_scatter.index.requests"


def test_no_requests_returns_before_any_check() -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    kernels.fused_mamba_state_scatter_with_mask(torch.zeros(1), torch.zeros(2, 2), nothing, nothing)
    kernels.fused_conv_window_scatter_with_mask(torch.zeros(1), torch.zeros(2, 2), nothing, nothing)


def test_zero_dimensional_indices_are_refused_not_crashed_on() -> None:
    call = Call.valid(spec("fused_mamba_state_scatter_with_mask"))
    call["step_indices_raw"] = torch.tensor(1)
    assert refused(call).guard == "mamba_scatter.index.rank"


def test_ordinary_empty_pool_is_accepted() -> None:
    # Strides of an empty tensor: PyTorch counts an empty dim as one, and so does the guard.
    call = Call.valid(spec("fused_mamba_state_scatter_with_mask"))
    call["dst"], call["src"] = big(2, 6, 0, 5), big(2, 4, 3, 0, 5)
    call.run()


def test_notes_name_every_misplaced_tensor() -> None:
    call = Call.valid(spec("fused_mamba_state_scatter_with_mask"))
    call.move("dst_indices_raw", call.cpu)
    call.move("src", call.other)
    error = refused(call)
    assert dict(error.offenders) == {"src": call.other, "dst_indices_raw": call.cpu}
    assert error.__notes__ == [
        "odd one out: src on cuda:1, dst_indices_raw on cpu; the other 2 on cuda:0",
        "placement: dst cuda:0, src cuda:1, dst_indices_raw cpu, step_indices_raw cuda:0",
        "fix: src = src.to(dst.device); dst_indices_raw = dst_indices_raw.to(dst.device)",
    ]


def test_note_says_when_the_reference_is_the_misplaced_one() -> None:
    call = Call.valid(spec("fused_mamba_state_scatter_with_mask"))
    call.move("dst", call.other)
    error = refused(call)
    assert isinstance(error, DeviceError)
    assert error.argument == "src"
    assert dict(error.offenders) == {"dst": call.other}
    assert any("measures against a misplaced tensor" in note for note in error.__notes__)
    # Not moved: the kernel would write into the copy.
    assert error.fix == "allocate dst with device=src.device"


def test_a_refusal_deep_in_a_cache_leaves_every_pool_as_it_was(device: torch.device) -> None:
    call = Call.valid(spec("scatter_mamba_states_after_mtp_verify"), on=device)
    # The very last scatter of the call is the faulty one.
    call["mamba_steps_to_track"] = call["mamba_steps_to_track"].to(torch.float32)
    before = snapshot(call.tensors)
    assert refused(call).guard == "mamba_scatter.index.dtype"
    assert all(same_bits(tensor, call[name]) for name, tensor in before.items())


def test_cpu_tensors_are_refused_without_the_interpreter() -> None:
    call = Call.valid(spec("fused_mamba_state_scatter_with_mask"), on=topology.CPU)
    assert str(refused(call)) == "fused_mamba_state_scatter_with_mask only supports CUDA tensors."


def test_environment_variable_opts_in_to_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Call.valid(spec("fused_mamba_state_scatter_with_mask"), on=topology.CPU)
    expected = call.spec.expected(call.args)
    monkeypatch.setenv("DEVICE_GUARDS_INTERPRET", "1")
    call.run()
    assert same_bits(call["dst"], expected["dst"])
