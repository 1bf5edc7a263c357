"""`clary stop JOB`: request the end of a job; its results are kept."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from clary.cli.connection import connect
from clary.cli.moments import seconds
from clary.cli.patience import PatientConnection
from clary.cli.wait import ENDED

POLL_S = 0.5
EXIT_TIMEOUT = 124


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("stop", help="signal a job's programs, keep its results, end it")
    parser.add_argument("job", metavar="JOB", help="name of a training job")
    parser.add_argument("--wait", type=seconds, metavar="SECONDS", help="wait for the end this long")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Send StopTrainingJob and, with `--wait`, wait for the end."""
    connection = connect()
    connection.call("StopTrainingJob", {"TrainingJobName": options.job})
    deadline = time.monotonic() + (options.wait or 0.0)
    service = connection if options.wait is None else PatientConnection(connection, deadline_s=deadline)
    while True:
        told = service.job_page(options.job, "state")
        has_ended = told["state"] in ENDED
        if has_ended or options.wait is None or time.monotonic() >= deadline:
            break
        time.sleep(POLL_S)
    is_late = not has_ended and options.wait is not None
    if options.json:
        print(_json(told), flush=True)
    if is_late:
        print(f"clary: {options.job} has not ended within {options.wait:g} s; it goes on stopping", file=sys.stderr)
        return EXIT_TIMEOUT
    if options.json:
        return 0
    if has_ended:
        print(f"{options.job} is {told['state']}")
    else:
        print(f"{options.job} is stopping; follow it with: clary describe {options.job}")
    return 0


def _json(told: Mapping[str, Any]) -> str:
    return json.dumps(
        {"TrainingJobName": told["name"], "TrainingJobStatus": told["status"], "State": told["state"]}, indent=2
    )
