"""Small notebooks for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from helpers.report.normalise import KERNELSPEC, LANGUAGE


def text(source: str) -> NotebookNode:
    """A Markdown cell."""
    return new_markdown_cell(source)


def code(source: str, *tags: str, count: int | None = None, outputs: Sequence[NotebookNode] = ()) -> NotebookNode:
    """A code cell, never run unless it is given a count."""
    metadata = {"tags": list(tags)} if tags else {}
    return new_code_cell(source, metadata=metadata, execution_count=count, outputs=list(outputs))


def printed(words: str) -> NotebookNode:
    """What a cell printed."""
    return new_output("stream", text=words, name="stdout")


def shown(data: dict[str, str], metadata: dict[str, Any] | None = None) -> NotebookNode:
    """What a cell displayed."""
    return new_output("display_data", data=data, metadata=metadata or {})


def notebook(*cells: NotebookNode) -> NotebookNode:
    """A notebook of these cells."""
    made = new_notebook(cells=list(cells))
    made.metadata.update(kernelspec=KERNELSPEC, language_info=LANGUAGE)
    for number, cell in enumerate(made.cells):
        # nbformat draws cell ids at random; tests compare files.
        cell.id = f"cell-{number}"
    return made


def write(folder: Path, name: str, *cells: NotebookNode) -> Path:
    """Store a notebook of these cells."""
    path = folder / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook(*cells), path)
    return path
