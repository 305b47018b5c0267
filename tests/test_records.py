"""Every refusal in the package has a record, and every record does what it says."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import pkgutil
from pathlib import Path

import pytest
import torch

import kernels
from helpers import reproduce as reproducing
from helpers import topology
from helpers.atlas import records, spec, specs
from helpers.atlas.__main__ import errors_page
from helpers.calls import Call
from helpers.reproduce import NotReproducedError, refusal, reproduce
from kernels.guards import Guard, GuardError

PACKAGE = Path(kernels.__file__).parent


def all_guards() -> dict[str, Guard]:
    """Every guard constant of the package, by id."""
    found: dict[str, Guard] = {}
    for info in pkgutil.walk_packages(kernels.__path__, "kernels."):
        for value in vars(importlib.import_module(info.name)).values():
            if isinstance(value, Guard):
                assert found.setdefault(value.id, value) is value, f"two guards are called {value.id}"
    return found


GUARDS = all_guards()


@pytest.mark.parametrize("guard", sorted(GUARDS))
def test_every_guard_has_records_with_its_words(guard: str) -> None:
    mine = [entry for entry in records().values() if entry.guard == guard]
    assert mine, f"no record for {guard}"
    for entry in mine:
        assert entry.message == GUARDS[guard].message
        assert entry.error == GUARDS[guard].error.__name__
        assert entry.pattern.fullmatch(entry.example)


def test_no_record_without_a_guard() -> None:
    assert {entry.guard for entry in records().values()} <= set(GUARDS)


def test_every_raise_in_the_package_is_a_guard_that_has_records() -> None:
    known = {entry.guard for entry in records().values()}
    seen = 0
    for path in sorted(PACKAGE.rglob("*.py")):
        module = importlib.import_module(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Raise) or node.exc is None:
                continue
            seen += 1
            where = f"{path.relative_to(PACKAGE)}:{node.lineno}"
            call = node.exc
            assert isinstance(call, ast.Call), where
            assert isinstance(call.func, ast.Attribute), where
            assert call.func.attr == "refuse", where
            assert isinstance(call.func.value, ast.Name), where
            assert vars(module)[call.func.value.id].id in known, where
    assert seen >= len(GUARDS)


@pytest.mark.parametrize("id", list(records()))
def test_record_is_reproduced_and_its_fix_verified(id: str) -> None:
    result = reproduce(id)
    assert result.fixed
    assert result.error <= spec(records()[id].function).tolerance
    assert records()[id].fix


def test_every_public_function_has_a_sample_call() -> None:
    functions = {
        name for name in kernels.__all__ if name.startswith(("fused_", "launch_", "helion_", "sparse_", "scatter_"))
    }
    assert functions - set(specs()) <= WITHOUT_SAMPLE


# Aliases, and references, which are what a sample call is compared with.
WITHOUT_SAMPLE = {name for name in kernels.__all__ if name.endswith("reference")} | {
    "fused_recurrent_kda_replayssm_decode"
}


def test_a_reproduction_that_is_not_refused_fails() -> None:
    with pytest.raises(NotReproducedError, match="nothing was raised"), refusal("some message"):
        pass


def test_a_reproduction_with_other_words_fails() -> None:
    error = next(iter(GUARDS.values()))
    with pytest.raises(NotReproducedError, match="expected the message"), refusal("some message"):
        raise GuardError(error.message)


def test_other_errors_are_not_taken_for_refusals() -> None:
    with pytest.raises(ZeroDivisionError), refusal("some message"):
        raise ZeroDivisionError


def test_errors_page_is_up_to_date() -> None:
    page = PACKAGE.parent / "docs" / "errors.md"
    assert page.read_text() == errors_page(), "run: python -m helpers.atlas > docs/errors.md"


def test_a_fix_that_stays_on_the_cpu_is_not_taken_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = records()["mamba_scatter.state.cuda/dst"]
    moved: list[torch.device] = []
    monkeypatch.setattr(topology, "runnable", lambda: topology.HOME)
    monkeypatch.setattr(Call, "move_all", lambda self, device: moved.append(device))
    monkeypatch.setattr(reproducing, "run_against_reference", lambda call: 0.0)
    call = Call(spec(entry.function), spec(entry.function).sample(topology.CPU, 0))
    how, _ = reproducing._verify_fix(dataclasses.replace(entry, repair=lambda call: None), call, 0)
    assert how == "real"
    assert moved == [topology.HOME]
