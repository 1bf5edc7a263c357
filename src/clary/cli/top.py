"""`clary top`: running and waiting jobs, refreshed on the screen.

Keys: j and k or the arrows choose a job, Enter shows or hides its hosts, q leaves. If stdout is a pipe, with --once, or
on a terminal that curses cannot draw on, one plain table is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import curses
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from clary.base.errors import ClaryError, WireError
from clary.cli.connection import Connection, connect
from clary.cli.tables import json_text, table, visible
from clary.cli.top_words import HEADER, SERIES, JobRow, count_words, job_row, moved, rows_with_hosts, screen

REFRESH_S = 2.0
KEY_WAIT_MS = 100
SPAN_MS = 60_000  # period of the series to read; their last value is shown
MAX_JOBS = 50  # jobs shown at once; each costs two requests for each refresh
# Jobs with hosts are shown first, then waiting jobs in the order of the queue, up to MAX_JOBS.
LIVE = ("Running", "Starting", "Stopping", "Queued")
ENTER = (10, 13, curses.KEY_ENTER)


class Screen(Protocol):
    """The methods of a curses window that this module calls."""

    def getch(self) -> int:
        """Return a key, or -1 on timeout."""

    def getmaxyx(self) -> tuple[int, int]:
        """Return lines and columns."""

    def erase(self) -> None:
        """Empty the screen."""

    def addnstr(self, line: int, column: int, text: str, count: int, attribute: int) -> None:
        """Write text on the screen, as curses does.

        Args:
            line: counted from the top, from 0.
            column: counted from the left, from 0.
            text: text to write.
            count: largest number of characters to write.
            attribute: curses attribute, such as A_BOLD.
        """

    def refresh(self) -> None:
        """Show the text written since the last refresh."""


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("top", help="watch jobs and their hosts; keys: j, k, Enter, q")
    parser.add_argument("--once", action="store_true", help="print one table with all hosts and end")
    parser.add_argument("--json", action="store_true", help="print JSON and end")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print once, or draw until q."""
    connection = connect()
    if options.json:
        rows, total = read_rows(connection)
        print(json_text([row.facts for row in rows]))
        if total > len(rows):
            print(f"clary: {count_words(len(rows), total)}; clary jobs --json lists all", file=sys.stderr)
    elif options.once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        print(plain(*read_rows(connection)))
    else:
        try:
            _require_drawable()
            # Again for each refresh: a restarted service may have another address.
            curses.wrapper(lambda window: watch(_prepared(window), lambda: read_rows(connection.again())))
        except curses.error as error:
            kind = f"{os.environ.get('TERM', '')!r}, of TERM"
            print(f"clary: one table alone: this terminal ({kind}) cannot be drawn on: {error}", file=sys.stderr)
            print(plain(*read_rows(connection)))
    return 0


def plain(rows: Sequence[JobRow], total: int) -> str:
    """Return the table of the given jobs with their hosts, and the number of all jobs if not all are given."""
    if not rows:
        return "no job runs or waits"
    cells = [cells for cells, _ in rows_with_hosts(rows, opened=frozenset(row.name for row in rows))]
    rest = f"\n{count_words(len(rows), total)}; clary jobs lists all" if total > len(rows) else ""
    return table(HEADER, cells) + rest


def read_rows(connection: Connection) -> tuple[list[JobRow], int]:
    """Return up to MAX_JOBS jobs that have not ended, by state as in `LIVE`, oldest first, and their total number."""
    names: dict[str, None] = {}  # a job that changes its state meanwhile is in both lists
    num_unnamed = 0
    for state in LIVE:
        page = connection.get("jobs", {"state": state, "order": "asc", "limit": MAX_JOBS})
        names.update(dict.fromkeys(job["name"] for job in page["jobs"]))
        num_unnamed += page["total"] - len(page["jobs"])
    total = len(names) + num_unnamed
    rows = []
    since_ms = int(time.time() * 1000) - SPAN_MS
    for name in list(names)[:MAX_JOBS]:
        try:
            facts = connection.job_page(name)
            series = connection.job_page(name, "series", {"names": SERIES, "since_ms": since_ms})
        except WireError as error:
            if error.code != "NotFound":
                raise
            total -= 1  # deleted meanwhile
            continue
        rows.append(job_row(facts, series))
    return rows, total


def watch(
    window: Screen, read: Callable[[], tuple[Sequence[JobRow], int]], *, clock: Callable[[], float] = time.monotonic
) -> None:
    """Draw until q is pressed. If the service does not answer, the first line says so, and the request is repeated.

    Args:
        window: window to draw on; its getch waits KEY_WAIT_MS at most.
        read: returns the shown jobs, and the number of all jobs.
        clock: returns the time in seconds.
    """
    rows: Sequence[JobRow] = []
    chosen, opened, head = "", frozenset[str](), ""
    next_read_s = clock()
    while True:
        if clock() >= next_read_s:
            try:
                rows, total = read()
                head = f"{count_words(len(rows), total)}   j/k choose, Enter hosts, q quit"
            except ClaryError as error:
                head = error.message
            next_read_s = clock() + REFRESH_S
            chosen = moved([row.name for row in rows], chosen, 0)
        _draw(window, rows, opened=opened, chosen=chosen, head=head)
        key = window.getch()
        names = [row.name for row in rows]
        if key in (ord("j"), curses.KEY_DOWN):
            chosen = moved(names, chosen, 1)
        elif key in (ord("k"), curses.KEY_UP):
            chosen = moved(names, chosen, -1)
        elif key in ENTER and chosen:
            opened ^= {chosen}
        elif key == ord("q"):
            return


def _draw(window: Screen, rows: Sequence[JobRow], *, opened: frozenset[str], chosen: str, head: str) -> None:
    height, width = window.getmaxyx()
    window.erase()
    lines = screen(rows, opened=opened, chosen=chosen, width=width - 1, height=height, head=head)
    for index, (line, is_chosen) in enumerate(lines):
        # The window may have become smaller meanwhile, and some letters are two columns wide.
        with contextlib.suppress(curses.error):
            window.addnstr(
                index, 0, visible(line), max(0, width - 1), curses.A_REVERSE if is_chosen else curses.A_NORMAL
            )
    window.refresh()


def _require_drawable() -> None:
    """Raise curses.error for a terminal that is unknown, or whose cursor cannot be moved."""
    curses.setupterm()
    if not curses.tigetstr("cup"):
        raise curses.error("it cannot move its cursor")


def _prepared(window: Any) -> Screen:
    with contextlib.suppress(curses.error):  # some terminals cannot hide the cursor
        curses.curs_set(0)
    window.timeout(KEY_WAIT_MS)
    prepared: Screen = window
    return prepared
