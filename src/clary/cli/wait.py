"""`clary wait JOB`: wait until jobs have ended, or are in another state."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from clary.base.errors import ClaryError
from clary.cli.connection import connect
from clary.cli.moments import seconds
from clary.cli.patience import PatientConnection
from clary.control.jobs.job_state import JobState

POLL_S = 0.5
EXIT_FAILED = 1
EXIT_TIMEOUT = 124
ENDED = (JobState.COMPLETED, JobState.FAILED, JobState.STOPPED)
_ORDER = (JobState.QUEUED, JobState.STARTING, JobState.RUNNING)


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "wait", help="wait until jobs have ended; 0 if all have completed, 1 if one has failed or was stopped"
    )
    parser.add_argument("jobs", nargs="+", metavar="JOB", help="names of training jobs")
    parser.add_argument(
        "--for",
        dest="state",
        choices=[state.value for state in JobState if state is not JobState.QUEUED],
        help="wait for this state instead; exit code 0 also for a job past it, 1 for a job that can no longer reach it",
    )
    parser.add_argument("--timeout", type=seconds, metavar="SECONDS", help="give up after this time; default: never")
    parser.add_argument("--json", action="store_true", help="print JSON: a list of the jobs in their last state")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Poll each job in turn until it has reached the awaited state or has ended, or the time is over.

    Raises: ClaryError; with `--json`, the jobs before the one that could not be followed are printed first.
    """
    deadline = None if options.timeout is None else time.monotonic() + options.timeout
    service = PatientConnection(connect(), deadline_s=deadline)
    found: list[Mapping[str, Any]] = []
    for name in options.jobs:
        try:
            job = _wait(service, name, options.state, deadline)
        except ClaryError:
            if options.json and found:
                print(json.dumps(found, indent=2))
            raise
        found.append(job)
        if not options.json:
            print(_line(job), flush=True)
    if options.json:
        print(json.dumps(found, indent=2))
    late = ", ".join(job["TrainingJobName"] for job in found if not (job["Ended"] or job["Reached"]))
    if late:
        print(f"clary: not reached within {options.timeout:g} s: {late}", file=sys.stderr)
        return EXIT_TIMEOUT
    return 0 if all(job["Reached"] for job in found) else EXIT_FAILED


def _wait(service: PatientConnection, name: str, wanted: str | None, deadline: float | None) -> dict[str, Any]:
    while True:
        told = service.job_page(name, "state")
        state = JobState(told["state"])
        job = {
            "TrainingJobName": name,
            "TrainingJobStatus": told["status"],
            "SecondaryStatus": told["secondary_status"],
            "State": state.value,
            **({"FailureReason": told["failure_reason"]} if told["failure_reason"] else {}),
            "Reached": _has_reached(state, wanted),
            "Ended": state in ENDED,
        }
        if job["Reached"] or job["Ended"] or (deadline is not None and time.monotonic() >= deadline):
            return job
        time.sleep(POLL_S)


def _has_reached(state: JobState, wanted: str | None) -> bool:
    """Whether a job is in the wanted state, or has already passed that state."""
    if wanted is None:
        return state is JobState.COMPLETED
    if state == wanted:
        return True
    if wanted not in _ORDER:
        return False
    if state is JobState.COMPLETED:
        return True
    return state in _ORDER and _ORDER.index(state) > _ORDER.index(JobState(wanted))


def _line(job: Mapping[str, Any]) -> str:
    reason = f": {job['FailureReason']}" if job.get("FailureReason") else ""
    return f"{job['TrainingJobName']} is {job['State']}{reason}"
