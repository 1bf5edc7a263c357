"""The peer of series: one table of SQLite with a row a value, durable as ours is."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

from clary.control.series.tables import SeriesTable

_CREATE = "CREATE TABLE points (series INTEGER, at INTEGER, value REAL, PRIMARY KEY (series, at)) WITHOUT ROWID"
_SELECT = (
    "SELECT series, at / :step, min(value), max(value), avg(value), count(*) FROM points"
    " WHERE series BETWEEN :first AND :last AND at >= :start AND at < :end GROUP BY series, at / :step"
)


class RowTable:
    """Rows of (series, at, value)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = sqlite3.connect(path, isolation_level=None)
        for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", _CREATE):
            self._connection.execute(statement)
        self._numbers: dict[tuple[str, str], int] = {}

    def append(self, round_of: Iterable[tuple[str, SeriesTable]]) -> None:
        """Store one batch a host in one transaction."""
        self._connection.execute("BEGIN IMMEDIATE")
        for host, table in round_of:
            for name, (values,) in table.columns.items():
                number = self._numbers.setdefault((host, name), len(self._numbers))
                rows = zip([number] * len(values), table.at_ms, values, strict=True)
                self._connection.executemany("INSERT INTO points VALUES (?, ?, ?)", rows)
        self._connection.execute("COMMIT")

    def query(self, series: Sequence[tuple[str, str]], *, start_ms: int, end_ms: int, step_ms: int) -> int:
        """Return how many points the series have."""
        num_points = 0
        for key in series:
            number = self._numbers[key]
            asked = {"step": step_ms, "first": number, "last": number, "start": start_ms, "end": end_ms}
            num_points += len(self._connection.execute(_SELECT, asked).fetchall())
        return num_points

    def size_bytes(self) -> int:
        """Return the size of the file, once everything is in it."""
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return self._path.stat().st_size

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
