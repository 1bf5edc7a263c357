"""Columns, durations and JSON for people and their pipes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

SECONDS_PER_MINUTE = 60
SECONDS_PER_HOUR = 3600


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows below a header, columns aligned to the left and two spaces apart."""
    everything = [list(header), *[[visible(cell) for cell in row] for row in rows]]
    widths = [max(len(row[index]) for row in everything) for index in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in everything]
    return "\n".join(line.rstrip() for line in lines)


def visible(text: str) -> str:
    """Return a text with its control characters spelled out: programs name their metrics, and terminals obey codes."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def duration(seconds: float) -> str:
    """Return `12.3 s`, `4m 05s` or `2h 03m`."""
    tenths = round(seconds, 1)
    if tenths < SECONDS_PER_MINUTE:
        return f"{tenths:.1f} s"
    whole = round(seconds)
    if whole < SECONDS_PER_HOUR:
        return f"{whole // SECONDS_PER_MINUTE}m {whole % SECONDS_PER_MINUTE:02d}s"
    return f"{whole // SECONDS_PER_HOUR}h {whole % SECONDS_PER_HOUR // SECONDS_PER_MINUTE:02d}m"


def clock_time(moment: datetime) -> str:
    """Return a local time of day with its date."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def json_text(document: Any) -> str:
    """Return a document as JSON with indents; null for numbers that are not finite, which no JSON has a word for."""
    return json.dumps(json.loads(json.dumps(document), parse_constant=lambda _name: None), indent=2)
