"""What a committed notebook keeps to. Each rule takes a notebook and returns its complaints, one to a line."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode

from helpers.atlas import specs
from helpers.report import normalise, pages

SECTIONS = [
    "The error in the wild",
    "What the kernel does",
    "How it does it",
    "What it refuses",
    "Without the guard",
    "Where the fix belongs",
    "How fast",
    "Exercises",
    "Recap",
]
MOST_LINES = 15
MOST_IGNORED = 0.3
IGNORED = "nbval-ignore-output"
# A cell that must fail proves it in another way, and no cell may be left out of the comparison of outputs by a comment.
FORBIDDEN_TAGS = {"raises-exception", "nbval-raises-exception", "nbval-skip"}
MARKERS = re.compile(r"#\s*(?:NBVAL_\w+|PYTEST_VALIDATE_IGNORE_OUTPUT)")
PRINTING = {"print", "display", "refusal"}
NOT_SURELY_RUN = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.If, ast.ExceptHandler)


@dataclass(frozen=True)
class Stored:
    """A notebook as it lies in the repository."""

    path: Path
    text: str

    @classmethod
    def read(cls, path: Path) -> Stored:
        """The notebook at a path."""
        return cls(path, path.read_text(encoding="utf-8"))

    @property
    def notebook(self) -> NotebookNode:
        """Its cells and metadata."""
        return nbformat.reads(self.text, as_version=4)

    @property
    def code(self) -> list[NotebookNode]:
        """Its code cells that hold code."""
        return [cell for cell in self.notebook.cells if cell.cell_type == "code" and cell.source.strip()]

    @property
    def prose(self) -> list[NotebookNode]:
        """Its Markdown cells."""
        return [cell for cell in self.notebook.cells if cell.cell_type == "markdown"]


class Page(HTMLParser):
    """Links, pictures and headings' anchors of a piece of HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: list[str] = []
        self.undescribed: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.targets += [
            found[name] for name in ("href", "src") if name in found and found.get("class") != "anchor-link"
        ]
        self.anchors += [found["id"]] if "id" in found else []
        described = found.get("alt", "").strip() or found.get("aria-label", "").strip()
        if tag in ("img", "svg") and not described and found.get("aria-hidden") != "true":
            self.undescribed.append(f"<{tag}> without a description")


class Formulas(IPythonRenderer):
    """Collects formulas that the report could not show."""

    def __init__(self) -> None:
        super().__init__(escape=False)
        self.failed: list[str] = []

    def inline_math(self, body: str) -> str:
        """Try one."""
        try:
            pages.mathml(body)
        except pages.FormulaError as error:
            self.failed.append(str(error))
        return ""

    block_math = inline_math

    def latex_environment(self, name: str, body: str) -> str:
        """Try one that came without dollars."""
        return self.inline_math(rf"\begin{{{name}}}{body}\end{{{name}}}")


def rendered(cells: list[NotebookNode], renderer: IPythonRenderer | None = None) -> str:
    """Markdown cells as one piece of HTML."""
    made = (MarkdownWithMath(renderer or IPythonRenderer(escape=False)).render(cell.source) for cell in cells)
    return "\n".join(made)


def is_executed(stored: Stored) -> Iterator[str]:
    """Execution counts run from 1 without a gap, in order."""
    counts = [cell.execution_count for cell in stored.code]
    if not counts:
        yield "there is no code"
    if counts != list(range(1, len(counts) + 1)):
        yield f"execution counts are {counts}"


def has_outputs(stored: Stored) -> Iterator[str]:
    """A cell that prints or shows something has stored what."""
    if not any(cell.outputs for cell in stored.code):
        yield "no cell has an output"
    for number, cell in enumerate(stored.code, start=1):
        if prints(cell.source) and not cell.outputs:
            yield f"In [{number}] prints, but nothing is stored"


def prints(source: str) -> bool:
    """Whether running a cell surely prints: a print, display or refusal outside of a function."""
    waiting: list[ast.AST] = list(ast.parse(TransformerManager().transform_cell(source)).body)
    while waiting:
        node = waiting.pop()
        if isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda | ast.If | ast.ExceptHandler
        ):
            continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in PRINTING:
            return True
        waiting += ast.iter_child_nodes(node)
    return False


def has_no_errors(stored: Stored) -> Iterator[str]:
    """No cell failed, and nothing was written to standard error."""
    for number, cell in enumerate(stored.code, start=1):
        for output in cell.outputs:
            if output.output_type == "error":
                yield f"In [{number}] failed: {output.ename}"
            if output.get("name") == "stderr":
                yield f"In [{number}] wrote to standard error: {output.text[:80]!r}"


def is_compared(stored: Stored) -> Iterator[str]:
    """Outputs are compared except where a tag says so, which is rare."""
    cells = stored.code
    for number, cell in enumerate(cells, start=1):
        for tag in FORBIDDEN_TAGS & set(cell.metadata.get("tags", ())):
            yield f"In [{number}] has the tag {tag}"
        if MARKERS.search(cell.source):
            yield f"In [{number}] steers nbval by a comment"
    ignored = sum(IGNORED in cell.metadata.get("tags", ()) for cell in cells)
    if ignored > MOST_IGNORED * len(cells):
        yield f"{ignored} of {len(cells)} code cells are not compared"


def is_of_no_machine(stored: Stored) -> Iterator[str]:
    """No path of the machine that it was executed on."""
    yield from normalise.machine_traces(stored.notebook)


def is_normalised(stored: Stored) -> Iterator[str]:
    """The file is just what ``--record`` writes."""
    nbformat.validate(stored.notebook)
    wanted = nbformat.writes(normalise.normalise(stored.notebook)).rstrip("\n") + "\n"
    if stored.text != wanted:
        yield "not as the report's --record stores it: make report ARGS=--record"


def has_parameters(stored: Stored) -> Iterator[str]:
    """One cell, and an early one, is what papermill's parameters replace."""
    tagged = [cell for cell in stored.code if "parameters" in cell.metadata.get("tags", ())]
    if len(tagged) != 1:
        yield f"{len(tagged)} cells have the tag parameters"


def has_described_pictures(stored: Stored) -> Iterator[str]:
    """Every picture, in cells and outputs, has an alternative text."""
    yield from Page(rendered(stored.prose)).undescribed
    for number, cell in enumerate(stored.code, start=1):
        for output in cell.outputs:
            data, metadata = output.get("data", {}), output.get("metadata", {})
            for kind in data:
                if kind.startswith("image/") and not metadata.get(kind, {}).get("alt", "").strip():
                    yield f"In [{number}]: {kind} without a description"
            yield from (f"In [{number}]: {item}" for item in Page(data.get("text/html", "")).undescribed)


def has_short_cells(stored: Stored) -> Iterator[str]:
    """A cell holds one idea."""
    for number, cell in enumerate(stored.code, start=1):
        lines = len(cell.source.splitlines())
        if lines > MOST_LINES:
            yield f"In [{number}] has {lines} lines"


def has_more_prose_than_code(stored: Stored) -> Iterator[str]:
    """More Markdown cells than code cells."""
    if len(stored.prose) <= len(stored.code):
        yield f"{len(stored.prose)} Markdown cells, {len(stored.code)} code cells"


def has_sound_links(stored: Stored) -> Iterator[str]:
    """Links to files, notebooks and sections lead somewhere."""
    for target in Page(rendered(stored.prose)).targets:
        path, _, fragment = target.partition("#")
        if re.match(r"[a-z][a-z0-9+.-]*:", path, re.IGNORECASE):
            continue
        file = stored.path.parent / path if path else stored.path
        if path.startswith("/") or not file.exists():
            yield f"{target} is not there"
        elif fragment and fragment not in anchors(file):
            yield f"{target}: there is no such section"


def anchors(file: Path) -> set[str]:
    """Anchors of a notebook's headings as JupyterLab makes them, or of a Markdown file's as code hosts do."""
    if file.suffix == ".ipynb":
        return set(Page(rendered(Stored.read(file).prose)).anchors)
    headings = re.findall(r"^#+ +(.+?) *$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def has_sections(stored: Stored) -> Iterator[str]:
    """A kernel's notebook has the sections that all of them have, in their order."""
    if stored.path.stem not in {spec.notebook for spec in specs().values()}:
        return
    headings = re.findall(r"^## +(.+?) *$", "\n".join(cell.source for cell in stored.prose), re.MULTILINE)
    found = [heading for heading in headings if heading in SECTIONS]
    if found != SECTIONS:
        yield f"the sections are {found}, not {SECTIONS}"


def has_formulas_that_can_be_shown(stored: Stored) -> Iterator[str]:
    """The report shows formulas without a network."""
    renderer = Formulas()
    rendered(stored.prose, renderer)
    yield from renderer.failed


RULES: list[Callable[[Stored], Iterator[str]]] = [
    is_executed,
    has_outputs,
    has_no_errors,
    is_compared,
    is_of_no_machine,
    is_normalised,
    has_parameters,
    has_described_pictures,
    has_short_cells,
    has_more_prose_than_code,
    has_sound_links,
    has_sections,
    has_formulas_that_can_be_shown,
]
