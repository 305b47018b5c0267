"""Which notebooks are meant."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class UsageError(Exception):
    """The command line asks for something that does not exist."""


def select(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    """Notebooks by name, in alphabetical order, or those that are named, in that order.

    Args:
        folder: where they are.
        names: of notebooks, with or without the suffix; none for all.
    """
    found = {
        path.relative_to(folder).with_suffix("").as_posix(): path.resolve()
        for path in sorted(folder.rglob("*.ipynb"))
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    }
    if not found:
        raise UsageError(f"there are no notebooks in {folder}")
    wanted = [name.removesuffix(".ipynb") for name in names] or list(found)
    missing = [name for name in wanted if name not in found]
    if missing:
        raise UsageError(f"there is no notebook {', '.join(missing)}. There are: {', '.join(found)}")
    return {name: found[name] for name in dict.fromkeys(wanted)}
