"""`clary jobs`: list training jobs."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from typing import Any

from clary.cli.connection import connect
from clary.cli.tables import duration, table


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("jobs", help="list training jobs, newest first")
    parser.add_argument("--status", choices=["InProgress", "Completed", "Failed", "Stopping", "Stopped"])
    parser.add_argument("-n", type=int, default=20, metavar="N", help="how many (default 20)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print one line a job."""
    parameters: dict[str, Any] = {"MaxResults": min(max(options.n, 1), 100)}
    if options.status:
        parameters["StatusEquals"] = options.status
    summaries = connect().call("ListTrainingJobs", parameters)["TrainingJobSummaries"]
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
