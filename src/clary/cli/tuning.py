"""`clary tuning`: list tuning jobs; `clary tuning NAME`: show a tuning job's best trial, importance and trials."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from clary.base.errors import ClaryError, Fault
from clary.cli.connection import Connection, connect
from clary.cli.patience import PatientConnection
from clary.cli.tables import names_text, screen_width
from clary.cli.terminal_text import draw_lines
from clary.cli.tuning_words import IN_PROGRESS, list_text, trial_line, tuning_text

POLL_S = 2.0
EXIT_FAILED = 1
FAILED = "Failed"


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "tuning", help="list tuning jobs, or show one: best trial, importance of hyperparameters, trials"
    )
    parser.add_argument(
        "tuning_job", nargs="?", metavar="NAME", help="a tuning job; without NAME, the newest 100 are listed"
    )
    parser.add_argument(
        "-f", "--follow", action="store_true", help="show changes until it has ended; exit code 1 if it has failed"
    )
    parser.add_argument("--stop", action="store_true", help="start no further trial and stop those that run")
    parser.add_argument("--names", action="store_true", help="print only names, one per line")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the list, or one tuning job. Raises: ClaryError (fault USER)."""
    if options.tuning_job is None:
        if options.follow or options.stop:
            option = "--stop" if options.stop else "--follow"
            raise ClaryError(f"expected the name of a tuning job: clary tuning NAME {option}", fault=Fault.USER)
        _print_list(connect(), options)
        return 0
    if options.names:
        raise ClaryError("--names lists tuning jobs: leave out the name", fault=Fault.USER)
    connection = connect()
    if options.stop:
        connection.post(f"tuning/{quote(options.tuning_job, safe='')}/stop", {})
    if options.follow:
        page = _followed(PatientConnection(connection), options.tuning_job, is_quiet=options.json)
    else:
        page = _page(connection, options.tuning_job)
    if options.json:
        print(json.dumps(page, indent=2))
    elif not (options.follow and sys.stdout.isatty()):
        print(tuning_text(page, now=datetime.now(UTC), width=screen_width(sys.stdout)))
    return EXIT_FAILED if options.follow and page["status"] == FAILED else 0


def _print_list(connection: Connection, options: argparse.Namespace) -> None:
    rows = connection.get("tuning")["tuning_jobs"]
    if options.names:
        print(names_text([row["name"] for row in rows], is_json=options.json), end="")
    elif options.json:
        print(json.dumps(rows, indent=2))
    else:
        print(list_text(rows, now=datetime.now(UTC), width=screen_width(sys.stdout)))


def _page(connection: Connection | PatientConnection, name: str) -> dict[str, Any]:
    return connection.get(f"tuning/{quote(name, safe='')}")


def _followed(connection: PatientConnection, name: str, *, is_quiet: bool) -> dict[str, Any]:
    """Show a tuning job until it has ended; return its last page.

    A terminal shows the whole text anew each time; a pipe gets a line for each trial that ends.
    """
    told = _Screen() if sys.stdout.isatty() else _Lines()
    while True:
        page = _page(connection, name)
        if not is_quiet:
            told.show(page)
        if page["status"] not in IN_PROGRESS:
            return page
        time.sleep(POLL_S)


class _Screen:
    """The text of a tuning job on a terminal, redrawn in place; of a long text only the beginning is drawn."""

    def __init__(self) -> None:
        self._num_lines = 0

    def show(self, page: Mapping[str, Any]) -> None:
        """Draw a page; print the page of an ended job in full."""
        columns, rows = shutil.get_terminal_size()
        lines = tuning_text(page, now=datetime.now(UTC), width=columns).splitlines()
        if page["status"] in IN_PROGRESS and len(lines) >= rows:
            lines = [*lines[: rows - 2], f"... and {len(lines) - rows + 2} lines more"]
        draw_lines(sys.stdout, [line[:columns] for line in lines], self._num_lines)
        self._num_lines = len(lines)


class _Lines:
    """A line for each trial that ends, in the order of their ends."""

    def __init__(self) -> None:
        self._told: set[int] = set()

    def show(self, page: Mapping[str, Any]) -> None:
        """Print the trials that have ended since the previous page."""
        ended = [
            trial for trial in page["trials"] if trial["ended_at"] is not None and trial["number"] not in self._told
        ]
        for trial in sorted(ended, key=lambda one: (str(one["ended_at"]), int(one["number"]))):
            self._told.add(trial["number"])
            print(trial_line(trial, trial.get("metric", page["objective"]["metric"])), flush=True)
