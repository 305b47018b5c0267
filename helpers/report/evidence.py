"""What the notebooks saw of each record, drawn together from their ledgers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from helpers.atlas import Record, records, spec
from helpers.report.jobs import Result

REPRODUCED = "reproduced"
NOT_RUN = "not run"
DISAGREES = "disagrees"


@dataclass(frozen=True)
class Verdict:
    """A record, and how much of it was seen.

    Attributes:
        id: of the record.
        kernel: folder of the kernel.
        function: public function that refuses.
        error: name of the exception class.
        message: the exact message.
        meaning: what it says, in a sentence or two.
        notebook: stem of the notebook that explains it.
        section: anchor there.
        verdict: "reproduced", "not run", or "disagrees" when some notebook saw something else.
        refusal: how it was provoked: "real" if every tensor of some refused call had memory on a device of this
            machine, "stand-in" if none did so, None if it was not run.
        fix: how the fix was verified: "real" (a GPU), "interpreter" (the CPU), None if it was not.
        relative_error: of the fixed call's outputs, the largest that was seen; 0 means equal bit for bit.
        seen_in: notebooks that provoked it.
        complaint: what was seen instead, where it disagrees.
    """

    id: str
    kernel: str
    function: str
    error: str
    message: str
    meaning: str
    notebook: str
    section: str
    verdict: str = NOT_RUN
    refusal: str | None = None
    fix: str | None = None
    relative_error: float | None = None
    seen_in: tuple[str, ...] = ()
    complaint: str = ""


def verdicts(results: Iterable[Result], atlas: Mapping[str, Record] | None = None) -> list[Verdict]:
    """A verdict for every record, those that were not run included.

    Args:
        results: of the notebooks.
        atlas: records by id. Left out, all of them.
    """
    seen: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for result in results:
        for entry in result.ledger:
            seen.setdefault(entry["record"], []).append((result.name, entry))
    return [_verdict(record, seen.get(record.id, [])) for record in (atlas or records()).values()]


def counts(found: Iterable[Verdict]) -> dict[str, int]:
    """How many records there are of each kind."""
    found = list(found)
    kinds = Counter(item.verdict for item in found)
    refusals = Counter(item.refusal for item in found)
    fixes = Counter(item.fix for item in found)
    return {
        "records": len(found),
        "refused_real": refusals["real"],
        "refused_stand_in": refusals["stand-in"],
        "fixed_real": fixes["real"],
        "fixed_interpreter": fixes["interpreter"],
        "not_run": kinds[NOT_RUN],
        "disagree": kinds[DISAGREES],
    }


def _verdict(record: Record, seen: list[tuple[str, dict[str, Any]]]) -> Verdict:
    verdict = Verdict(
        id=record.id,
        kernel=spec(record.function).kernel,
        function=record.function,
        error=record.error,
        message=record.example,
        meaning=record.meaning,
        notebook=spec(record.function).notebook,
        section=record.section,
        seen_in=tuple(dict.fromkeys(name for name, _ in seen)),
    )
    if not seen:
        return verdict
    strangers = [(name, entry["raised"]) for name, entry in seen if not _agrees(record, entry["raised"])]
    if strangers:
        complaint = "; ".join(f"{name} saw {raised}" for name, raised in strangers)
        return replace(verdict, verdict=DISAGREES, complaint=complaint)
    # All saw the same refusal, so the strongest evidence among them holds.
    fixes = [entry for _, entry in seen if entry.get("fixed")]
    return replace(
        verdict,
        verdict=REPRODUCED,
        refusal=_strongest("real", "stand-in", [entry["how"] for _, entry in seen]),
        fix=_strongest("real", "interpreter", [entry["fixed_how"] for entry in fixes]),
        relative_error=max((entry["error"] for entry in fixes), default=None),
    )


def _agrees(record: Record, raised: str) -> bool:
    """Whether a refusal has the record's class and words; its fills, such as the devices, may be others."""
    error, _, message = raised.partition(": ")
    return error == record.error and record.pattern.fullmatch(message) is not None


def _strongest(strong: str, weak: str, found: list[str]) -> str | None:
    if not found:
        return None
    return strong if strong in found else weak
