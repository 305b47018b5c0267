"""Stand-ins behave the same on a machine without a GPU, with one, and with two."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._subclasses import fake_tensor

from helpers import topology
from helpers.atlas import records
from helpers.reproduce import reproduce


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PyTorch wakes the device of every FakeTensor that it makes, as it does where there is a GPU, but not that one."""

    def wake(device: torch.device) -> None:
        raise RuntimeError(f"CUDA error: invalid device ordinal ({device})")

    monkeypatch.setattr(fake_tensor, "init_gpu_context", wake)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    yield
    # That it would have been noticed.
    with pytest.raises(RuntimeError, match="invalid device ordinal"), fake_tensor.FakeTensorMode():
        torch.empty(2, device=topology.OTHER)


OPERATIONS = {
    "new_zeros": lambda x: x.new_zeros(3, 4),
    "reshape": lambda x: x.reshape(2, -1),
    "arithmetic": lambda x: x * 2 + x,
    "empty_like": torch.empty_like,
    "to dtype": lambda x: x.to(torch.bfloat16),
}


@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("within", [True, False], ids=["within stand_ins", "outside"])
def test_an_operation_on_a_stand_in_needs_no_device(operation: str, within: bool) -> None:
    x = topology.stand_in((4, 3, 2), None, torch.float32, topology.OTHER)
    if within:
        with topology.stand_ins():
            result = OPERATIONS[operation](x)
    else:
        result = OPERATIONS[operation](x)
    assert topology.is_stand_in(result)
    assert result.device == topology.OTHER


VALUES = {
    "from a list": lambda: torch.tensor([1, 2], device=topology.OTHER),
    "from a number": lambda: torch.tensor(0.5, device=topology.OTHER),
    "copied from the CPU": lambda: torch.ones(2, 3).to(topology.OTHER),
    "placed": lambda: topology.place(torch.ones(2, 3), topology.OTHER),
}


@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize("values", VALUES)
def test_values_come_to_a_device_that_is_not_there(values: str) -> None:
    real = torch.ones(2, 3)
    with topology.stand_ins():
        result = VALUES[values]()
        moved = real.to(topology.OTHER)
    for tensor in (result, moved):
        assert topology.is_stand_in(tensor)
        assert tensor.device == topology.OTHER


@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize("id", list(records()))
def test_every_record_is_reproduced_where_there_is_only_one_gpu(id: str) -> None:
    reproduce(id)
