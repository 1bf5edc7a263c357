"""`clary jobs`: list training jobs, with the reason why each queued job waits."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from clary.cli.connection import Connection, connect
from clary.cli.queue_words import waiting_brief
from clary.cli.tables import duration, names_text, screen_width, table

PAGE = 500  # jobs in one answer
STATES = ("Queued", "Starting", "Running", "Stopping", "Completed", "Failed", "Stopped")
HEADER: tuple[str, ...] = ("NAME", "STATUS", "PHASE", "CREATED", "TOOK", "WAITS FOR")
IN_PROGRESS = "InProgress"  # API status of jobs that are queued, starting or running
# Members of TrainingJobSummary of ListTrainingJobs, and their names in the service's own page.
SUMMARY = {
    "TrainingJobName": "name",
    "TrainingJobStatus": "status",
    "SecondaryStatus": "secondary_status",
    "State": "state",
    "CreationTime": "created_at",
    "TrainingStartTime": "started_at",
    "TrainingEndTime": "ended_at",
}


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("jobs", help="list training jobs, newest first")
    parser.add_argument(
        "--status",
        choices=[*STATES, IN_PROGRESS],
        help="jobs of this status or state only; InProgress are those that are queued, starting or running",
    )
    parser.add_argument("-n", type=_count, default=20, metavar="N", help="how many (default 20)")
    parser.add_argument("--names", action="store_true", help="print only names, one per line")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print one line for each job, and the total number if not all are shown."""
    connection = connect()
    jobs, total, states = _newest(connection, options.n, options.status)
    if options.names:
        print(names_text([job["name"] for job in jobs], is_json=options.json), end="")
        _say_the_rest(len(jobs), total)
        return 0
    for sentence in connection.get("state")["problems"]:
        print(f"clary: {sentence}", file=sys.stderr)
    if options.json:
        print(json.dumps([_summary(job) for job in jobs], indent=2))
        _say_the_rest(len(jobs), total)
        return 0
    if not jobs:
        print(f"no training job is {options.status}" if options.status else "no training jobs yet")
        return 0
    now = datetime.now(UTC)
    rows = [_row(job, now) for job in jobs]
    header = HEADER
    if not any(row[-1] for row in rows):
        header, rows = header[:-1], [row[:-1] for row in rows]
    print(table(header, rows, width=screen_width(sys.stdout)))
    if total > len(jobs):
        kinds = ", ".join(f"{states[state]} {state}" for state in STATES if states.get(state))
        print(f"{len(jobs)} of {total} jobs; -n {total} shows all (in total {kinds})")
    return 0


def _say_the_rest(num_printed: int, total: int) -> None:
    """Print on stderr that the list is incomplete, so that programs can parse stdout."""
    if total > num_printed:
        print(f"clary: {num_printed} of {total} jobs; -n {total} prints all", file=sys.stderr)


def _row(job: Mapping[str, Any], now: datetime) -> tuple[str, ...]:
    return (
        job["name"],
        job["state"],
        job["secondary_status"],
        f"{duration((now - _moment(job['created_at'])).total_seconds())} ago",
        "-" if job["duration_s"] is None else duration(job["duration_s"]),
        waiting_brief(job),
    )


def _summary(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job with the members of ListTrainingJobs, times as in that API's JSON, then Clary's own members."""
    told: dict[str, Any] = {member: job[key] for member, key in SUMMARY.items() if job[key] is not None}
    for member in ("CreationTime", "TrainingStartTime", "TrainingEndTime"):
        if member in told:
            told[member] = _moment(told[member]).timestamp()
    if job["duration_s"] is not None:
        told["TrainingTimeInSeconds"] = job["duration_s"]
    if job["failure_reason"]:
        told["FailureReason"] = job["failure_reason"]
    if job["state"] == "Queued":
        told["PendingReason"] = job["pending_reason"]
    if job["queue"]:
        told["QueuePlace"] = job["queue"]["place"]
        told["QueueLength"] = job["queue"]["num_waiting"]
        told["EstimatedStartInSeconds"] = job["queue"]["start_in_s"]
        told["EstimateBasis"] = job["queue"]["basis"]
    return told


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return int(text)


def _newest(
    connection: Connection, num_wanted: int, status: str | None
) -> tuple[Sequence[Mapping[str, Any]], int, Mapping[str, int]]:
    """Return the newest jobs, the number of all jobs that match, and the number of all jobs by state."""
    jobs: list[Mapping[str, Any]] = []
    query: dict[str, Any] = {}
    if status is not None:
        query["status" if status == IN_PROGRESS else "state"] = status
    while True:
        page = connection.get("jobs", {**query, "limit": min(num_wanted - len(jobs), PAGE)})
        jobs += page["jobs"]
        if len(jobs) >= num_wanted or not page["next"]:
            return jobs, page["total"], page["states"]
        query["after"] = page["next"]
