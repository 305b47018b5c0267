"""Print every refusal as a Markdown table: ``python -m helpers.atlas > docs/errors.md``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from helpers.atlas import Record, records, spec

HEADER = """# Every refusal

All messages of all guards, in the order in which each function checks them. An ellipsis stands for what is filled in.
To look one up from a traceback, paste it into `python -m helpers.explain`. This page is generated from the records:
`python -m helpers.atlas > docs/errors.md`.
"""


def errors_page() -> str:
    """The page as Markdown, one table per public function."""
    parts = [HEADER]
    for function, group in groupby(records().values(), key=lambda entry: entry.function):
        entry_spec = spec(function)
        link = f"../notebooks/{entry_spec.notebook}.ipynb"
        parts.append(f"## `{function}`\n\nWalked through in [{entry_spec.notebook}]({link}).\n")
        parts.append("| message | argument | what it means | fix |\n|---|---|---|---|")
        parts += [f"| {' | '.join(row)} |" for row in _rows(group)]
        parts.append("")
    return "\n".join(parts)


def _rows(group: Iterator[Record]) -> Iterator[tuple[str, ...]]:
    for entry in group:
        yield tuple(
            text.replace("|", "\\|")
            for text in (f"`` {entry.outline} ``", f"`{entry.argument}`", entry.meaning, entry.fix)
        )


if __name__ == "__main__":
    print(errors_page(), end="")
