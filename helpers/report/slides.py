"""Slides from the notebooks as they are stored: one file each, with reveal.js inside, which opens without a network.

``python -m helpers.report slides [NOTEBOOK ...]``. Every ``##`` heading begins a section, and every further piece of
prose in it a slide with the code and the outputs that follow. A cell's own ``slideshow`` metadata, as JupyterLab's
property inspector sets it, goes before that.
"""

from __future__ import annotations

import argparse
import copy
import posixpath
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from helpers.report import output, pages
from helpers.report.jobs import ROOT
from helpers.report.sources import UsageError, select

SECTION, SLIDE, GOES_ON, LEFT_OUT = "slide", "subslide", "-", "skip"

_REVEAL = "sphinx_revealjs/_static/revealjs/dist"


@dataclass(frozen=True)
class Deck:
    """The slides of a notebook.

    Attributes:
        title: the notebook's first heading.
        page: its file.
        sections: how many there are.
        slides: how many there are in all sections.
    """

    title: str
    page: str
    sections: int
    slides: int


def main(arguments: Sequence[str]) -> int:
    """Run the command.

    Returns:
        0, or 2 if a notebook does not exist or reveal.js is not installed.
    """
    parser = argparse.ArgumentParser("helpers.report slides", description="Make slides of the notebooks as stored.")
    add = parser.add_argument
    add("names", nargs="*", metavar="NOTEBOOK", help="notebooks, such as mamba_scatter; all if left out")
    add("--notebooks", type=Path, default=ROOT / "notebooks", metavar="DIR", help="where the notebooks are")
    add("--out", type=Path, default=Path("slides"), metavar="DIR", help="where to write the slides (slides/)")
    options = parser.parse_args(arguments)
    try:
        decks = write(select(options.notebooks, options.names), options.out)
    except UsageError as error:
        print(f"report slides: {error}", file=sys.stderr)
        return 2
    print(f"{sum(deck.slides for deck in decks)} slides of {len(decks)} notebooks. Open {options.out / 'index.html'}")
    return 0


def write(sources: dict[str, Path], out: Path) -> list[Deck]:
    """Write the slides and a page that lists them.

    Args:
        sources: notebooks by name.
        out: folder to write to.

    Raises:
        UsageError: when reveal.js is not there, before anything is written.
    """
    script, style = reveal()
    decks = []
    for name, path in sources.items():
        target = out.resolve() / f"{name}.html"
        notebook = marked(nbformat.read(path, as_version=4))
        kinds = Counter(cell.metadata.slideshow.slide_type for cell in notebook.cells)
        deck = Deck(title(notebook, name), f"{name}.html", kinds[SECTION], kinds[SECTION] + kinds[SLIDE])
        exporter = pages.PageExporter(
            "slides", {"name": name, "pages": sources, "folder": path.parent, "target": target.parent}
        )
        home = posixpath.relpath("index.html", posixpath.dirname(name) or ".")
        given = {"title": deck.title, "slides_home": home, "reveal_js": script, "reveal_css": style}
        html, _ = exporter.from_notebook_node(notebook, given)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(html, encoding="utf-8")
        decks.append(deck)
    (out / "index.html").write_text(output.render("slides.html.j2", {"decks": decks}), encoding="utf-8")
    return decks


def marked(notebook: NotebookNode) -> NotebookNode:
    """A copy in which every cell says what it is to the slides, unless it said so before.

    Args:
        notebook: as it is stored.
    """
    notebook = copy.deepcopy(notebook)
    for cell in notebook.cells:
        shown = cell.metadata.setdefault("slideshow", NotebookNode())
        shown.slide_type = shown.get("slide_type") or kind(cell)
    return notebook


def kind(cell: NotebookNode) -> str:
    """What a cell is to the slides, in nbconvert's words.

    Returns:
        "slide" where a section begins, "subslide" where a slide in it does, "-" for what goes on, "skip" for what is
        left out.
    """
    if not cell.source.strip() or "parameters" in cell.metadata.get("tags", ()):
        return LEFT_OUT
    if cell.cell_type == "code":
        return GOES_ON
    # A comment in a block of code looks like a heading.
    words = re.sub(r"^```.*?^```", "", cell.source, flags=re.MULTILINE | re.DOTALL)
    return SECTION if re.search(r"^##? ", words, re.MULTILINE) else SLIDE


def title(notebook: NotebookNode, name: str) -> str:
    """The first heading, or the name where there is none."""
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    found = re.search(r"^# (.+)$", prose, re.MULTILINE)
    return found[1].strip() if found else name


def reveal() -> tuple[str, str]:
    """Script and style sheet of reveal.js, whose files come with the package sphinx-revealjs.

    Raises:
        UsageError: when it is not installed.
    """
    try:
        folder = Path(str(distribution("sphinx-revealjs").locate_file(_REVEAL)))
    except PackageNotFoundError as error:
        raise UsageError('slides need reveal.js: pip install "device-guards[slides]"') from error
    sheets = [(folder / name).read_text(encoding="utf-8") for name in ("reset.css", "reveal.css", "theme/white.css")]
    # The theme would fetch a font; the system's own will do.
    style = re.sub(r"@import [^;]+;", "", "\n".join(sheets))
    return (folder / "reveal.js").read_text(encoding="utf-8"), style
