"""The ReplaySSM decode refuses what it must, in order, in the agreed words, and touches nothing when it does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import kernels
from helpers import topology
from helpers.atlas import records, spec
from helpers.calls import Call, same_bits, snapshot
from kernels.guards import DeviceError, GuardError
from kernels.kda_replayssm import api

DECODE = "helion_fused_recurrent_kda_replayssm_decode"
TENSORS = [
    "mixed_qkv",
    "a",
    "b",
    "A_log",
    "dt_bias",
    "initial_state",
    "d_cache",
    "k_cache",
    "g_cache",
    "out",
    "ssm_state_indices",
    "write_pos",
    "force_flush",
]


@pytest.fixture
def no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    def launched(*args: Any, **kwargs: Any) -> None:
        pytest.fail("a refused call launched a kernel")

    monkeypatch.setattr(api, "launch", launched)


def refused(call: Call) -> GuardError:
    with pytest.raises(GuardError) as caught:
        call.run()
    return caught.value


def accepted(call: Call) -> None:
    """On stand-ins an accepted call ends in the op's fake implementation."""
    out, state = call.run()
    assert out is call["out"]
    assert state is call["initial_state"]


def tensor(*shape: int, stride: tuple[int, ...] | None = None, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return topology.stand_in(shape, stride, dtype, topology.HOME)


def here(*shape: int, stride: tuple[int, ...] | None = None, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return topology.stand_in(shape, stride, dtype, topology.CPU)


def test_both_names_are_one_function() -> None:
    assert kernels.fused_recurrent_kda_replayssm_decode is kernels.helion_fused_recurrent_kda_replayssm_decode


@pytest.mark.usefixtures("no_launch")
@pytest.mark.parametrize("id", [r.id for r in records().values() if r.function == DECODE])
def test_refusal_names_the_guard_and_launches_nothing(id: str) -> None:
    entry = records()[id]
    call = Call.valid(spec(DECODE))
    entry.provoke(call)
    before = snapshot(call.tensors)
    error = refused(call)
    assert str(error) == entry.example
    assert isinstance(error, ValueError)
    assert (error.guard, error.function) == (entry.guard, DECODE)
    assert all(same_bits(value, call[name]) for name, value in before.items())


@pytest.mark.usefixtures("no_launch")
@pytest.mark.parametrize("id", [r.id for r in records().values() if r.function == DECODE and r.error != "DeviceError"])
def test_refusal_changes_no_real_tensor(id: str, device: torch.device) -> None:
    call = Call.valid(spec(DECODE), on=device)
    records()[id].provoke(call)
    before = snapshot(call.tensors)
    assert len(before) == len(call.tensors)
    assert refused(call).guard == records()[id].guard
    assert all(same_bits(value, call[name]) for name, value in before.items())


I8, I32, I64, BF16 = torch.int8, torch.int32, torch.int64, torch.bfloat16

# Every fault at once: all tensors that agree are on the CPU, the misplaced ones on cuda:0 (so that the refusal of CPU
# tensors has its place in the order too).
ALL_FAULTS: dict[str, torch.Tensor] = {
    "mixed_qkv": here(5, 1, 64),
    "a": here(5, 1, 2, 16),
    "b": tensor(4, 2, 1),
    "A_log": tensor(2, 1),
    "dt_bias": here(1, 2, 16),
    "initial_state": tensor(6, 32, 12, stride=(384, 1, 32)),
    "d_cache": tensor(5, 2, 0, 16, dtype=I8),
    "k_cache": tensor(5, 2, 4, 16, dtype=I8),
    "g_cache": tensor(5, 2, 4, 1, dtype=BF16),
    "out": tensor(5, 2, 16, stride=(32, 1, 2)),
    "ssm_state_indices": tensor(4, 1),
    "write_pos": tensor(4, dtype=I64),
    "force_flush": tensor(5, dtype=I64),
}
ELSEWHERE = "All inputs must be on the same device."
RING_ELSEWHERE = "ReplaySSM inputs must be on the same device."
# What is refused with all the faults that are left, and the argument and the value that mend it.
IN_ORDER: list[tuple[str, str, torch.Tensor]] = [
    ("KDA `a` must be a contiguous 2D or 3D tensor.", "a", tensor(4, 1, stride=(1, 7))),
    ("KDA `dt_bias` must be a contiguous 1D or 2D tensor.", "dt_bias", tensor(1, stride=(7,))),
    ("`mixed_qkv` must be a 2D tensor (got ndim=3).", "mixed_qkv", here(5, 32, stride=(1, 5))),
    ("`mixed_qkv` must be contiguous in the last dim.", "mixed_qkv", here(5, 32)),
    ("`a` and `b` must be 2D tensors (got a.ndim=2, b.ndim=3).", "b", tensor(4, 2, stride=(1, 4))),
    ("`a`/`b` must be contiguous in the last dim.", "a", tensor(4, 2, 16)),
    ("`a`/`b` must be contiguous in the last dim.", "b", tensor(4, 2)),
    ("`A_log`/`dt_bias` must be 1D tensors.", "A_log", tensor(1, stride=(3,))),
    ("`A_log`/`dt_bias` must be contiguous.", "A_log", tensor(1)),
    ("`A_log`/`dt_bias` must be contiguous.", "dt_bias", tensor(1, 16)),
    ("`ssm_state_indices` must be 1D for packed decode (got ndim=2).", "ssm_state_indices", tensor(4)),
    ("`out` must be contiguous.", "out", tensor(5, 2, 16)),
    (ELSEWHERE, "a", here(4, 2, 16)),
    (ELSEWHERE, "b", here(4, 2)),
    (ELSEWHERE, "A_log", here(1)),
    (ELSEWHERE, "dt_bias", here(1, 16)),
    (ELSEWHERE, "initial_state", here(6, 32, 12, stride=(384, 1, 32))),
    (ELSEWHERE, "out", here(5, 2, 16)),
    (ELSEWHERE, "ssm_state_indices", here(4)),
    ("Mismatched batch sizes: mixed_qkv.shape[0]=5, a.shape[0]=4, b.shape[0]=4.", "a", here(5, 1, 16)),
    ("Mismatched batch sizes: mixed_qkv.shape[0]=5, a.shape[0]=5, b.shape[0]=4.", "b", here(5, 1)),
    (
        "`ssm_state_indices` must have shape [B] (got (4,); expected (5,)).",
        "ssm_state_indices",
        here(5),
    ),
    (
        "`initial_state` must be a 4D tensor (got ndim=3).",
        "initial_state",
        here(6, 2, 16, 12, stride=(384, 192, 1, 16)),
    ),
    ("`initial_state` must be contiguous in the last dim.", "initial_state", here(6, 2, 24, 12)),
    (
        "Helion KDA decode requires power-of-two key and value head dimensions (got K=12, V=24).",
        "initial_state",
        here(6, 2, 16, 16),
    ),
    ("`a` must have shape [B, HV*K] with HV=2, K=16 (got a.shape=(5, 16)).", "a", here(5, 32)),
    ("`b` must have shape [B, HV] with HV=2 (got b.shape=(5, 1)).", "b", here(5, 2)),
    ("`A_log` must have 2 elements (got 1).", "A_log", here(2)),
    ("`dt_bias` must have 32 elements (got 16).", "dt_bias", here(32)),
    ("`out` must have shape (5, 1, 2, 16) (got out.shape=(5, 2, 16)).", "out", here(5, 1, 2, 16)),
    ("Invalid packed `mixed_qkv` last dim=32 for HV=2, V=16.", "mixed_qkv", here(5, 49)),
    ("Invalid packed `mixed_qkv` last dim=49 for HV=2, V=16.", "mixed_qkv", here(5, 50)),
    (
        "Invalid packed Q size 9: must be divisible by K=16. "
        "KDA packed decode requires num_q_heads == num_k_heads and head_q_dim == head_k_dim.",
        "mixed_qkv",
        here(5, 128),
    ),
    ("Invalid head config inferred from mixed_qkv: H=3, HV=2.", "mixed_qkv", here(5, 64)),
    ("`write_pos` must be a 1D int32 tensor.", "write_pos", tensor(4, dtype=I32)),
    ("`write_pos` must have shape (5,).", "write_pos", tensor(5, dtype=I32)),
    ("`force_flush` must be a length-B int32 tensor or None.", "force_flush", tensor(5, dtype=I32)),
    ("ReplaySSM cache length must be at least 1.", "d_cache", tensor(5, 16, 4, 2, dtype=I8)),
    ("`d_cache` must have shape [slots, HV, L, V].", "d_cache", tensor(5, 2, 4, 16, dtype=I8)),
    ("`k_cache` must have shape [slots, H, L, K].", "k_cache", tensor(5, 1, 4, 16, dtype=I8)),
    ("`g_cache` must have shape [slots, HV, L, K].", "g_cache", tensor(5, 2, 4, 16, dtype=BF16)),
    ("`g_cache` must have dtype torch.float32.", "g_cache", tensor(5, 2, 4, 16)),
    (RING_ELSEWHERE, "d_cache", here(5, 2, 4, 16, dtype=I8)),
    (RING_ELSEWHERE, "k_cache", here(5, 1, 4, 16, dtype=I8)),
    (RING_ELSEWHERE, "g_cache", here(5, 2, 4, 16)),
    (RING_ELSEWHERE, "write_pos", here(5, dtype=I32)),
    ("`force_flush` must be on the same device as the inputs.", "force_flush", here(5, dtype=I32)),
]
THEN_ON_THE_GPU: list[tuple[str, str, torch.Tensor]] = [
    ("`d_cache` must have 6 slots like `initial_state` (got 5).", "d_cache", tensor(6, 2, 4, 16, dtype=I8)),
    ("`k_cache` must have 6 slots like `initial_state` (got 5).", "k_cache", tensor(6, 1, 4, 16, dtype=I8)),
    ("`g_cache` must have 6 slots like `initial_state` (got 5).", "g_cache", tensor(6, 2, 4, 16)),
    (
        "`ssm_state_indices` must have an integer dtype, got torch.float32.",
        "ssm_state_indices",
        tensor(5, dtype=torch.bool),
    ),
    (
        "`ssm_state_indices` must have an integer dtype, got torch.bool.",
        "ssm_state_indices",
        tensor(5, dtype=torch.uint8),
    ),
    ("`d_cache` must have a floating dtype, got torch.int8.", "d_cache", tensor(6, 2, 4, 16, dtype=BF16)),
    ("`k_cache` must have a floating dtype, got torch.int8.", "k_cache", tensor(6, 1, 4, 16, dtype=BF16)),
]


@pytest.mark.usefixtures("no_launch")
def test_checks_come_in_order() -> None:
    call = Call.valid(spec(DECODE))
    call.args |= ALL_FAULTS
    for message, name, mended in IN_ORDER:
        assert str(refused(call)) == message
        call[name] = mended
    assert str(refused(call)) == "ReplaySSM decode only supports CUDA tensors."
    call.move_all(topology.HOME)
    for message, name, mended in THEN_ON_THE_GPU:
        assert str(refused(call)) == message
        call[name] = mended
    accepted(call)


@pytest.mark.parametrize("shape", [(10, 16), (5, 32), (1, 160), (2, 5, 16), (160, 1)], ids=str)
def test_a_is_flattened_to_the_batch_whatever_its_own_shape(shape: tuple[int, ...]) -> None:
    call = Call.valid(spec(DECODE))
    call["a"] = tensor(*shape)
    accepted(call)


def test_an_a_that_the_batch_does_not_divide_shows_its_own_rows() -> None:
    call = Call.valid(spec(DECODE))
    call["a"] = tensor(7, 2, 16)
    assert str(refused(call)) == "Mismatched batch sizes: mixed_qkv.shape[0]=5, a.shape[0]=7, b.shape[0]=5."


def empty_batch() -> Call:
    call = Call.valid(spec(DECODE))
    for name in ("mixed_qkv", "a", "b", "out", "ssm_state_indices", "write_pos", "force_flush"):
        call[name] = call[name].narrow(0, 0, 0)
    return call


def test_an_empty_batch_passes_and_its_a_is_judged_as_it_is() -> None:
    call = empty_batch()
    accepted(call)
    call["a"] = tensor(3, 2, 16)
    assert str(refused(call)) == "Mismatched batch sizes: mixed_qkv.shape[0]=0, a.shape[0]=3, b.shape[0]=0."
    call["a"] = tensor(0, 2, 8)
    assert str(refused(call)) == "`a` must have shape [B, HV*K] with HV=2, K=16 (got a.shape=(0, 16))."


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((), "`d_cache` must have shape [slots, HV, L, V]."),
        ((6, 0), "`d_cache` must have shape [slots, HV, L, V]."),
        ((6, 2, 0), "ReplaySSM cache length must be at least 1."),
        ((6, 2, 0, 16, 1), "ReplaySSM cache length must be at least 1."),
        ((6, 2, 4, 16, 1), "`d_cache` must have shape [slots, HV, L, V]."),
    ],
    ids=str,
)
def test_ring_length_is_the_third_dim_whatever_the_rank(shape: tuple[int, ...], message: str) -> None:
    call = Call.valid(spec(DECODE))
    call["d_cache"] = tensor(*shape)
    assert str(refused(call)) == message


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a", "KDA `a` must be a contiguous 2D or 3D tensor."),
        ("dt_bias", "KDA `dt_bias` must be a contiguous 1D or 2D tensor."),
        ("mixed_qkv", "`mixed_qkv` must be a 2D tensor (got ndim=0)."),
        ("b", "`a` and `b` must be 2D tensors (got a.ndim=2, b.ndim=0)."),
        ("A_log", "`A_log`/`dt_bias` must be 1D tensors."),
        ("ssm_state_indices", "`ssm_state_indices` must be 1D for packed decode (got ndim=0)."),
        ("initial_state", "`initial_state` must be a 4D tensor (got ndim=0)."),
        ("out", "`out` must have shape (5, 1, 2, 16) (got out.shape=())."),
        ("write_pos", "`write_pos` must be a 1D int32 tensor."),
        ("force_flush", "`force_flush` must be a length-B int32 tensor or None."),
        ("d_cache", "`d_cache` must have shape [slots, HV, L, V]."),
        ("k_cache", "`k_cache` must have shape [slots, H, L, K]."),
        ("g_cache", "`g_cache` must have shape [slots, HV, L, K]."),
    ],
)
def test_zero_dimensional_tensors_are_refused_not_crashed_on(name: str, message: str) -> None:
    call = Call.valid(spec(DECODE))
    call[name] = tensor(dtype=call[name].dtype)
    assert str(refused(call)) == message


@pytest.mark.parametrize("size", [0, 3, 24])
@pytest.mark.parametrize("which", ["K", "V"])
def test_only_powers_of_two(which: str, size: int) -> None:
    call = Call.valid(spec(DECODE))
    K, V = (size, 16) if which == "K" else (16, size)
    call["initial_state"] = tensor(6, 2, V, K)
    assert str(refused(call)) == (
        f"Helion KDA decode requires power-of-two key and value head dimensions (got K={K}, V={V})."
    )


def test_a_stride_is_judged_also_in_a_dim_of_one_element() -> None:
    call = Call.valid(spec(DECODE))
    call["initial_state"] = tensor(6, 2, 16, 1, stride=(96, 48, 3, 3))
    assert str(refused(call)) == "`initial_state` must be contiguous in the last dim."


@pytest.mark.parametrize(
    "strides",
    [
        {"initial_state": (5000, 700, 40, 1), "g_cache": (5000, 64, 16, 1)},
        {"d_cache": (1, 6, 12, 48), "k_cache": (64, 64, 1, 4), "g_cache": (16, 96, 192, 1)},
        {"mixed_qkv": (100, 1), "b": (9, 1), "ssm_state_indices": (3,), "write_pos": (2,), "force_flush": (0,)},
    ],
    ids=["envelope", "any ring strides", "rows apart"],
)
def test_strides_that_are_not_refused(strides: dict[str, tuple[int, ...]]) -> None:
    call = Call.valid(spec(DECODE))
    for name, stride in strides.items():
        call[name] = tensor(*call[name].shape, stride=stride, dtype=call[name].dtype)
    accepted(call)


def test_force_flush_may_be_none() -> None:
    call = Call.valid(spec(DECODE))
    call["force_flush"] = None
    accepted(call)


@pytest.mark.parametrize("name", [name for name in TENSORS if name != "force_flush"])
def test_the_note_names_exactly_the_moved_tensor(name: str) -> None:
    call = Call.valid(spec(DECODE))
    call.move(name, call.other)
    error = refused(call)
    assert isinstance(error, DeviceError)
    ring = name in ("d_cache", "k_cache", "g_cache", "write_pos")
    assert str(error) == (RING_ELSEWHERE if ring else ELSEWHERE)
    assert dict(error.offenders) == {name: call.other}
    assert error.__notes__[0] == f"odd one out: {name} on cuda:1; the other 12 on cuda:0"
    assert error.argument == (name if name != "mixed_qkv" else "a")
    measured_wrongly = any("measures against a misplaced tensor" in note for note in error.__notes__)
    assert measured_wrongly == (name == "mixed_qkv")


@pytest.mark.parametrize("on", ["cpu", "other"])
def test_caches_left_elsewhere_are_listed(on: str) -> None:
    call = Call.valid(spec(DECODE))
    device = getattr(call, on)
    for name in ("d_cache", "g_cache", "write_pos"):
        call.move(name, device)
    error = refused(call)
    assert str(error) == RING_ELSEWHERE
    assert error.__notes__ == [
        f"odd one out: d_cache on {device}, g_cache on {device}, write_pos on {device}; the other 10 on cuda:0",
        "placement: "
        + ", ".join(f"{n} {device if n in ('d_cache', 'g_cache', 'write_pos') else 'cuda:0'}" for n in TENSORS),
        "fix: allocate d_cache with device=mixed_qkv.device; allocate g_cache with device=mixed_qkv.device; "
        "write_pos = write_pos.to(mixed_qkv.device)",
    ]


def test_cpu_tensors_are_refused_without_the_interpreter() -> None:
    call = Call.valid(spec(DECODE), on=topology.CPU)
    before = snapshot(call.tensors)
    assert str(refused(call)) == "ReplaySSM decode only supports CUDA tensors."
    assert all(same_bits(value, call[name]) for name, value in before.items())
