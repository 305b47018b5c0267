"""An executed notebook as one HTML file that opens without a network: formulas are MathML, pictures are inside."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Collection
from html import escape
from pathlib import Path
from typing import Any

from jinja2 import pass_context
from latex2mathml.converter import convert
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from traitlets.config import Config

TEMPLATES = Path(__file__).parent / "templates"

# What a browser shows of an output with several forms, best first. No widgets and scripts: they need a live kernel.
_PRIORITY = ["text/html", "text/markdown", "image/svg+xml", "text/latex", "image/png", "image/jpeg", "text/plain"]

# latex2mathml passes on what it does not know; a reader would see it as text.
_LEFT_OVER = re.compile(r"<m[ion]>(?:\\|&<|[{}]<)")


class FormulaError(ValueError):
    """A formula that cannot be shown without MathJax."""


def mathml(latex: str, *, block: bool = False) -> str:
    """A formula as MathML, which browsers draw by themselves.

    Args:
        latex: without its delimiters.
        block: on a line of its own.

    Raises:
        FormulaError: when there is something in it that the converter does not know.
    """
    # The same to a reader, and the converter knows only the latter.
    known = re.sub(r"\\(begin|end)\{aligned\}", r"\\\1{align*}", latex)
    try:
        shown = str(convert(known, display="block" if block else "inline"))
    except Exception as error:
        # The converter's errors are of many classes and do not say which formula it was.
        raise FormulaError(f"cannot convert the formula {latex.strip()}: {type(error).__name__} {error}") from error
    if _LEFT_OVER.search(shown):
        raise FormulaError(f"there is something in the formula {latex.strip()} that cannot be converted")
    return shown


class PageRenderer(IPythonRenderer):
    """Markdown as HTML: formulas, links between pages, and anchors in lower case too.

    Args:
        name: of the notebook, its path below the folder of notebooks without the suffix.
        pages: names of all notebooks that the report holds.
        folder: of the notebook.
        target: folder of the page.
    """

    def __init__(self, *, name: str, pages: Collection[str], folder: Path, target: Path, **options: Any) -> None:
        super().__init__(escape=False, path=str(folder), embed_images=True, **options)
        self.name, self.pages, self.folder, self.target = name, pages, folder, target

    def block_math(self, body: str) -> str:
        """A formula on a line of its own."""
        return _formula(body, block=True)

    def inline_math(self, body: str) -> str:
        """A formula in running text."""
        return _formula(body)

    def latex_environment(self, name: str, body: str) -> str:
        """A formula that came as an environment, without dollars."""
        return _formula(rf"\begin{{{name}}}{body}\end{{{name}}}", block=True)

    def heading(self, text: str, level: int, **attributes: Any) -> str:
        """A heading. JupyterLab's anchors keep the heading's case, other places link in lower case: both work here."""
        html = super().heading(text, level, **attributes)
        found = re.search(r' id="([^"]+)"', html)
        if found is None or found[1] == found[1].lower():
            return html
        return f'<a class="lower-case-anchor" id="{found[1].lower()}"></a>{html}'

    def link(self, text: str, url: str, title: str | None = None) -> str:
        """A link, turned to the other notebook's page, or to the file where it is from here."""
        return super().link(text, self.destination(url), title)

    def destination(self, url: str) -> str:
        """Where a link of the notebook leads from its page."""
        path, hash_sign, fragment = url.partition("#")
        if not path or re.match(r"[a-z][a-z0-9+.-]*:|/", path, re.IGNORECASE):
            return url
        here = posixpath.dirname(self.name)
        other = posixpath.normpath(posixpath.join(here, path.removesuffix(".ipynb")))
        if path.endswith(".ipynb") and other in self.pages:
            moved = posixpath.relpath(f"{other}.html", here or ".")
        else:
            moved = Path(os.path.relpath(self.folder / path, self.target)).as_posix()
        return f"{moved}{hash_sign}{fragment}"


class PageExporter(HTMLExporter):
    """nbconvert's page, without anything that would be fetched.

    Args:
        template: folder among the templates: "notebook" or "slides".
        renderer_options: for :class:`PageRenderer`.
    """

    def __init__(self, template: str, renderer_options: dict[str, Any], **options: Any) -> None:
        config = Config({"NbConvertBase": {"display_data_priority": _PRIORITY}})
        # The one is for templates as folders, the other for what they share.
        folders = {"extra_template_basedirs": [str(TEMPLATES)], "extra_template_paths": [str(TEMPLATES)]}
        super().__init__(config=config, template_name=template, **folders, **options)
        self.renderer_options = renderer_options
        self.register_filter("latex_block", _latex_output)

    @pass_context
    def markdown2html(self, context: Any, source: str) -> str:
        """The filter that the template uses on Markdown, in cells and in outputs."""
        attachments = context.get("cell", {}).get("attachments", {})
        return str(MarkdownWithMath(PageRenderer(attachments=attachments, **self.renderer_options)).render(source))


def page(notebook: NotebookNode, *, name: str, pages: Collection[str], folder: Path, target: Path) -> str:
    """The notebook's HTML page.

    Args:
        notebook: executed.
        name: its path below the folder of notebooks, without the suffix.
        pages: names of all notebooks in the report; links between them become links between pages.
        folder: where the notebook's own links and pictures start from.
        target: folder that the page will lie in.
    """
    exporter = PageExporter("notebook", {"name": name, "pages": pages, "folder": folder, "target": target})
    home = posixpath.relpath("index.html", posixpath.dirname(name) or ".")
    html, _ = exporter.from_notebook_node(notebook, {"metadata": {"name": name}, "report_home": home})
    return str(html)


def _formula(latex: str, *, block: bool = False) -> str:
    try:
        return mathml(latex, block=block)
    except FormulaError:
        # A reader can still make something of the source; the rest of the report must not fail for it.
        return f'<code class="formula">{escape(latex)}</code>'


def _latex_output(text: str) -> str:
    return _formula(text.strip().strip("$"), block=True)
