"""Slides: one file each that fetches nothing, cut where the notebook's headings and prose are."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbformat import NotebookNode
from notebook_files import code, notebook, printed, shown, text, write

from helpers.report import __main__ as command
from helpers.report import slides
from helpers.report.jobs import ROOT
from helpers.report.sources import UsageError

pytestmark = pytest.mark.slides

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def cells() -> list[NotebookNode]:
    return [
        text("# A <lesson>\n\nWords."),
        code("seed = 1", "parameters", count=1),
        code("import torch", count=2),
        text("## What it does\n\n$x_{i}$ and [other](deep/other.ipynb#The-end)"),
        code("print(1)", count=3, outputs=[printed("1\n")]),
        text("More words.\n\n```\n# a comment\n```"),
        code("2", count=4, outputs=[shown({"image/png": PIXEL}, {"image/png": {"alt": "one pixel"}})]),
        text("### A detail"),
        text(""),
        text("## Recap"),
    ]


def lesson() -> list[str]:
    return [cell.metadata.slideshow.slide_type for cell in slides.marked(notebook(*cells())).cells]


def test_headings_begin_sections_and_prose_begins_slides() -> None:
    assert lesson() == ["slide", "skip", "-", "slide", "-", "subslide", "-", "subslide", "skip", "slide"]


def test_what_a_cell_says_of_itself_goes_before() -> None:
    given = notebook(*cells())
    given.cells[5].metadata["slideshow"] = {"slide_type": "notes"}
    given.cells[4].metadata["slideshow"] = {"slide_type": ""}
    kinds = [cell.metadata.slideshow.slide_type for cell in slides.marked(given).cells]
    assert kinds[4:6] == ["-", "notes"]
    assert "slide_type" not in given.cells[0].metadata.get("slideshow", {}), "the notebook itself was changed"


def test_a_title_is_the_first_heading() -> None:
    assert slides.title(notebook(*cells()), "lesson") == "A <lesson>"
    assert slides.title(notebook(code("# no heading")), "lesson") == "lesson"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("slides")
    write(base / "notebooks", "lesson", *cells())
    write(base / "notebooks", "deep/other", text("# Other\n\n## The end"))
    arguments = ["slides", "--notebooks", str(base / "notebooks"), "--out", str(base / "out")]
    assert command.main(arguments) == 0
    return base / "out"


def page(made: Path, name: str) -> str:
    return (made / f"{name}.html").read_text(encoding="utf-8")


def parsed(made: Path, name: str) -> BeautifulSoup:
    return BeautifulSoup(page(made, name), "html.parser")


def test_slides_are_nested_as_reveal_wants_them(made: Path) -> None:
    soup = parsed(made, "lesson")
    sections = soup.select(".reveal > .slides > section")
    assert [len(section.find_all("section", recursive=False)) for section in sections] == [1, 3, 1]
    assert [section.get_text().split()[0] for section in sections] == ["A", "What", "Recap¶"]
    assert "seed" not in soup.get_text()
    assert soup.title.get_text() == "A <lesson>: slides"


@pytest.mark.parametrize("name", ["lesson", "deep/other", "index"])
def test_nothing_is_fetched(made: Path, name: str) -> None:
    soup = parsed(made, name)
    assert all(tag["src"].startswith("data:") for tag in soup.find_all(src=True))
    assert not soup.find_all(["link", "iframe", "object"])
    styles = "".join(tag.get_text() for tag in soup.find_all("style"))
    assert not re.search(r"@import|url\(\s*['\"]?(?!['\"]?data:)[^)]", styles)
    assert "MathJax" not in page(made, name)


def test_formulas_pictures_and_outputs_are_inside(made: Path) -> None:
    html, soup = page(made, "lesson"), parsed(made, "lesson")
    assert len(soup.find_all("math")) == 1
    assert [(tag["src"], tag["alt"]) for tag in soup.find_all("img")] == [
        (f"data:image/png;base64,{PIXEL}", "one pixel")
    ]
    assert "1\n" in [tag.get_text() for tag in soup.find_all("pre")]
    assert "Reveal.initialize(" in html
    assert "Hakim El Hattab" in html, "the licence of reveal.js asks for its notice"


def test_links_lead_to_other_slides(made: Path) -> None:
    assert 'href="deep/other.html#The-end"' in page(made, "lesson")
    assert 'href="../index.html"' in page(made, "deep/other")
    assert {'<a href="lesson.html">A &lt;lesson&gt;</a>', '<a href="deep/other.html">Other</a>'} <= set(
        re.findall(r"<a href=.*?</a>", page(made, "index"))
    )


def test_a_notebook_that_does_not_exist_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["slides", "nothing", "--out", str(tmp_path / "out")]) == 2
    assert "there is no notebook nothing" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_without_reveal_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(slides, "distribution", missing)
    with pytest.raises(UsageError, match=re.escape("device-guards[slides]")):
        slides.reveal()


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_every_notebook_has_a_slide_for_each_of_its_sections(path: Path, tmp_path: Path) -> None:
    [deck] = slides.write({path.stem: path}, tmp_path)
    prose = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]
    assert deck.sections == sum(bool(re.search(r"^##? ", source, re.MULTILINE)) for source in prose)
    assert deck.slides >= deck.sections >= 2
