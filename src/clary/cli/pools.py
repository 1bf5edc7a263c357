"""`clary pools`: list and release hosts that are kept after their jobs (KeepAlivePeriodInSeconds)."""

from __future__ import annotations

import argparse
import json
from typing import Any

from clary.cli.connection import Connection, connect
from clary.cli.tables import duration, table

MAX_RESULTS = 100  # maximum of one ListTrainingJobs request
LIVE = ("Available", "InUse")


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("pools", help="list warm pools, or end one")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_list)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    end = actions.add_parser("end", help="release the hosts kept after a job, or do not keep those of a running job")
    end.add_argument("job", metavar="JOB", help="name of a training job")
    end.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
    end.set_defaults(run=run_end)


def run_list(options: argparse.Namespace) -> int:
    """Print one line for each warm pool."""
    connection = connect()
    pools = [item for status in LIVE for item in _jobs_with(connection, status)]
    if options.json:
        print(json.dumps(pools, indent=2))
        return 0
    if not pools:
        print("no warm pools: jobs with KeepAlivePeriodInSeconds leave one")
        return 0
    rows = []
    for item in pools:
        pool = connection.job_page(item["TrainingJobName"])["warm_pool"]
        if pool is not None:
            rows.append((item["TrainingJobName"], item["WarmPoolStatus"]["Status"], pool_line(pool)))
    print(table(("JOB", "STATUS", ""), rows))
    return 0


def run_end(options: argparse.Namespace) -> int:
    """Set the keep-alive period of a job's pool to 0."""
    keep_alive = {"KeepAlivePeriodInSeconds": 0}
    connect().call("UpdateTrainingJob", {"TrainingJobName": options.job, "ResourceConfig": keep_alive})
    if options.json:
        print(json.dumps({"TrainingJobName": options.job, **keep_alive}, indent=2))
        return 0
    print(f"{options.job}: its hosts are not kept any longer")
    return 0


def pool_line(pool: dict[str, Any]) -> str:
    """Return one line on a job's warm pool, from the service's page of the job."""
    retained = f"{duration(pool['retained_s'])} kept"
    match pool["status"]:
        case "Available":
            left_s = max(0.0, pool["keep_alive_s"] - pool["retained_s"])
            return f"Available: {retained}, {duration(left_s)} left for a matching job"
        case "Reused":
            return f"Reused by {pool['reused_by']} after {duration(pool['retained_s'])}"
        case "Terminated":
            return f"Terminated: {retained}" + (f"; {pool['reason']}" if pool["reason"] else "")
        case _:
            period = duration(pool["keep_alive_s"])
            return f"InUse: {f'kept for {period} after the job' if pool['keep_alive_s'] else 'ends with the job'}"


def _jobs_with(connection: Connection, status: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    parameters: dict[str, Any] = {"WarmPoolStatusEquals": status, "MaxResults": MAX_RESULTS}
    while True:
        answer = connection.call("ListTrainingJobs", parameters)
        found += answer["TrainingJobSummaries"]
        if not answer.get("NextToken"):
            return found
        parameters["NextToken"] = answer["NextToken"]
