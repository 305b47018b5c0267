"""The whole course through the report command: all notebooks run, every refusal is provoked in one, every fix holds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.atlas import records, specs

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a report over all notebooks says."""
    out = tmp_path_factory.mktemp("course")
    done = subprocess.run(
        [sys.executable, "-m", "helpers.report", "--out", str(out)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return found


def test_every_notebook_passes(summary: dict[str, Any]) -> None:
    stems = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert {entry["name"]: entry["verdict"] for entry in summary["notebooks"]} == dict.fromkeys(stems, "passed")


def test_no_notebook_disagrees_with_a_record(summary: dict[str, Any]) -> None:
    assert summary["counts"]["disagree"] == 0


def test_every_kernel_has_its_notebook() -> None:
    assert all((ROOT / "notebooks" / f"{spec.notebook}.ipynb").exists() for spec in specs().values())


def test_every_refusal_is_provoked_in_a_notebook_and_its_fix_verified(summary: dict[str, Any]) -> None:
    seen = {entry["id"]: entry for entry in summary["records"]}
    assert set(seen) == set(records())
    assert [id for id, entry in seen.items() if entry["refusal"] is None] == []
    assert [id for id, entry in seen.items() if entry["fix"] is None] == []
