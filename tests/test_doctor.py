"""The doctor finds what is wrong, says what to do, and never stops at the first thing."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections import namedtuple
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import doctor, probe, topology
from helpers.report import machine

Usage = namedtuple("Usage", "total used free")
Spec = namedtuple("Spec", "argv")


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.delenv("DEVICE_GUARDS_INTERPRET", raising=False)


def look(name: str) -> doctor.Check:
    """One check."""
    return next(check for check in doctor.checks() if check.name == name)


def version_of(**versions: str | None) -> Callable[[str], str]:
    """A ``metadata.version`` that knows only these packages."""

    def version(package: str) -> str:
        found = versions.get(package)
        if found is None:
            raise metadata.PackageNotFoundError(package)
        return found

    return version


def gpus(monkeypatch: pytest.MonkeyPatch, count: int, peers: bool = False) -> None:
    """Let torch say that there are GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda a, b: peers)
    # No kernel can run on a GPU that is only said to be there.
    monkeypatch.setattr(probe, "add_one", lambda value, device: value + 1)


def test_this_machine_is_fit() -> None:
    found = doctor.checks()
    assert [check for check in found if check.status == doctor.PROBLEM] == []
    assert len({check.name for check in found}) == len(found) >= 14


def test_the_command_says_so() -> None:
    environment = {name: value for name, value in os.environ.items() if "INTERPRET" not in name}
    done = subprocess.run(
        [sys.executable, "-m", "helpers.doctor"],
        cwd=doctor.ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("All is well.")


def test_a_problem_makes_the_command_fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "_CHECKS", {"a": lambda: ("ok", "fine"), "b": lambda: ("problem", "bad", "do this")})
    assert doctor.main() == 1
    said = capsys.readouterr().out
    assert "→ do this" in said
    assert "1 problem(s)" in said


def test_a_note_does_not(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "_CHECKS", {"a": lambda: ("note", "odd", "look")})
    assert doctor.main() == 0
    assert "→ look" in capsys.readouterr().out


def test_a_check_that_breaks_is_a_problem_and_the_rest_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> tuple[str, ...]:
        raise ImportError("no libcuda")

    monkeypatch.setattr(doctor, "_CHECKS", {"a": broken, "b": lambda: ("ok", "fine")})
    first, second = doctor.checks()
    assert (first.status, first.found) == (doctor.PROBLEM, "ImportError: no libcuda")
    assert first.remedy
    assert second == doctor.Check("b", "ok", "fine")


def test_python_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.sys, "version_info", (3, 10, 4))
    check = look("Python")
    assert (check.status, check.found) == (doctor.PROBLEM, "3.10.4")
    assert "make PYTHON=" in check.remedy


@pytest.mark.parametrize("package", ["torch", "triton"])
@pytest.mark.parametrize(
    ("version", "status", "words"),
    [
        (None, "problem", "is not installed"),
        ("2.10.0", "problem", "or newer"),
        ("2.999.0+cu130", "note", "the pinned one is"),
    ],
)
def test_releases(monkeypatch: pytest.MonkeyPatch, package: str, version: str | None, status: str, words: str) -> None:
    if package == "triton" and version is not None:
        version = version.replace("2.", "3.", 1).replace("3.10", "3.5")
    monkeypatch.setattr(doctor.metadata, "version", version_of(**{package: version}))
    check = look(package)
    assert check.status == status
    assert words in f"{check.found} {check.remedy}"


def test_a_pinned_release_with_a_local_version_is_the_pinned_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.metadata, "version", version_of(torch=doctor.pins()["torch"] + "+cpu"))
    assert look("torch").status == doctor.OK


def test_without_a_constraints_file_nothing_is_pinned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    assert doctor.pins() == {}
    assert look("torch").status == doctor.OK


def test_gpus_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 2, peers=True)
    assert look("GPUs").found == "cuda:0 NVIDIA H200 (sm_90), cuda:1 NVIDIA H200 (sm_90)"
    assert "0→1, 1→0" in look("peer access").found
    assert look("what is real").found == "real: cuda:0, cuda:1, cpu; kernels run natively"
    assert look("GPU kernel").found == "cuda:0 runs a kernel of one element"


def test_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 1)
    assert look("what is real").found == "real: cuda:0, cpu; stand-ins: cuda:1; kernels run natively"
    assert "fewer than two" in look("peer access").found


def test_gpus_without_peer_access(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 2)
    assert "faults" in look("peer access").found


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 0)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    assert look("GPUs").status == doctor.OK
    assert look("what is real").found == "real: cpu; stand-ins: cuda:0, cuda:1; kernels run in the interpreter"
    assert look("GPU kernel").status == doctor.OK


def test_a_cpu_build_beside_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 0)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: "nvidia-smi")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    assert (look("GPUs").status, look("GPUs").remedy) == (doctor.NOTE, "install a torch that is built for CUDA")


def test_a_driver_that_torch_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 0)
    monkeypatch.setattr(machine, "driver", lambda: "390.1")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    check = look("driver")
    assert (check.status, check.remedy) == (doctor.NOTE, "update the driver")
    assert "390.1" in check.found


def test_another_package_of_the_same_name(monkeypatch: pytest.MonkeyPatch) -> None:
    other = types.ModuleType("kernels")
    other.__file__ = "site-packages/kernels/__init__.py"
    monkeypatch.setitem(sys.modules, "kernels", other)
    check = doctor._guarded("import name kernels", doctor._import_name)
    assert check.status == doctor.PROBLEM
    assert "site-packages/kernels" in check.found


def test_ours_beside_the_other_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.metadata, "version", version_of(kernels="0.9.0"))
    check = look("import name kernels")
    assert check.status == doctor.NOTE
    assert "0.9.0" in check.found


def test_no_notebook_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    def missing(self: Any, name: str) -> Any:
        raise NoSuchKernel(name)

    monkeypatch.setattr(KernelSpecManager, "get_kernel_spec", missing)
    check = look("notebook kernel")
    assert check.status == doctor.PROBLEM
    assert "python3" in check.found


def test_a_notebook_kernel_of_another_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from jupyter_client.kernelspec import KernelSpecManager

    monkeypatch.setattr(KernelSpecManager, "get_kernel_spec", lambda self, name: Spec(["/elsewhere/bin/python"]))
    check = look("notebook kernel")
    assert check.status == doctor.NOTE
    assert "/elsewhere/bin/python" in check.found


@pytest.mark.parametrize("name", ["interpreter", "GPU kernel"])
def test_wrong_numbers_are_a_problem(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    gpus(monkeypatch, 1)
    monkeypatch.setattr(probe, "add_one", lambda value, device: value)
    assert look(name).status == doctor.PROBLEM


def test_the_probe_reckons(device: torch.device) -> None:
    assert probe.add_one(41.0, device) == 42.0
    assert probe.add_one(-1.0, topology.CPU) == 0.0


@pytest.mark.parametrize("target", list(probe.TARGETS))
def test_the_probe_compiles(target: str) -> None:
    assert probe.code_bytes(target) > 0


def test_little_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "not" / "there"))
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: Usage(10, 9, 1))
    check = look("disk")
    assert check.status == doctor.NOTE
    assert str(tmp_path / "not" / "there") in check.found


def test_triton_interpreting_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    # Asked for alone: Triton reads the variable when a kernel is decorated, and those of this process are.
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert doctor._guarded("", doctor._variables).status == doctor.NOTE
    assert "DEVICE_GUARDS_INTERPRET=1" in doctor._guarded("", doctor._variables).remedy
    assert doctor._guarded("", doctor._compiler).status == doctor.NOTE


def test_cpu_tensors_opted_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEVICE_GUARDS_INTERPRET", "1")
    assert look("environment variables").status == doctor.NOTE
    monkeypatch.setenv("DEVICE_GUARDS_INTERPRET", "0")
    assert look("environment variables").status == doctor.OK


def test_remedies_stand_below_what_was_found() -> None:
    shown = doctor.table([doctor.Check("disk", "note", "little", "make room"), doctor.Check("Python", "ok", "3.11")])
    assert shown.splitlines() == ["note  disk    little", "              → make room", "ok    Python  3.11"]
