"""What a stored notebook holds: everything that a reader sees, and nothing of the machine or the hour."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbformat import NotebookNode

KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
LANGUAGE = {"name": "python"}

# Written by papermill, nbclient and JupyterLab: times, durations, and how a window looked.
_PASSING = ("papermill", "execution", "ExecuteTime", "collapsed", "scrolled")

# A view of widgets that live in a kernel. Where that is gone, JupyterLab shows an error in place of the view, and not
# the text that is stored beside it.
_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

_MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:work|root|home|tmp|Users|private|mnt|var)/[^\s'\"`)>\]]*")


def normalise(notebook: NotebookNode) -> NotebookNode:
    """A copy whose metadata is the same for every run on every machine."""
    notebook = copy.deepcopy(notebook)
    notebook.metadata = NotebookNode(kernelspec=NotebookNode(KERNELSPEC), language_info=NotebookNode(LANGUAGE))
    for cell in notebook.cells:
        for key in _PASSING:
            cell.metadata.pop(key, None)
        for output in cell.get("outputs", ()):
            output.get("data", {}).pop(_WIDGET_VIEW, None)
        if not cell.metadata.get("tags", True):
            del cell.metadata["tags"]
    return notebook


def write(notebook: NotebookNode, path: Path) -> None:
    """Store a notebook, normalised, in a form that differs only where it changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(nbformat.writes(normalise(notebook)).rstrip("\n") + "\n", encoding="utf-8")


def machine_traces(notebook: NotebookNode) -> list[str]:
    """Paths of some machine in a notebook's cells and outputs, each with the number of its cell, counted from 1."""
    home = str(Path.home())
    found = []
    for number, cell in enumerate(notebook.cells, start=1):
        for text in (cell.source, *_texts(cell)):
            paths = [match[0] for match in _MACHINE_PATH.finditer(text)]
            if home != "/" and home in text and not paths:
                paths.append(home)
            found += [f"cell {number}: {path}" for path in paths]
    return found


def _texts(cell: NotebookNode) -> Iterator[str]:
    """Whatever is text among a cell's outputs; pictures are not."""
    for output in cell.get("outputs", ()):
        if output.output_type == "stream":
            yield output.text
        elif output.output_type == "error":
            yield from output.traceback
        else:
            yield from (str(value) for kind, value in output.data.items() if not kind.startswith("image/"))
