"""Who owns an address, what an experiment needs, and the pictures of devices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_plots import legible

from helpers import devices, topology
from helpers.plots_devices import Launch, draw_pointers, draw_spans, draw_streams
from helpers.topology import CPU, HOME, OTHER, stand_in


class Driver:
    """Answers as the CUDA driver does about the addresses it gave out: kind of memory and number of the GPU."""

    def __init__(self, given_out: dict[int, tuple[int, int]]) -> None:
        self.given_out = given_out

    def cuPointerGetAttribute(self, out: Any, attribute: int, address: Any) -> int:  # noqa: N802
        if address.value not in self.given_out:
            return 1
        kind, ordinal = self.given_out[address.value]
        out._obj.value = {2: kind, 9: ordinal}[attribute]
        return 0


@pytest.mark.parametrize(
    ("address", "told"),
    [(64, "memory of cuda:1"), (128, "memory of cuda:0"), (256, "pinned host memory"), (65, "unknown to the driver")],
)
def test_the_driver_is_asked_about_an_address(monkeypatch: pytest.MonkeyPatch, address: int, told: str) -> None:
    monkeypatch.setattr(devices, "_driver", lambda: Driver({64: (2, 1), 128: (2, 0), 256: (1, 0)}))
    assert devices.owner(address) == told


def test_without_a_driver_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_driver", lambda: None)
    assert devices.owner(64) == "no CUDA driver to ask"


@pytest.mark.gpu
def test_owners_of_real_addresses() -> None:
    on_gpu, host = torch.zeros(4, device=HOME), torch.zeros(4)
    assert devices.owner(on_gpu.data_ptr()) == "memory of cuda:0"
    assert devices.owner(host.pin_memory().data_ptr()) == "pinned host memory"
    assert devices.owner(host.data_ptr()) == "unknown to the driver"


@pytest.mark.two_gpus
def test_an_address_of_the_second_gpu_has_the_second_gpu_as_owner() -> None:
    assert devices.owner(torch.zeros(4, device=OTHER).data_ptr()) == "memory of cuda:1"


def test_a_missing_gpu_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert devices.has_gpus(1)
    assert capsys.readouterr().out == ""
    assert not devices.has_gpus(2)
    assert "needs 2 GPUs, and this machine has 1:" in capsys.readouterr().out


PROGRAM = [Launch("A", HOME), Launch("B", OTHER), Launch("C", HOME, "side stream"), Launch("D", HOME)]


def test_streams_hold_their_kernels_in_order() -> None:
    picture = draw_streams(PROGRAM, current=OTHER)
    assert "cuda:0, default stream: A, D" in picture.alt
    assert "cuda:0, side stream: C" in picture.alt
    assert "cuda:1, default stream: B" in picture.alt
    assert "An arrow marks cuda:1" in picture.alt
    legible(picture.figure)


def test_a_pointer_to_another_device_leads_nowhere() -> None:
    call = {
        name: stand_in((2,), None, torch.float32, device)
        for name, device in (("dst", HOME), ("src", OTHER), ("steps", CPU), ("slots", HOME))
    }
    picture = draw_pointers(call, runs_on=HOME)
    assert "Arrows lead from it to dst, slots there" in picture.alt
    assert "nowhere for src, which is on cuda:1; and for steps, which is on cpu" in picture.alt
    legible(picture.figure)
    assert "nowhere" not in draw_pointers({"dst": call["dst"]}, runs_on=HOME).alt
    assert "Arrows lead" not in draw_pointers({"dst": call["dst"]}, runs_on=OTHER).alt


def test_spans_show_what_is_shared() -> None:
    buffer = torch.zeros(96, device=topology.runnable())
    picture = draw_spans({"max_logits": buffer[:64], "lse": buffer[32:]})
    assert "max_logits from byte 0 to 256; lse from byte 128 to 384" in picture.alt
    assert "bytes 128 to 256 belong to both" in picture.alt
    legible(picture.figure)
    assert "none is shared" in draw_spans({"a": buffer[:48], "b": buffer[48:]}).alt


def test_spans_of_two_address_spaces_have_no_common_picture() -> None:
    one, two = (stand_in((4,), None, torch.float32, HOME) for _ in range(2))
    with pytest.raises(ValueError, match="no address space"):
        draw_spans({"one": one, "two": two})
