"""`clary delete JOB`: delete ended jobs and their logs; their objects in S3 stay."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from clary.base.errors import ClaryError, WireError
from clary.cli.connection import Connection, connect
from clary.cli.patience import PatientConnection

POLL_S = 0.5
STOP_TIMEOUT_S = 600.0
EXIT_FAILED = 1
EXIT_NOT_FOUND = 3
RUNS = "InProgress"
LIVE = (RUNS, "Stopping")


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
    """Delete the jobs one after another; continue after a job that the service refuses to delete.

    Raises: NoAnswer; with `--json`, the jobs before are printed first.
    """
    connection = connect()
    code = 0
    found: list[dict[str, Any]] = []
    for name in options.jobs:
        try:
            if options.stop:
                _stop_and_delete(PatientConnection(connection), name)
            else:
                # Looked for again: if the service has ended meanwhile, another program may listen on its port.
                connection.again().call("DeleteTrainingJob", {"TrainingJobName": name})
            told = {"TrainingJobName": name, "Deleted": True}
        except WireError as error:
            told = {"TrainingJobName": name, "Deleted": False, "Error": error.message}
            if error.code != "NotFound":
                code = EXIT_FAILED
            elif not options.ignore_not_found:
                code = code or EXIT_NOT_FOUND
        except ClaryError:
            if options.json and found:
                print(json.dumps(found, indent=2))
            raise
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


def _stop_and_delete(service: PatientConnection, name: str) -> None:
    parameters = {"TrainingJobName": name}
    is_told = False

    def look(one: Connection) -> str:
        """Return the job's status; first stop a job that runs. A lost answer lets it look again."""
        nonlocal is_told
        status: str = one.call("DescribeTrainingJob", parameters)["TrainingJobStatus"]
        if status == RUNS and not is_told:
            one.call("StopTrainingJob", parameters)
            is_told = True
        return status

    deadline = time.monotonic() + STOP_TIMEOUT_S
    while service.ask(look) in LIVE:
        if time.monotonic() > deadline:
            raise WireError("Timeout", f"it has not ended within {STOP_TIMEOUT_S:g} s; it goes on stopping")
        time.sleep(POLL_S)
    service.change("DeleteTrainingJob", parameters, done_code="NotFound")
