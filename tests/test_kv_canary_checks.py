"""The canary plan refuses what it must, in order, in the agreed words, and touches nothing when it does."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import kernels
from helpers import topology
from helpers.atlas import records, spec
from helpers.calls import Call, same_bits, snapshot
from kernels import VerifyPlan, WritePlan
from kernels.guards import DeviceError, GuardError, GuardTypeError
from kernels.kv_canary import api, checks, reference

PLAN = "launch_canary_plan_kernels"
REFERENCE = "launch_canary_plan_kernels_torch_reference"
SCATTER = "launch_scatter_req_token_ids_kernel"
FUNCTIONS = (PLAN, REFERENCE, SCATTER, "VerifyPlan.allocate", "WritePlan.allocate")


@pytest.fixture
def no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    def launched(*args: Any, **kwargs: Any) -> None:
        pytest.fail("a refused call launched a kernel or made a plan")

    monkeypatch.setattr(api, "launch", launched)
    monkeypatch.setattr(api, "plan_in_torch", launched)
    monkeypatch.setattr(api, "launch_scatter_req_token_ids_kernel_torch_reference", launched)
    monkeypatch.setattr(reference, "_write_verify_plan", launched)
    monkeypatch.setattr(reference, "_write_write_plan", launched)


def refused(call: Call) -> GuardError:
    with pytest.raises(GuardError) as caught:
        call.run()
    return caught.value


MINE = [entry.id for entry in records().values() if entry.function in FUNCTIONS]


@pytest.mark.usefixtures("no_launch")
@pytest.mark.parametrize("id", MINE)
def test_refusal_names_the_guard_and_launches_nothing(id: str) -> None:
    entry = records()[id]
    call = Call.valid(spec(entry.function))
    entry.provoke(call)
    error = refused(call)
    assert str(error) == entry.example
    assert isinstance(error, TypeError if "must be int" in entry.message else ValueError)
    assert (error.guard, error.function) == (entry.guard, entry.function)
    assert any(note.startswith("fix: ") for note in error.__notes__)


@pytest.mark.usefixtures("no_launch")
@pytest.mark.parametrize("id", [id for id in MINE if "device" not in id and "allocate" not in records()[id].function])
def test_a_refused_call_leaves_every_tensor_as_it_was(id: str) -> None:
    entry = records()[id]
    call = Call.valid(spec(entry.function), on=topology.CPU)
    entry.provoke(call)
    before = snapshot(call.tensors)
    assert refused(call).guard == entry.guard
    assert len(before) >= 4
    assert all(same_bits(tensor, call[name]) for name, tensor in before.items())


@dataclasses.dataclass
class Faulty:
    """A stand-in for one argument with every fault at once, mended one by one."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device = topology.OTHER
    stride: tuple[int, ...] | None = None

    def tensor(self) -> torch.Tensor:
        return topology.stand_in(self.shape, self.stride, self.dtype, self.device)


# The engine's name of a tensor, the argument it stands for, its right shape and dtype.
TENSORS: dict[str, tuple[str, tuple[int, ...], torch.dtype]] = {
    "req_pool_indices": ("req_pool_indices", (4,), torch.int64),
    "prefix_lens": ("prefix_lens", (4,), torch.int64),
    "extend_seq_lens": ("extend_seq_lens", (4,), torch.int64),
    "req_to_token": ("req_to_token", (6, 12), torch.int32),
    "lut_tensor": ("full_to_swa_index_mapping", (73,), torch.int64),
    "out_write_offsets": ("write_plan_out.write_offsets", (7,), torch.int64),
    "out_write_seed_slot_indices": ("write_plan_out.write_seed_slot_indices", (6,), torch.int64),
    "out_verify_num_valid": ("verify_plan_out.verify_num_valid", (1,), torch.int32),
    "out_verify_enable": ("verify_plan_out.enable", (1,), torch.int32),
    "out_write_num_valid_reqs": ("write_plan_out.write_num_valid_reqs", (1,), torch.int32),
    "req_to_verify_expected_tokens": ("req_to_verify_expected_tokens", (6, 12), torch.int32),
    "req_to_verify_expected_tokens_valid_lens": ("req_to_verify_expected_tokens_valid_lens", (4,), torch.int64),
    "out_verify_slot_indices": ("verify_plan_out.verify_slot_indices", (32,), torch.int64),
    "out_verify_expected_tokens": ("verify_plan_out.verify_expected_tokens", (32,), torch.int64),
    "out_verify_expected_positions": ("verify_plan_out.verify_expected_positions", (32,), torch.int64),
    "out_verify_prev_slot_indices": ("verify_plan_out.verify_prev_slot_indices", (32,), torch.int64),
}
FIRST_TEN, LAST_SIX = list(TENSORS)[:10], list(TENSORS)[10:]
WITH_LENGTH = {"prefix_lens", "extend_seq_lens"} | set(FIRST_TEN[7:])


class FaultyCall:
    """A call of the plan whose every tensor is wrong in every way."""

    def __init__(self) -> None:
        self.call = Call.valid(spec(PLAN))
        self.faulty = {name: self._broken(name) for name in TENSORS}
        # The reference of the device checks has nothing to disagree with.
        self.faulty["out_verify_slot_indices"].device = topology.HOME
        self.call["verify_capacity"] = 64
        self.absent = {"lut_tensor", "req_to_verify_expected_tokens_valid_lens"}

    @staticmethod
    def _broken(name: str) -> Faulty:
        """One dim too many, one element too few (or too many), gaps, another dtype, another device."""
        _, shape, dtype = TENSORS[name]
        size = {"req_pool_indices": 4100, "out_verify_slot_indices": 32}.get(name, 3 if shape == (1,) else shape[0] - 1)
        shape = (size, *shape[1:], 2)
        gaps = (1,) + (size,) * (len(shape) - 1)
        return Faulty(shape, torch.float32 if dtype == torch.int64 else torch.int64, stride=gaps)

    def current(self) -> Call:
        for name, (argument, _, _) in TENSORS.items():
            self.call[argument] = None if name in self.absent else self.faulty[name].tensor()
        return self.call

    def refusal(self) -> str:
        return str(refused(self.current()))

    def contiguous(self, name: str) -> None:
        self.faulty[name].stride = None

    def right_dtype(self, name: str) -> None:
        self.faulty[name].dtype = TENSORS[name][2]

    def right_rank(self, name: str) -> None:
        self.faulty[name].shape = self.faulty[name].shape[: len(TENSORS[name][1])]

    def right_size(self, name: str) -> None:
        self.resize(name, TENSORS[name][1][0])

    def right_device(self, name: str) -> None:
        self.faulty[name].device = topology.HOME

    def resize(self, name: str, size: int) -> None:
        self.faulty[name].shape = (size, *self.faulty[name].shape[1:])


def short(dtype: torch.dtype) -> str:
    return f"must have dtype {dtype}, got {torch.float32 if dtype == torch.int64 else torch.int64}"


def test_plan_checks_come_in_order() -> None:
    faulty = FaultyCall()
    assert faulty.refusal().endswith("got bs=4100. Bump _PLAN_BS_BLOCK_SIZE if real workloads need this.")
    faulty.resize("req_pool_indices", 4)
    assert faulty.refusal().endswith("requires full_to_swa_index_mapping when swa_window_size > 0")
    faulty.absent.remove("lut_tensor")
    assert faulty.refusal().endswith(
        "verify_capacity=64 does not match verify_plan_out.verify_slot_indices.shape[0]=32"
    )
    faulty.call["verify_capacity"] = 32
    _first_ten_contiguity_and_dtype(faulty)
    _impossible_sizes(faulty)
    _first_ten_shapes(faulty)
    _room(faulty)
    for name in FIRST_TEN:
        want = f"kv-canary: {name} must be on out_verify_offsets_scratch's device cuda:0, got cuda:1"
        assert faulty.refusal() == want
        faulty.right_device(name)
    _tokens_and_entries(faulty)
    faulty.current().run()  # every fault is mended


def _first_ten_contiguity_and_dtype(faulty: FaultyCall) -> None:
    for name in FIRST_TEN:
        assert faulty.refusal() == f"kv-canary: {name} must be contiguous"
        faulty.contiguous(name)
    for name in FIRST_TEN:
        assert faulty.refusal() == f"kv-canary: {name} {short(TENSORS[name][2])}"
        faulty.right_dtype(name)


def _impossible_sizes(faulty: FaultyCall) -> None:
    faulty.resize("out_write_offsets", 0)
    faulty.resize("req_to_token", 1)
    faulty.faulty["req_to_token"].stride = (0, 2, 1)
    faulty.resize("lut_tensor", 0)
    assert faulty.refusal() == "kv-canary: write_offsets_len must be positive, got 0"
    faulty.resize("out_write_offsets", 9)
    assert faulty.refusal() == "kv-canary: req_to_token_stride0 must be positive, got 0"
    faulty.contiguous("req_to_token")
    assert faulty.refusal() == "kv-canary: lut_len must be positive when has_swa_lut is True"
    faulty.resize("lut_tensor", 73)


def _first_ten_shapes(faulty: FaultyCall) -> None:
    faulty.resize("out_write_seed_slot_indices", 3)
    for name in FIRST_TEN:
        shape, ndim = faulty.faulty[name].shape, len(TENSORS[name][1])
        assert faulty.refusal() == f"kv-canary: {name} must be {ndim}-D, got shape {shape}"
        faulty.right_rank(name)
        if name in WITH_LENGTH:
            assert faulty.refusal() == f"kv-canary: {name} length must be {TENSORS[name][1][0]}, got {shape[0]}"
            faulty.right_size(name)


def _room(faulty: FaultyCall) -> None:
    assert faulty.refusal() == "kv-canary: write_offsets_len must equal write_req_capacity + 1, got 9 and 3"
    faulty.resize("out_write_offsets", 4)
    assert faulty.refusal() == "kv-canary: bs=4 exceeds write_req_capacity=3"
    faulty.resize("out_write_offsets", 5)
    faulty.resize("out_write_seed_slot_indices", 4)


def _tokens_and_entries(faulty: FaultyCall) -> None:
    assert faulty.refusal() == (
        "kv-canary: launch_plan_entries_kernel requires req_to_verify_expected_tokens_valid_lens "
        "when req_to_verify_expected_tokens is set"
    )
    faulty.absent.clear()
    for name in LAST_SIX:
        shape, dtype = TENSORS[name][1:]
        assert faulty.refusal() == f"kv-canary: {name} must be contiguous"
        faulty.contiguous(name)
        assert faulty.refusal() == f"kv-canary: {name} {short(dtype)}"
        faulty.right_dtype(name)
        assert faulty.refusal() == f"kv-canary: {name} must be {len(shape)}-D, got shape {faulty.faulty[name].shape}"
        faulty.right_rank(name)
        if name not in ("req_to_verify_expected_tokens", "out_verify_slot_indices"):
            assert faulty.refusal() == f"kv-canary: {name} length must be {shape[0]}, got {shape[0] - 1}"
            faulty.right_size(name)
        if name != "out_verify_slot_indices":
            want = f"kv-canary: {name} must be on out_verify_offsets_scratch's device cuda:0, got cuda:1"
            assert faulty.refusal() == want
            faulty.right_device(name)


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_without_dims_is_refused_not_crashed_on(name: str) -> None:
    argument, shape, dtype = TENSORS[name]
    call = Call.valid(spec(PLAN))
    call[argument] = topology.stand_in((), None, dtype, topology.HOME)
    assert str(refused(call)) == f"kv-canary: {name} must be {len(shape)}-D, got shape ()"


def test_lengths_are_not_looked_at_without_tokens() -> None:
    call = Call.valid(spec(PLAN))
    call["req_to_verify_expected_tokens"] = None
    call["req_to_verify_expected_tokens_valid_lens"] = torch.zeros(3, 3, dtype=torch.bool)
    call.run()


def test_a_mapping_is_welcome_without_a_window() -> None:
    call = Call.valid(spec(PLAN))
    call["swa_window_size"] = 0
    call.run()


def test_an_ordinary_empty_batch_is_accepted() -> None:
    call = Call.valid(spec(PLAN))
    for name in ("req_pool_indices", "prefix_lens", "extend_seq_lens", "req_to_verify_expected_tokens_valid_lens"):
        call[name] = call[name].narrow(0, 0, 0)
    call.run()


@pytest.mark.parametrize("shape", [(6, 0), (0, 12), (0, 0), (1, 12)], ids=str)
def test_an_empty_table_is_accepted(shape: tuple[int, int]) -> None:
    call = Call.valid(spec(PLAN))
    call["req_to_token"] = topology.stand_in(shape, None, torch.int32, topology.HOME)
    call.run()


def test_notes_name_the_misplaced_input_as_the_caller_does() -> None:
    call = Call.valid(spec(PLAN))
    call.move("full_to_swa_index_mapping", call.cpu)
    error = refused(call)
    assert isinstance(error, DeviceError)
    assert error.argument == "full_to_swa_index_mapping"
    assert dict(error.offenders) == {"full_to_swa_index_mapping": call.cpu}
    notes = error.__notes__
    assert "name: lut_tensor is the kernel's name for full_to_swa_index_mapping" in notes
    assert "name: out_verify_offsets_scratch is the kernel's name for verify_plan_out.verify_slot_indices" in notes
    assert "odd one out: full_to_swa_index_mapping on cpu; the other 15 on cuda:0" in notes
    assert not any("measures against a misplaced" in note for note in notes)


def test_notes_say_when_the_plan_itself_is_the_odd_one_out() -> None:
    call = Call.valid(spec(PLAN))
    records()["kv_canary.plan.device/verify_plan_out"].provoke(call)
    error = refused(call)
    assert str(error).startswith("kv-canary: req_pool_indices must be on")
    assert set(error.offenders) == {name for name in call.tensors if name.startswith("verify_plan_out.")}
    assert any("measures against a misplaced tensor" in note for note in error.__notes__)
    assert error.fix.startswith("build verify_plan_out with device=")


@pytest.mark.parametrize("names", [("prefix_lens",), ("req_to_token", "write_plan_out.write_offsets"), ("enable",)])
def test_notes_name_exactly_the_moved_tensors(names: tuple[str, ...]) -> None:
    moved = [f"verify_plan_out.{name}" if name == "enable" else name for name in names]
    call = Call.valid(spec(PLAN))
    for name in moved:
        call.move(name, call.other)
    assert set(refused(call).offenders) == set(moved)


@pytest.mark.usefixtures("no_launch")
@pytest.mark.parametrize("where", ["cpu", "other"])
def test_a_refused_device_mix_changes_no_real_tensor(where: str) -> None:
    call = Call.valid(spec(PLAN), on=topology.CPU)
    call["req_pool_indices"] = topology.stand_in((4,), None, torch.int64, topology.OTHER)
    before = snapshot(call.tensors)
    if where == "other":
        call.move("write_plan_out.write_offsets", topology.OTHER)
        before.pop("write_plan_out.write_offsets")
    refused(call)
    assert all(same_bits(tensor, call[name]) for name, tensor in before.items())


def test_cpu_tensors_are_planned_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "launch", lambda *args, **kwargs: pytest.fail("a kernel was launched"))
    for function in (PLAN, SCATTER):
        call = Call.valid(spec(function), on=topology.CPU)
        want = call.spec.expected(call.args)
        call.run()
        assert all(same_bits(call[name], want[name]) for name in want)


def test_scatter_checks_come_in_order() -> None:
    def fake(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device = topology.OTHER) -> torch.Tensor:
        return topology.stand_in(shape, None, dtype, device)

    i32, i64, home = torch.int32, torch.int64, topology.HOME
    call = Call.valid(spec(SCATTER))
    call.args = {
        "flat_in": fake((2, 2), i32, home),
        "offsets": fake((), i32),
        "req_pool_indices": fake((2, 2), i32),
        "pool_out": fake((4,), i64),
    }
    head = "kv-canary: scatter_req_token_ids"
    steps = [
        (f"{head} flat_in must be 1-D, got shape (2, 2)", "flat_in", fake((9,), i32, home)),
        (f"{head} offsets must be 1-D, got shape ()", "offsets", fake((7,), i32)),
        (f"{head} req_pool_indices must be 1-D, got shape (2, 2)", "req_pool_indices", fake((512,), i32)),
        (f"{head} pool_out must be 2-D, got shape (4,)", "pool_out", fake((4, 4), i64)),
        (f"{head} flat_in must be int64, got torch.int32", "flat_in", fake((9,), i64, home)),
        (f"{head} offsets must be int64, got torch.int32", "offsets", fake((7,), i64)),
        (f"{head} req_pool_indices must be int64, got torch.int32", "req_pool_indices", fake((512,), i64)),
        (f"{head} pool_out must be int32, got torch.int64", "pool_out", fake((4, 4), i32)),
        (f"{head} offsets length 7 != bs+1 (513)", "offsets", fake((513,), i64)),
        (
            f"{head} bs+1=513 exceeds BATCH_BLOCK=512; bump _SCATTER_BATCH_BLOCK if real workloads need this",
            "req_pool_indices",
            fake((511,), i64),
        ),
        (f"{head} offsets length 513 != bs+1 (512)", "offsets", fake((512,), i64)),
        ("kv-canary: offsets must be on flat_in's device cuda:0, got cuda:1", "offsets", fake((512,), i64, home)),
        (
            "kv-canary: req_pool_indices must be on flat_in's device cuda:0, got cuda:1",
            "req_pool_indices",
            fake((511,), i64, home),
        ),
        ("kv-canary: pool_out must be on flat_in's device cuda:0, got cuda:1", "pool_out", fake((4, 4), i32, home)),
    ]
    for message, name, mended in steps:
        error = refused(call)
        assert str(error) == message
        assert isinstance(error, GuardTypeError) == ("must be int" in message)
        call[name] = mended
    call.run()


@pytest.mark.parametrize("capacity", [0, -1, -(2**40)])
def test_plans_need_room(capacity: int) -> None:
    with pytest.raises(ValueError, match="must be positive") as verify:
        VerifyPlan.allocate(verify_capacity=capacity, device="cpu")
    assert str(verify.value) == f"kv-canary: VerifyPlan verify_capacity must be positive, got {capacity}"
    with pytest.raises(ValueError, match="must be positive") as write:
        WritePlan.allocate(write_req_capacity=capacity, device="cpu")
    assert str(write.value) == f"kv-canary: WritePlan write_req_capacity must be positive, got {capacity}"


def test_allocated_plans_have_the_promised_fields() -> None:
    verify = VerifyPlan.allocate(verify_capacity=9, device="cpu")
    write = WritePlan.allocate(write_req_capacity=4, device=torch.device("cpu"))
    found = {
        item.name: (tuple(getattr(plan, item.name).shape), getattr(plan, item.name).dtype)
        for plan in (verify, write)
        for item in dataclasses.fields(plan)
    }
    assert found == {
        "verify_slot_indices": ((9,), torch.int64),
        "verify_expected_tokens": ((9,), torch.int64),
        "verify_expected_positions": ((9,), torch.int64),
        "verify_prev_slot_indices": ((9,), torch.int64),
        "verify_num_valid": ((1,), torch.int32),
        "enable": ((1,), torch.int32),
        "write_offsets": ((5,), torch.int64),
        "write_seed_slot_indices": ((4,), torch.int64),
        "write_num_valid_reqs": ((1,), torch.int32),
    }
    assert verify.enable.tolist() == [1]
    assert verify.verify_num_valid.tolist() == [0]
    assert write.write_num_valid_reqs.tolist() == [0]
    with pytest.raises(dataclasses.FrozenInstanceError):
        verify.enable = write.write_num_valid_reqs  # type: ignore[misc]
    with pytest.raises(TypeError):
        WritePlan(write.write_offsets, write.write_seed_slot_indices, write.write_num_valid_reqs)  # type: ignore[misc]


def test_every_internal_name_has_an_argument() -> None:
    call = Call.valid(spec(PLAN))
    assert set(checks.ALIASES.values()) <= set(call.tensors)
    assert all(getattr(kernels, function) for function in (PLAN, REFERENCE, SCATTER))
