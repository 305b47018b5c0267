"""Judging the prediction of a message, alike for every kernel."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from helpers.atlas import records
from helpers.exercises.exercise import UnsolvedError, WrongError

HOW = (
    "Give the whole message, or enough of its beginning (12 characters or more) to tell it from the function's others; "
    '`""` if the call is accepted.'
)
_FEWEST = 12


def judge_predictions(
    predictions: Mapping[str, str], reasons: Mapping[str, str], say: Callable[[str], str], function: str
) -> None:
    """Compare predicted messages with those that come.

    Args:
        predictions: by the letter of the situation; ``...`` where there is none yet.
        reasons: by letter, why the message is that one.
        say: makes the message of a situation, empty where the call is accepted.
        function: that is called.

    Raises:
        UnsolvedError: if nothing is predicted yet.
        WrongError: at the first prediction that is not right.
    """
    if not isinstance(predictions, Mapping):
        keys = ", ".join(reasons)
        raise WrongError(f"what is asked for is a dict with the keys {keys}, not a {type(predictions).__name__}")
    if all(predictions.get(letter, ...) is ... for letter in reasons):
        raise UnsolvedError
    for letter, reason in reasons.items():
        predicted, said = predictions.get(letter, ...), say(letter)
        if predicted is ...:
            raise WrongError(f"{letter} is still open; all before it are right")
        if (wrong := _difference(predicted, said, function)) is not None:
            raise WrongError(f"{letter}: you predicted {predicted!r}, the call gave {said!r}: {wrong or reason}")


def _difference(predicted: object, said: str, function: str) -> str | None:
    """None for the message or enough of its beginning, with the error's class before it or not; else a remark."""
    if not isinstance(predicted, str):
        return ""
    predicted = re.sub(r"^\w+Error: ", "", predicted)
    if predicted == said:
        return None
    if len(predicted) >= _FEWEST and said.startswith(predicted):
        others = _others_that_begin(predicted, said, function)
        return f"right so far, but other messages begin like that too: {others[0]!r}" if others else None
    if predicted and predicted.replace("`", "") in said.replace("`", ""):
        return "your words are in it, but they have to be its beginning, to the letter and long enough"
    return ""


def _others_that_begin(predicted: str, said: str, function: str) -> list[str]:
    entries = [entry for entry in records().values() if entry.function == function]
    others = {entry.example for entry in entries if not entry.pattern.fullmatch(said)}
    return sorted(other for other in others if other.startswith(predicted))
