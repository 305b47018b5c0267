"""The reports in ``reports/`` say where they come from, are whole, and lead nowhere outside."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from helpers.atlas import records
from helpers.report.normalise import _MACHINE_PATH

REPORTS = Path(__file__).resolve().parents[1] / "reports"
MACHINES = sorted(path.parent for path in REPORTS.glob("*/summary.json"))
HREF = re.compile(r'(?:href|src)="([^"#]*)(?:#([^"]*))?"')


@pytest.fixture(params=MACHINES, ids=lambda folder: folder.name)
def folder(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@pytest.fixture
def summary(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "summary.json").read_text(encoding="utf-8")))


def test_there_is_a_report_of_a_gpu() -> None:
    assert MACHINES


def test_it_says_where_it_comes_from(summary: dict[str, Any]) -> None:
    origin = summary["provenance"]
    for name in ("gpus", "driver", "cuda", "torch", "triton", "commit", "date"):
        assert origin[name], name
    assert not origin["dirty"]


def test_every_notebook_passed_and_every_record_was_seen(summary: dict[str, Any]) -> None:
    assert summary["passed"]
    assert {item["verdict"] for item in summary["notebooks"]} == {"passed"}
    assert {item["id"] for item in summary["records"]} == set(records())
    assert {item["verdict"] for item in summary["records"]} == {"reproduced"}
    assert {item["fix"] for item in summary["records"]} == {"real"}, "fixed calls run on the GPU"


def test_pages_lead_to_files_that_are_there(folder: Path) -> None:
    # Of the pages' own text, links to sections: those to other pages of the report.
    pages = {path: path.read_text(encoding="utf-8") for path in (*folder.glob("*.html"), REPORTS / "index.html")}
    for path, text in pages.items():
        for target, anchor in HREF.findall(text):
            if not target or target.startswith(("data:", "https:", "mailto:")):
                continue
            assert (path.parent / target).exists(), f"{path.name}: {target}"
            other = pages.get((path.parent / target).resolve())
            assert not anchor or other is None or f'id="{anchor}"' in other, f"{path.name}: {target}#{anchor}"


def test_pages_tell_no_path_of_a_machine(folder: Path) -> None:
    for path in (*folder.glob("*.html"), *folder.glob("*.json"), *folder.glob("*.xml")):
        found = _MACHINE_PATH.findall(re.sub(r"data:image/[^\"']*", "", path.read_text(encoding="utf-8")))
        assert not found, f"{path.name}: {found[:3]}"


@pytest.mark.parametrize("name", ["bench.json", "more_shapes.json"])
def test_every_figure_was_checked(name: str) -> None:
    measured = json.loads((REPORTS / "h200" / name).read_text(encoding="utf-8"))
    assert measured["meta"]["commit"]
    for case in measured["cases"]:
        checked = case["check"] if "check" in case else case["impls"]["project"]["check"]
        assert checked.get("ok", checked.get("out", 1.0) < 5e-3), case["case"]
