"""`clary jobs`: list training jobs."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from typing import Any

from clary.cli.connection import Connection, connect
from clary.cli.tables import duration, table

MAX_RESULTS = 100  # of one ListTrainingJobs


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("jobs", help="list training jobs, newest first")
    statuses = ["InProgress", "Completed", "Failed", "Stopping", "Stopped"]
    parser.add_argument("--status", choices=statuses, help="those of this status only")
    parser.add_argument("-n", type=_count, default=20, metavar="N", help="how many (default 20)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print one line a job."""
    connection = connect()
    summaries = _newest(connection, options.n, options.status)
    for sentence in connection.get("state")["problems"]:
        print(f"clary: {sentence}", file=sys.stderr)
    if options.json:
        print(json.dumps(summaries, indent=2))
        return 0
    if not summaries:
        print("no training jobs yet")
        return 0
    now = datetime.now(UTC).timestamp()
    rows = [
        (
            item["TrainingJobName"],
            item["TrainingJobStatus"],
            item["SecondaryStatus"],
            f"{duration(now - item['CreationTime'])} ago",
            duration(item.get("TrainingEndTime", now) - item["CreationTime"]),
        )
        for item in summaries
    ]
    print(table(("NAME", "STATUS", "PHASE", "CREATED", "TOOK"), rows))
    return 0


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return int(text)


def _newest(connection: Connection, num_wanted: int, status: str | None) -> list[dict[str, Any]]:
    """Return the newest jobs, page by page."""
    summaries: list[dict[str, Any]] = []
    parameters: dict[str, Any] = {"StatusEquals": status} if status else {}
    while len(summaries) < num_wanted:
        parameters["MaxResults"] = min(num_wanted - len(summaries), MAX_RESULTS)
        answer = connection.call("ListTrainingJobs", parameters)
        summaries += answer["TrainingJobSummaries"]
        if not answer.get("NextToken"):
            break
        parameters["NextToken"] = answer["NextToken"]
    return summaries
