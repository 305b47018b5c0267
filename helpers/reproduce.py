"""Run a record: provoke the refusal, match it exactly, fix the call, compare the result with the reference."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tabulate import tabulate

from helpers import topology
from helpers.atlas import Record, record, records, spec
from helpers.calls import Call, relative_error, same_bits, snapshot
from kernels.guards import GuardError, interpreter

LEDGER_VARIABLE = "DEVICE_GUARDS_LEDGER"


class NotReproducedError(AssertionError):
    """A refusal that should have come did not, or came with other words, or the fix did not mend the call."""


@dataclass(frozen=True)
class Reproduction:
    """What was seen when a record was run.

    Attributes:
        record: id of the record.
        raised: class and message of the refusal.
        notes: what the exception said beyond its message.
        how: "real" if every tensor of the refused call had memory on a device of this machine, else "stand-in".
        fixed: whether the fix was verified against the reference.
        fixed_how: where the fixed call's numbers came from: "real" (a GPU) or "interpreter" (the CPU).
        error: relative error of the fixed call's outputs; 0 when they are equal bit for bit.
    """

    record: str
    raised: str
    notes: tuple[str, ...]
    how: str
    fixed: bool
    fixed_how: str
    error: float


def reproduce(id: str, *, seed: int = 0) -> Reproduction:
    """Provoke a record's refusal, then apply its fix and check the numbers.

    Args:
        id: the record's id.
        seed: of the sample call's random values.

    Raises:
        NotReproducedError: when anything is other than the record says.
    """
    entry = record(id)
    call = Call.valid(spec(entry.function), seed=seed)
    entry.provoke(call)
    before = snapshot(call.tensors)
    error = _refusal(entry, call)
    touched = [name for name, tensor in before.items() if not same_bits(tensor, call[name])]
    if touched:
        raise NotReproducedError(f"{id}: the refused call changed {', '.join(touched)}")
    how = "real" if call.real else "stand-in"
    fixed_how, deviation = _verify_fix(entry, call, seed)
    result = Reproduction(
        record=id,
        raised=f"{type(error).__name__}: {error}",
        notes=tuple(getattr(error, "__notes__", ())),
        how=how,
        fixed=True,
        fixed_how=fixed_how,
        error=deviation,
    )
    _write_ledger(asdict(result))
    return result


def reproduce_kernel(kernel: str) -> list[Reproduction]:
    """Run every record of a kernel, in the order of its checks."""
    return [reproduce(entry.id) for entry in records().values() if spec(entry.function).kernel == kernel]


def table(reproductions: list[Reproduction], width: int = 60) -> str:
    """The reproductions as text, one line each, the same on every machine.

    Args:
        reproductions: what to show.
        width: messages are cut to this many characters.
    """
    rows = [
        (item.record.partition(".")[2], _cut(item.raised.partition(": ")[2], width), "yes" if item.fixed else "no")
        for item in reproductions
    ]
    return tabulate(rows, headers=("guard / argument", "message", "fix verified"), tablefmt="simple")


@contextmanager
def refusal(message: str | None = None, *, of: str | None = None) -> Iterator[None]:
    """A cell that must be refused: fails when nothing is raised or the words differ, else prints them and goes on.

    Args:
        message: the exact message that is expected. Left out, the record's example is expected.
        of: id of the record that this reproduces, for the report.

    Raises:
        NotReproducedError: when no GuardError is raised, or another one.
    """
    expected = message if message is not None else record(of or "").example
    try:
        yield
    except GuardError as error:
        if str(error) != expected:
            raise NotReproducedError(f"expected the message\n  {expected}\nbut got\n  {error}") from error
        if of is not None and error.guard != record(of).guard:
            raise NotReproducedError(f"expected guard {record(of).guard}, but {error.guard} fired") from error
        how = "stand-in" if error.stand_ins else "real"
        print(refusal_text(error))
        print(f"[{how}]")
        _write_ledger({"record": of, "raised": f"{type(error).__name__}: {error}", "how": how})
    else:
        raise NotReproducedError(f"nothing was raised; expected\n  {expected}")


def refusal_text(error: GuardError) -> str:
    """A refusal as it is printed: class, message, notes, one to a line."""
    notes = getattr(error, "__notes__", ())
    return "\n".join([f"{type(error).__name__}: {error}", *(f"  {note}" for note in notes)])


def _refusal(entry: Record, call: Call) -> GuardError:
    try:
        with entry.context():
            call.run()
    except GuardError as error:
        if type(error).__name__ != entry.error or str(error) != entry.example:
            raise NotReproducedError(
                f"{entry.id}: expected\n  {entry.error}: {entry.example}\nbut got\n  {type(error).__name__}: {error}"
            ) from error
        if error.guard != entry.guard:
            raise NotReproducedError(f"{entry.id}: guard {error.guard} fired") from error
        return error
    raise NotReproducedError(f"{entry.id}: the call was accepted")


def _verify_fix(entry: Record, call: Call, seed: int) -> tuple[str, float]:
    """Repair the call and run it: for its guards alone where it holds stand-ins, and always for its numbers."""
    entry.repair(call)
    if not call.real:
        call.run()
        call = _rehearsal(entry, seed)
    if all(tensor.device == topology.CPU for tensor in call.tensors.values()):
        # Agreed, but on the CPU: numbers that are to count as a GPU's have to come from one, where there is one.
        call.move_all(topology.runnable())
    how = "interpreter" if topology.runnable() == topology.CPU else "real"
    deviation = run_against_reference(call)
    if deviation > call.spec.tolerance:
        raise NotReproducedError(f"{entry.id}: after the fix the result is off by {deviation:.2e}")
    return how, deviation


def _rehearsal(entry: Record, seed: int) -> Call:
    """The same fault and the same fix with every device standing for the one that can run kernels here."""
    call = Call.valid(spec(entry.function), on=topology.runnable(), seed=seed)
    call.home = call.other = topology.runnable()
    entry.provoke(call)
    entry.repair(call)
    call.move_all(topology.runnable())
    return call


def run_against_reference(call: Call) -> float:
    """Make a call whose tensors are real and return the largest relative error among its outputs."""
    expected = call.spec.expected(call.args)
    with interpreter(topology.runnable() == topology.CPU):
        returned = call.run()
    written = call.written(returned)
    if call.spec.tolerance == 0.0:
        return 0.0 if all(same_bits(written[name], expected[name]) for name in expected) else float("inf")
    return max(relative_error(written[name], expected[name]) for name in expected)


def _write_ledger(entry: dict[str, object]) -> None:
    """Leave word for the report, when one is being made."""
    path = os.environ.get(LEDGER_VARIABLE)
    if path:
        with Path(path).open("a", encoding="utf-8") as ledger:
            ledger.write(json.dumps(entry) + "\n")


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
