"""`clary logs JOB`: print a job's log, whole or filtered, to its end or as it grows.

The service filters by host, rank, attempt and time. `--grep` is matched in this process: a user's regular expression
can take for ever on one line, and in the service it would delay every agent's heartbeat; here Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from datetime import UTC, datetime
from typing import Any

from clary.base.errors import ClaryError, Fault
from clary.cli.connection import Connection, connect
from clary.cli.health_words import has_colours
from clary.cli.moments import moment_ms
from clary.cli.patience import PatientConnection
from clary.cli.terminal_text import ended_colours
from clary.cli.training_words import progress_text

POLL_S = 0.3
PROGRESS_S = 5.0  # between two lines on progress
LATE_MS = 1000  # a line has the time of its printing, and may arrive this much later
COLOURS = ("36", "33", "35", "32", "34", "31")


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("logs", help="print a job's log")
    parser.add_argument("job", metavar="JOB", help="name of a training job")
    parser.add_argument(
        "-f", "--follow", action="store_true", help="go on until the job has ended, or the time of --until has passed"
    )
    parser.add_argument("--host", metavar="algo-N", help="of this host only")
    parser.add_argument("--rank", type=int, help="of this rank only")
    parser.add_argument("--attempt", type=int, help="of this attempt only")
    parser.add_argument(
        "--since",
        type=moment_ms,
        metavar="WHEN",
        help="from this time on: 10m, 2h, 1d (ago) or an ISO time; without a zone, this machine's",
    )
    parser.add_argument("--until", type=moment_ms, metavar="WHEN", help="before this time, in the same forms")
    parser.add_argument(
        "--grep", type=_pattern, metavar="PATTERN", help="lines in which this regular expression is found, only"
    )
    parser.add_argument(
        "--timestamps", action="store_true", help="begin lines with their time in this machine's zone, as ISO time"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object a line: host, rank, at_ms, text")
    parser.add_argument(
        "--progress", action="store_true", help="with --follow, say now and then on stderr how far the training is"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print lines in the order of their times; with --follow, until no further matching line can arrive.

    Raises: ClaryError (fault USER).
    """
    if options.progress and not options.follow:
        raise ClaryError(f"--progress belongs to --follow: clary logs {options.job} -f --progress", fault=Fault.USER)
    if options.since is not None and options.until is not None and options.since >= options.until:
        raise ClaryError("--since must be a time before --until", fault=Fault.USER)
    connection = PatientConnection(connect()) if options.follow else connect()
    tokens: dict[str, str] = {}
    held: list[dict[str, Any]] = []  # lines held back, as earlier lines may still arrive
    progress = _ProgressLines(connection, options.job) if options.progress else None
    has_lines = False
    while True:
        # Computed before the page is read: a line that arrives after the page must not be missed.
        has_passed = options.until is not None and time.time() * 1000 >= options.until + LATE_MS
        page = _page(connection, options, tokens)
        tokens = page["tokens"]
        sure_until_ms = page["sure_until_ms"]
        has_lines = has_lines or bool(page["lines"])
        lines = [line for line in page["lines"] if options.grep is None or options.grep.search(line["text"])]
        held = sorted(held + lines, key=lambda line: int(line["at_ms"]))
        num_sure = sum(sure_until_ms is None or line["at_ms"] <= sure_until_ms for line in held)
        for line in held[:num_sure]:
            print(json.dumps(line) if options.json else _text(line, options), flush=True)
        held = held[num_sure:]
        if sure_until_ms is not None:
            continue
        if not options.follow or page["is_over"] or has_passed:
            within = "" if options.since is None and options.until is None else " within this time"
            if options.rank is not None and not has_lines:  # the service does not know which ranks a program has
                print(
                    f"clary: no line of rank {options.rank} was found in the log of {options.job}{within}",
                    file=sys.stderr,
                )
            return 0
        if progress is not None:
            progress.say()
        time.sleep(POLL_S)


class _ProgressLines:
    """Prints the progress of a training when it has changed."""

    def __init__(self, connection: Connection | PatientConnection, job: str) -> None:
        self._connection = connection
        self._job = job
        self._next_s = 0.0
        self._said: Any = None

    def say(self) -> None:
        """Print a line if one is due."""
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + PROGRESS_S
        progress = self._connection.job_page(self._job).get("progress")
        if progress and progress["done"] != self._said:
            self._said = progress["done"]
            print(f"{self._job}: {progress_text(progress)}", file=sys.stderr, flush=True)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from None


def _page(
    connection: Connection | PatientConnection, options: argparse.Namespace, tokens: dict[str, str]
) -> dict[str, Any]:
    query = {f"after.{stream}": token for stream, token in tokens.items()}
    wanted = {
        "host": options.host,
        "rank": options.rank,
        "attempt": options.attempt,
        "since_ms": options.since,
        "until_ms": options.until,
    }
    query |= {name: str(value) for name, value in wanted.items() if value not in (None, "")}
    return connection.job_page(options.job, "logs", query)


def _text(line: dict[str, Any], options: argparse.Namespace) -> str:
    prefix = line["host"]
    if has_colours(sys.stdout):
        colour = COLOURS[(int(line["host"].rpartition("-")[2]) - 1) % len(COLOURS)]
        prefix = f"\x1b[{colour}m{prefix}\x1b[0m"
    if options.timestamps:
        moment = datetime.fromtimestamp(line["at_ms"] / 1000, UTC).astimezone()
        prefix = f"{moment.isoformat(timespec='milliseconds')} {prefix}"
    text = ended_colours(line["text"]) if sys.stdout.isatty() else line["text"]
    return f"{prefix} | {text}"
