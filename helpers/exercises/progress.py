"""What a learner has done so far, kept on this machine and nowhere else."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from platformdirs import user_state_path

STATE_VARIABLE = "DEVICE_GUARDS_STATE"


@dataclass
class Entry:
    """Progress with one exercise.

    Attributes:
        solved: whether it has ever been solved.
        attempts: checks of something other than the stub, up to the first right one.
        hints: the furthest hint that was asked for.
    """

    solved: bool = False
    attempts: int = 0
    hints: int = 0


def state_file() -> Path:
    """Where progress is kept: the file that the environment names, else one in the user's state folder."""
    named = os.environ.get(STATE_VARIABLE)
    return Path(named) if named else user_state_path("device-guards") / "progress.json"


def load() -> dict[str, Entry]:
    """Progress by exercise. A file that is missing or cannot be understood counts as none."""
    try:
        stored = json.loads(state_file().read_text(encoding="utf-8"))
        return {id: Entry(**entry) for id, entry in stored.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def update(id: str, *, attempted: bool = False, solved: bool = False, hint: int = 0) -> None:
    """Note something. Where the file cannot be written, that is said and nothing else happens."""
    entries = load()
    entry = entries.setdefault(id, Entry())
    entry.attempts += attempted and not entry.solved
    entry.solved |= solved
    entry.hints = max(entry.hints, hint)
    try:
        _write(state_file(), json.dumps({id: asdict(entry) for id, entry in entries.items()}, indent=2))
    except OSError as error:
        print(f"(progress is not kept: {error.strerror})")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # In one step, so that two notebooks at once cannot leave half a file.
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        file.write(text)
    Path(file.name).replace(path)
