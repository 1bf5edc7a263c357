"""Folders of a run, and the placeholders for them in a table's arguments."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CLARY_PYTHON = ROOT / ".venv/bin/python"
CLIENT_PYTHON = ROOT / ".venvs/sdk2/bin/python"


@dataclass(frozen=True)
class Places:
    """Folders of one run."""

    source: str
    data: str
    model: str
    checkpoints: str

    def fill(self, text: Any) -> str:
        """Return an argument with its marks replaced by folders."""
        filled = str(text)
        for mark in ("source", "data", "model", "checkpoints"):
            filled = filled.replace(f"{{{mark}}}", getattr(self, mark))
        return filled


def python_of(environment: str, own: Path) -> Path:
    """Return the interpreter of an environment: one of those made for scripts, else one of the project's.

    Raises: LookupError naming both places.
    """
    places = [own / environment / "bin/python", ROOT / ".venvs" / environment / "bin/python"]
    for place in places:
        if place.exists():
            return place
    raise LookupError(f"no environment {environment}: looked at {places[0]} and {places[1]}")
