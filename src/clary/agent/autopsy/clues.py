"""Clues to a failure that the processes themselves left, gathered when the program has ended.

Where: `wiring` reads the records that ranks leave (`launchers.shims.clary_rank`), `error_scanner` finds tracebacks in
output for processes that leave no record; `program_end` brings both together. The service interprets the clues. The
program can write these records, so only their path and size are trusted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from clary.agent.small_files import names_in, read_start
from clary.contract.agent_protocol import MAX_CLUE_CHARACTERS, Clue

MAX_RECORDS = 256  # per host
MAX_RECORD_BYTES = 16 * 1024


def read_records(root: Path, parts: Sequence[str]) -> tuple[Clue, ...]:
    """Return the readable clues in the folder `parts` below `root`.

    Args:
        root: folder that the program may write to.
        parts: names of the folders that lead to the records; a link in place of one of them is not followed.
    """
    names = sorted(name for name in names_in(root, parts) if name.endswith(".json"))[:MAX_RECORDS]
    found = (_parse(read_start(root, (*parts, name), max_bytes=MAX_RECORD_BYTES)) for name in names)
    return tuple(clue for clue in found if clue is not None)


def merge(records: Iterable[Clue], scanned: Iterable[Clue]) -> tuple[Clue, ...]:
    """Return the earliest clue of each rank; a record takes precedence over a line of output."""
    by_rank: dict[int | None, Clue] = {}
    for clue in sorted(scanned, key=lambda clue: clue.at):
        by_rank.setdefault(clue.rank, clue)
    recorded: dict[int | None, Clue] = {}
    for clue in sorted(records, key=lambda clue: clue.at):
        recorded.setdefault(clue.rank, clue)
    merged = {**by_rank, **recorded}
    return tuple(sorted(merged.values(), key=lambda clue: clue.at))


def bounded(clues: Iterable[Clue], *, begin: datetime, end: datetime) -> tuple[Clue, ...]:
    """Return the clues, with their times clamped to the run of the program from `begin` to `end`."""
    return tuple(replace(clue, at=min(max(clue.at, begin), end)) for clue in clues)


def _parse(data: bytes | None) -> Clue | None:
    try:
        record = json.loads(data or b"")
        rank, at, text = record["rank"], record["at"], record["text"]
        if not (rank is None or (type(rank) is int and 0 <= rank < 1 << 31)) or not isinstance(text, str):
            return None
        if type(at) not in (int, float) or not math.isfinite(at):
            return None
        return Clue(
            rank=rank, at=datetime.fromtimestamp(at, timezone.utc), text=text.strip()[:MAX_CLUE_CHARACTERS] or "error"
        )
    except (ValueError, KeyError, TypeError, OverflowError, OSError, RecursionError):
        return None
