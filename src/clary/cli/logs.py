"""`clary logs JOB`: print a job's log, of one host or rank, to its end or as it grows."""

from __future__ import annotations

import argparse
import sys
import time
from datetime import UTC, datetime
from typing import Any

from clary.cli.connection import Connection, connect

POLL_S = 0.3
COLOURS = ("36", "33", "35", "32", "34", "31")


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("logs", help="print a job's log")
    parser.add_argument("job")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job has ended")
    parser.add_argument("--host", metavar="algo-N", help="of this host only")
    parser.add_argument("--rank", type=int, help="of this rank only")
    parser.add_argument("--timestamps", action="store_true", help="begin lines with their time")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print lines in the order of their times; with --follow, until the job has ended and every line is out."""
    connection = connect()
    tokens: dict[str, str] = {}
    held: list[dict[str, Any]] = []  # lines before which others may still come
    while True:
        page = _page(connection, options, tokens)
        tokens = page["tokens"]
        sure_until_ms = page["sure_until_ms"]
        held = sorted(held + page["lines"], key=lambda line: int(line["at_ms"]))
        num_sure = sum(sure_until_ms is None or line["at_ms"] <= sure_until_ms for line in held)
        for line in held[:num_sure]:
            print(_text(line, options), flush=True)
        held = held[num_sure:]
        if sure_until_ms is not None:
            continue
        if not options.follow or page["is_over"]:
            return 0
        time.sleep(POLL_S)


def _page(connection: Connection, options: argparse.Namespace, tokens: dict[str, str]) -> dict[str, Any]:
    query = {f"after.{stream}": token for stream, token in tokens.items()}
    if options.host:
        query["host"] = options.host
    if options.rank is not None:
        query["rank"] = str(options.rank)
    return connection.job_page(options.job, "logs", query)


def _text(line: dict[str, Any], options: argparse.Namespace) -> str:
    prefix = line["host"]
    if sys.stdout.isatty():
        colour = COLOURS[(int(line["host"].rpartition("-")[2]) - 1) % len(COLOURS)]
        prefix = f"\x1b[{colour}m{prefix}\x1b[0m"
    if options.timestamps:
        moment = datetime.fromtimestamp(line["at_ms"] / 1000, UTC)
        prefix = f"{moment.strftime('%H:%M:%S.%f')[:-3]} {prefix}"
    return f"{prefix} | {line['text']}"
