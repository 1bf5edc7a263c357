"""`clary delete JOB`: delete ended jobs and their logs; their objects in S3 stay."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from clary.base.errors import WireError
from clary.cli.connection import Connection, connect

POLL_S = 0.5
STOP_TIMEOUT_S = 600.0
EXIT_FAILED = 1
EXIT_NOT_FOUND = 3


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "delete", help="forget jobs that have ended, with their logs and metrics; their results in S3 stay"
    )
    parser.add_argument("jobs", nargs="+", metavar="JOB", help="names of training jobs")
    parser.add_argument("--stop", action="store_true", help="first stop jobs that still run, and wait for their end")
    parser.add_argument("--ignore-not-found", action="store_true", help="a job that does not exist is no error")
    parser.add_argument("--json", action="store_true", help="print JSON: the outcome for each job")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Delete the jobs one after another; continue after a job that cannot be deleted."""
    connection = connect()
    code = 0
    found = []
    for name in options.jobs:
        try:
            if options.stop:
                _stop(connection, name)
            connection.call("DeleteTrainingJob", {"TrainingJobName": name})
            told = {"TrainingJobName": name, "Deleted": True}
        except WireError as error:
            told = {"TrainingJobName": name, "Deleted": False, "Error": error.message}
            if error.code != "NotFound":
                code = EXIT_FAILED
            elif not options.ignore_not_found:
                code = code or EXIT_NOT_FOUND
        found.append(told)
        if not options.json:
            _say(told, is_ignored=options.ignore_not_found and not code)
    if options.json:
        print(json.dumps(found, indent=2))
    return code


def _say(told: dict[str, Any], *, is_ignored: bool) -> None:
    if told["Deleted"]:
        print(f"{told['TrainingJobName']} is deleted; what it wrote to S3 stays")
    elif not is_ignored:
        print(f"clary: {told['TrainingJobName']} is not deleted: {told['Error']}", file=sys.stderr)


def _stop(connection: Connection, name: str) -> None:
    parameters = {"TrainingJobName": name}
    deadline = time.monotonic() + STOP_TIMEOUT_S
    is_told = False
    while (status := connection.call("DescribeTrainingJob", parameters)["TrainingJobStatus"]) in (
        "InProgress",
        "Stopping",
    ):
        if time.monotonic() > deadline:
            raise WireError("Timeout", f"it has not ended within {STOP_TIMEOUT_S:g} s; it goes on stopping")
        if status == "InProgress" and not is_told:
            connection.call("StopTrainingJob", parameters)
            is_told = True
        time.sleep(POLL_S)
