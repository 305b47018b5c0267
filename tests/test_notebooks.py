"""The committed notebooks keep to the rules, and each rule can be broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import notebook_rules as rules
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_output
from notebook_files import code, notebook, printed, shown, text
from notebook_rules import RULES, SECTIONS, Stored

from helpers.report import normalise
from helpers.report.jobs import ROOT

FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(path for path in FOLDER.rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts)

Rule = Callable[[Stored], Iterator[str]]


def test_there_are_notebooks_to_look_at() -> None:
    names = {path.stem for path in NOTEBOOKS}
    assert {"00_start_here", "mamba_scatter"} <= names


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.relative_to(FOLDER).as_posix())
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_notebook_keeps_to_the_rule(rule: Rule, path: Path) -> None:
    complaints = list(rule(Stored.read(path)))
    assert not complaints, "\n".join([f"{path.name}, {rule.__doc__}", *complaints])


def lesson(*extra: NotebookNode) -> list[NotebookNode]:
    """Cells of a notebook that keeps to all rules, and more cells."""
    return [
        text("# A lesson\n\n[below](#Recap), [the same](lesson.ipynb#A-lesson), $x_i$, [out](https://example.org)"),
        *(text(f"## {section}") for section in SECTIONS),
        code("seed = 0", "parameters", count=1),
        code("print(seed)", count=2, outputs=[printed("0\n")]),
        *extra,
    ]


def stored(folder: Path, *cells: NotebookNode) -> Stored:
    """These cells as a kernel's notebook in a folder."""
    path = folder / "mamba_scatter.ipynb"
    normalise.write(notebook(*cells), path)
    (folder / "lesson.ipynb").write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    return Stored.read(path)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_good_notebook_passes(tmp_path: Path, rule: Rule) -> None:
    assert list(rule(stored(tmp_path, *lesson()))) == []


PIXEL = {"image/png": "AAAA"}

BROKEN: list[tuple[Rule, NotebookNode, str]] = [
    (rules.is_executed, code("x = 1"), "[1, 2, None]"),
    (rules.is_executed, code("x = 1", count=4), "[1, 2, 4]"),
    (rules.has_outputs, code("print(seed)", count=3), "In [3] prints"),
    (rules.has_outputs, code("with refusal(of='x'):\n    pass", count=3), "In [3] prints"),
    (rules.has_outputs, code("%time x = 1\nfor i in range(2):\n    display(i)", count=3), "In [3] prints"),
    (rules.has_no_errors, code("1 / 0", count=3, outputs=[new_output("error", ename="E", evalue="")]), "failed: E"),
    (rules.has_no_errors, code("x", count=3, outputs=[new_output("stream", name="stderr", text="w")]), "'w'"),
    (rules.is_compared, code("x = 1", "raises-exception", count=3), "raises-exception"),
    (rules.is_compared, code("x = 1", "nbval-skip", count=3), "nbval-skip"),
    (rules.is_compared, code("# NBVAL_IGNORE_OUTPUT\nx = 1", count=3), "by a comment"),
    (rules.is_compared, code("x = 1", "nbval-ignore-output", count=3), "1 of 3 code cells"),
    (rules.is_of_no_machine, code("x", count=3, outputs=[printed("/tmp/x")]), "/tmp/x"),
    (rules.has_parameters, code("y = 1", "parameters", count=3), "2 cells"),
    (rules.has_described_pictures, code("x", count=3, outputs=[shown(PIXEL)]), "In [3]: image/png"),
    (rules.has_described_pictures, code("x", count=3, outputs=[shown(PIXEL, {"image/png": {"alt": " "}})]), "In [3]"),
    (rules.has_described_pictures, code("x", count=3, outputs=[shown({"text/html": "<p><img src='a'></p>"})]), "<img>"),
    (rules.has_described_pictures, code("x", count=3, outputs=[shown({"text/html": "<svg></svg>"})]), "<svg>"),
    (rules.has_described_pictures, text("![](lesson.ipynb)"), "<img>"),
    (rules.has_short_cells, code("\n".join(["x = 1"] * 16), count=3), "16 lines"),
    (rules.has_sound_links, text("[gone](gone.ipynb)"), "gone.ipynb is not there"),
    (rules.has_sound_links, text("[gone](lesson.ipynb#Gone)"), "no such section"),
    (rules.has_sound_links, text("[case](#recap)"), "no such section"),
    (rules.has_sound_links, text("[absolute](/etc/hosts)"), "is not there"),
    (rules.has_sections, text("## How fast"), "the sections are"),
    (rules.has_formulas_that_can_be_shown, text(r"$\nope$"), "nope"),
    (rules.has_formulas_that_can_be_shown, text("| a |\n|---|\n| $\\frac$ |"), "frac"),
]


@pytest.mark.parametrize(("rule", "cell", "complaint"), BROKEN)
def test_each_rule_can_be_broken(tmp_path: Path, rule: Rule, cell: NotebookNode, complaint: str) -> None:
    found = list(rule(stored(tmp_path, *lesson(cell))))
    assert len(found) == 1
    assert complaint in found[0]


def test_more_code_than_prose_is_a_complaint(tmp_path: Path) -> None:
    cells = [code("x = 1", count=number) for number in range(3, 12)]
    assert list(rules.has_more_prose_than_code(stored(tmp_path, *lesson(*cells))))


def test_a_notebook_that_was_not_run_is_a_complaint(tmp_path: Path) -> None:
    empty = stored(tmp_path, text("# Empty"), code("seed = 0", "parameters"))
    assert list(rules.has_outputs(empty)) == ["no cell has an output"]
    assert list(rules.is_executed(stored(tmp_path, text("# No code")))) == ["there is no code"]


@pytest.mark.parametrize(
    "metadata", [{"kernelspec": {"name": "mine", "display_name": "Mine"}}, {"papermill": {"duration": 1.0}}]
)
def test_metadata_of_a_run_is_a_complaint(tmp_path: Path, metadata: dict[str, object]) -> None:
    made = notebook(*lesson())
    made.metadata.update(metadata)
    path = tmp_path / "lesson.ipynb"
    nbformat.write(made, path)
    assert list(rules.is_normalised(Stored.read(path)))


def test_only_kernels_must_have_the_sections(tmp_path: Path) -> None:
    other = stored(tmp_path, text("# Other"))
    assert list(rules.has_sections(other))
    assert not list(rules.has_sections(Stored(tmp_path / "ranks.ipynb", other.text)))


@pytest.mark.parametrize(
    "source", ["x = 1", "def f():\n    print(1)", "if slow:\n    print(1)", "f = lambda: print(1)"]
)
def test_what_may_not_print_needs_no_output(source: str) -> None:
    assert not rules.prints(source)
