"""The atlas: one record for every guard and argument, and a sample call for every public function.

A module in this folder named after a kernel holds that kernel's ``SPECS`` and ``RECORDS``; adding the module is all
that is needed for them to be found.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from helpers.atlas.record import Record, Spec

__all__ = ["Record", "Spec", "record", "records", "spec", "specs"]


@cache
def _modules() -> tuple[object, ...]:
    names = sorted(
        info.name for info in pkgutil.iter_modules(__path__) if info.name not in ("__main__", "changes", "record")
    )
    return tuple(importlib.import_module(f"{__name__}.{name}") for name in names)


@cache
def specs() -> dict[str, Spec]:
    """Every sample call, by public function."""
    return {spec.function: spec for module in _modules() for spec in module.SPECS}  # type: ignore[attr-defined]


@cache
def records() -> dict[str, Record]:
    """Every record, by id, kernel by kernel in the order of the checks."""
    found: dict[str, Record] = {}
    for module in _modules():
        for entry in module.RECORDS:  # type: ignore[attr-defined]
            if entry.id in found:
                raise ValueError(f"two records are called {entry.id}")
            found[entry.id] = entry
    return found


def spec(function: str) -> Spec:
    """The sample call of a public function."""
    if function not in specs():
        raise KeyError(f"no sample call for {function}; there are {', '.join(specs())}")
    return specs()[function]


def record(id: str) -> Record:
    """The record with this id."""
    if id not in records():
        raise KeyError(f"no record {id}; see helpers.atlas.records()")
    return records()[id]
