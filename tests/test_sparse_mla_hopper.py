"""The sparse MLA prefill for Hopper: it compiles as it was meant to, is chosen where it can run, and is right."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from compiled import Compiled, compile_for
from sparse_mla_calls import OUTPUTS, assert_right, make_call, reference, run

import kernels
import kernels.sparse_mla
from helpers.calls import relative_error, same_bits
from helpers.topology import HOME
from kernels.sparse_mla import api

hopper = pytest.importorskip("kernels.sparse_mla.hopper", reason="this Triton's Gluon lacks names the kernel needs")

# Compiled for a GPU that need not be there.


def build(d_qk: int, *, options: bool, aligned: bool = True) -> Compiled:
    pointers = {
        "q_ptr": "*fp8e4nv:16",
        "kv_ptr": "*fp8e4nv:16",
        "indices_ptr": "*i32:16",
        "q_scale_ptr": "*fp32:16",
        "kv_scale_ptr": "*fp32:16",
        "attn_sink_ptr": "*fp32:16",
        "topk_length_ptr": "*i32:16",
        "out_ptr": "*bf16:16",
        "max_logits_ptr": "*fp32:16",
        "lse_ptr": "*fp32:16",
    }
    if not aligned:
        must_be = ("q_ptr", "kv_ptr")
        pointers = {name: kind if name in must_be else kind.removesuffix(":16") for name, kind in pointers.items()}
    sizes = dict.fromkeys(("s_kv", "topk_tiles", "head_blocks", "work"), "i32")
    tuned = dict(hopper.TUNED)
    num_warps = tuned.pop("num_warps")
    constants: dict[str, Any] = {"D_QK": d_qk, **tuned}
    if not options:
        constants |= {"attn_sink_ptr": None, "topk_length_ptr": None}
    signature = pointers | {"sm_scale": "fp32"} | sizes | dict.fromkeys(constants, "constexpr")
    return compile_for("sm_90", hopper.sparse_mla_hopper_kernel, signature, constants, num_warps=num_warps)


def ptxas_notes(ptx: str, directory: Path) -> str:
    """What the assembler remarks about a kernel."""
    source = directory / "kernel.ptx"
    source.write_text(ptx)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    command = [str(tool), "-v", "--gpu-name=sm_90a", str(source), "-o", str(directory / "kernel.cubin")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


BUILDS = pytest.mark.parametrize("options", [False, True], ids=["plain", "lengths and sink"])
WIDTHS = pytest.mark.parametrize("d_qk", [512, 576])


@WIDTHS
@BUILDS
def test_matrix_instructions_overlap(d_qk: int, options: bool, tmp_path: Path) -> None:
    notes = ptxas_notes(build(d_qk, options=options).asm["ptx"], tmp_path)
    assert "Used " in notes
    # C7511 and C7512: wgmma instructions are serialised for want of registers.
    assert not re.search(r"C75\d\d|serialized", notes), notes


@WIDTHS
@BUILDS
def test_fits_a_multiprocessor(d_qk: int, options: bool, aligned: bool, record_property: pytest.RecordProperty) -> None:
    built = build(d_qk, options=options, aligned=aligned)
    record_property("spills", built.spills)
    record_property("shared", built.shared)
    assert built.shared <= 227 * 1024
    # 16 warps start with the same share; each role then takes what it needs.
    assert built.registers == 128
    # The producer waits for memory anyway, and keeps its 24 registers at the price of a few words on the stack.
    assert built.spills <= 128


@pytest.fixture(params=[True, False], ids=["aligned", "only q and kv aligned"])
def aligned(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_the_roles_fill_the_register_file() -> None:
    scorer, producer = hopper.TUNED["SCORER_REGISTERS"], hopper.TUNED["PRODUCER_REGISTERS"]
    accumulator = (65536 // 128 - scorer - producer) // 2
    requested = re.findall(r"setmaxnreg\.\w+\.sync\.aligned\.u32\s+(\d+)", build(576, options=True).asm["ptx"])
    assert {str(accumulator), str(scorer), str(producer)} <= set(requested)


def test_both_products_run_in_fp8() -> None:
    ptx = build(576, options=True).asm["ptx"]
    assert len(re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n128k32\.f32\.e4m3\.e4m3", ptx)) == 576 // 32
    assert (
        len(re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n64k32\.f32\.e4m3\.e4m3", ptx)) == 512 // 128 * 128 // 32
    )
    assert "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16" in ptx
    assert "cp.async.cg.shared.global" in ptx


# Chosen where it can run.


@pytest.mark.parametrize("capability", [None, (8, 9), (10, 0), (12, 0)])
def test_other_devices_get_the_portable_kernel(
    capability: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "compute_capability", lambda device: capability)
    assert api._hopper.__wrapped__(torch.device("cuda", 0)) is None


def test_hopper_gets_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "compute_capability", lambda device: (9, 0))
    assert api._hopper.__wrapped__(torch.device("cuda", 0)) is hopper


def test_a_triton_without_the_names_gets_the_portable_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "compute_capability", lambda device: (9, 0))
    monkeypatch.setitem(sys.modules, "kernels.sparse_mla.hopper", None)
    monkeypatch.delattr(kernels.sparse_mla, "hopper")
    assert api._hopper.__wrapped__(torch.device("cuda", 0)) is None


def test_takes_what_it_can_copy_and_store() -> None:
    q, kv, out = (torch.empty(64, dtype=torch.uint8) for _ in range(3))
    assert q.data_ptr() % 16 == 0
    assert hopper.takes(q, kv, out)
    assert hopper.takes(q, kv, out[4:])
    assert not hopper.takes(q[8:], kv, out)
    assert not hopper.takes(q, kv[1:], out)
    assert not hopper.takes(q, kv, out[2:])


# On the GPU. Other tests of sparse MLA run on this kernel too where it is chosen.


@pytest.fixture
def on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip without a Hopper GPU; fail if the portable kernel is launched instead."""
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a GPU of compute capability 9.x: the Hopper kernel was NOT run")
    monkeypatch.setattr(api, "launch", None)


# More items than a GPU has multiprocessors, so that every program starts over several times.
CASES: dict[str, dict[str, Any]] = {
    "one tile": {"s_q": 1024, "d_qk": 512, "topk": 128, "s_kv": 8192},
    "three tiles, 192 heads": {"s_q": 333, "h_q": 192, "topk": 384, "s_kv": 5000},
    "four tiles, 128 heads": {"s_q": 300, "h_q": 128, "d_qk": 512, "topk": 512, "s_kv": 32768},
    "sixteen tiles": {"s_q": 300, "topk": 2048, "s_kv": 32768},
    "lengths": {"s_q": 700, "topk": 512, "s_kv": 4096, "lengths": True},
    "sink": {"s_q": 700, "topk": 512, "s_kv": 4096, "sink": True},
    "sink, 512 channels": {"s_q": 700, "d_qk": 512, "topk": 512, "s_kv": 4096, "sink": True},
    "negative": {"s_q": 700, "topk": 256, "s_kv": 4096, "sm_scale": -0.07},
    "fewer items than programs": {"s_q": 3, "topk": 2048, "s_kv": 9000},
}


@pytest.mark.gpu
@pytest.mark.usefixtures("on_hopper")
@pytest.mark.parametrize("case", CASES)
def test_many_items_per_program(case: str) -> None:
    call = run(make_call(HOME, **CASES[case]))
    tokens = torch.randperm(call["q"].shape[0], device=HOME)[:256]
    assert_right(call, tokens)
    assert relative_error(call["out"][tokens], reference(call, tokens)["out"]) < 1.7e-2


@pytest.mark.gpu
@pytest.mark.usefixtures("on_hopper")
@pytest.mark.parametrize("sm_scale", [512**-0.5, 1e-2, 1e-5], ids=["flat", "flatter", "one number"])
def test_weights_that_are_nearly_alike(sm_scale: float) -> None:
    call = run(make_call(HOME, s_q=300, topk=512, s_kv=4096, sm_scale=sm_scale))
    # Rounding a weight to e4m3 errs by at most 1/17 of it, and by 2.6e-2 in the root of the mean square.
    assert relative_error(call["out"], reference(call)["out"]) < 2.8e-2


@pytest.mark.gpu
@pytest.mark.usefixtures("on_hopper")
def test_tokens_of_every_length_side_by_side() -> None:
    call = make_call(HOME, s_q=1025, topk=1024, s_kv=4096, lengths=True)
    call["topk_length"].copy_(torch.randperm(1025, device=HOME))
    call["indices"].random_(0, 4096)
    assert_right(run(call))


@pytest.mark.gpu
@pytest.mark.usefixtures("on_hopper")
def test_an_empty_cache() -> None:
    call = make_call(HOME, s_q=300, s_kv=1)
    call["kv"] = call["kv"][:0]
    out, max_logits, lse = (run(call)[name] for name in OUTPUTS)
    assert bool((out == 0).all())
    assert bool((max_logits == -torch.inf).all())
    assert bool((lse == torch.inf).all())


@pytest.mark.gpu
@pytest.mark.usefixtures("on_hopper")
def test_the_same_bits_every_time() -> None:
    call = run(make_call(HOME, s_q=500, topk=1024, s_kv=8192, sink=True))
    first = {name: call[name].clone() for name in OUTPUTS}
    for _ in range(20):
        for name in OUTPUTS:
            call[name].fill_(float("nan"))
        kernels.sparse_mla_q8kv8_prefill_fwd(**call)
        assert all(same_bits(call[name], first[name]) for name in OUTPUTS)
