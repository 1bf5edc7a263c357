"""`clary metrics JOB`: measurements of the job's hosts, or training metrics of its program."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any, TextIO

from clary.base.errors import ClaryError, Fault
from clary.cli.connection import connect
from clary.cli.contexts import require_local
from clary.cli.metric_words import metrics_text
from clary.cli.moments import moment_ms
from clary.cli.training_words import training_text

# Series that a table shows by default; JSON has all series.
SHOWN = (
    "host/cpu_percent,host/memory_bytes,host/network_*,host/disk_*_bytes_s,gpu-*/utilisation_percent,"
    "gpu-*/memory_used_bytes,rank-*/cpu_percent,rank-*/memory_bytes"
)
ALL = "*"


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("metrics", help="show what a job's hosts measure: processors, memory, network, GPUs")
    parser.add_argument("job", nargs="?", metavar="JOB", help="name of a training job")
    parser.add_argument("--host", metavar="algo-N", help="of this host only")
    parser.add_argument(
        "--names", metavar="PATTERNS", help="series to show, such as host/*,rank-*/cpu_percent; * shows all of them"
    )
    parser.add_argument(
        "--since",
        type=moment_ms,
        metavar="WHEN",
        help="from this time on: 10m, 2h, 1d (ago) or an ISO time; else the job's last 15 minutes",
    )
    parser.add_argument(
        "--training", action="store_true", help="show what the program says of its training: losses, rates, progress"
    )
    parser.add_argument("--json", action="store_true", help="print JSON: least, greatest, mean, count, last by step")
    parser.add_argument("--token", action="store_true", help="print the token that opens /metrics for Prometheus")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the table. Raises: ClaryError (fault USER)."""
    if options.token:
        return _print_token(options)
    connection = connect()
    if options.job is None:
        raise ClaryError("expected the name of a job: clary metrics JOB", fault=Fault.USER)
    if options.training:
        if options.host is not None or options.names is not None or options.since is not None:
            raise ClaryError("--training shows the whole job: leave out --host, --names and --since", fault=Fault.USER)
        page = connection.job_page(options.job, "training")
        print(json.dumps(page, indent=2) if options.json else training_text(page))
        return 0
    query: dict[str, str | int] = {"names": options.names or (ALL if options.json else SHOWN)}
    if options.host is not None:
        query["host"] = options.host
    if options.since is not None:
        query["since_ms"] = options.since
        query["until_ms"] = max(int(time.time() * 1000), options.since + 1)
    page = connection.job_page(options.job, "series", query)
    if options.json:
        print(json.dumps(page, indent=2))
        return 0
    asked = None if options.names == ALL else options.names
    print(metrics_text(page, lines=draws_lines(sys.stdout), names=asked))
    return 0


def _print_token(options: argparse.Namespace) -> int:
    others = {
        "JOB": options.job,
        "--training": options.training or None,
        "--host": options.host,
        "--names": options.names,
        "--since": options.since,
    }
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise ClaryError(f"--token prints the token alone: leave out {', '.join(given)}", fault=Fault.USER)
    connection = connect()
    require_local(connection.settings, "metrics --token")  # the keys of a service elsewhere do not give it
    token = connection.secrets.metrics_token
    print(json.dumps({"token": token}, indent=2) if options.json else token)
    return 0


def draws_lines(stream: TextIO) -> bool:
    """Whether a stream is a terminal that shows spark lines."""
    encoding = (stream.encoding or "").lower().replace("-", "")
    return stream.isatty() and encoding == "utf8" and os.environ.get("TERM") != "dumb"
