"""`clary checkpoints JOB`: which checkpoint sets are in S3; `clary checkpoints verify JOB`: whether they are whole."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from typing import Any

from clary.base.errors import ClaryError, Fault
from clary.cli.checkpoint_words import (
    SET_HEADER,
    count,
    doubt_lines,
    finding_lines,
    is_as_stored,
    mirror_lines,
    printable,
    set_row,
    size,
    verdict_line,
)
from clary.cli.connection import Connection, connect
from clary.cli.tables import table
from clary.cli.terminal_text import draw_over

VERIFY = "verify"


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "checkpoints",
        help="list a job's checkpoint sets in S3, or read and verify every file of them",
        usage="clary checkpoints [-h] [--host algo-N] [--set N] [--json] [verify] JOB",
    )
    # Not a subcommand: a job may be called `verify`.
    parser.add_argument("words", nargs="+", metavar="JOB", help="name of the job; `verify JOB` reads every file")
    parser.add_argument("--host", metavar="algo-N", help="verify this host's set only")
    parser.add_argument("--set", type=_set_number, metavar="N", help="verify set N; else the newest of each host")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the sets, or the findings of a verification; return 0 only if every verified file is as it was stored.

    Raises: ClaryError (fault USER).
    """
    words = options.words
    if len(words) == 2 and words[0] == VERIFY:
        return _verify(connect(), words[1], options)
    if len(words) != 1:
        raise ClaryError(f"expected JOB or {VERIFY} JOB, got {' '.join(words)!a}", fault=Fault.USER)
    if options.host is not None or options.set is not None:
        raise ClaryError(f"--host and --set belong to: clary checkpoints {VERIFY} {words[0]}", fault=Fault.USER)
    page = connect().job_page(words[0], "checkpoints")
    print(json.dumps(page, indent=2) if options.json else listing(words[0], page, now=datetime.now(UTC)))
    return 0


def listing(job: str, page: dict[str, Any], *, now: datetime) -> str:
    """Return the text that `clary checkpoints JOB` prints.

    Args:
        job: name of the job.
        page: the service's answer, with sets and hosts.
        now: time from which ages count.
    """
    lines = []
    if page["sets"]:
        rows = [set_row(entry, job_arn=page["job_arn"], now=now) for entry in page["sets"]]
        lines.append(table(SET_HEADER, rows))
    else:
        lines.append(f"no set of checkpoints of {job} below {printable(page['uri'])} yet")
    if page["num_left_out"]:
        lines.append(f"and {count(page['num_left_out'], 'older set')}")
    lines += mirror_lines(page["hosts"], now=now)
    return "\n".join(lines)


def _verify(connection: Connection, job: str, options: argparse.Namespace) -> int:
    query = {VERIFY: "1"}
    query |= {"host": options.host} if options.host is not None else {}
    query |= {"set": str(options.set)} if options.set is not None else {}
    shows_progress = sys.stderr.isatty()
    report = connection.job_page(job, "checkpoints", query)
    while not report["is_done"]:
        if shows_progress:
            progress = f"{size(report['bytes_read'])} read of at least {size(report['size_bytes'])}"
            draw_over(sys.stderr, progress)
        # The service answers when the verification has ended, or after a few seconds.
        report = connection.job_page(job, "checkpoints", {VERIFY: "1", "run": report["run"]})
    if shows_progress:
        draw_over(sys.stderr, "")
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        print("\n".join([*finding_lines(report), *doubt_lines(report), verdict_line(report)]))
    return 0 if is_as_stored(report) else 1


def _set_number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not the number of a set")
    return int(text)
