"""`clary stop JOB`: ask a job to end; its results are kept."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from clary.cli.connection import connect

POLL_S = 0.5
EXIT_TIMEOUT = 124


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("stop", help="signal a job's programs, keep its results, end it")
    parser.add_argument("job", metavar="JOB", help="name of a training job")
    parser.add_argument("--wait", type=float, metavar="SECONDS", help="wait for the end this long")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Send StopTrainingJob and, if asked, wait for the end."""
    connection = connect()
    connection.call("StopTrainingJob", {"TrainingJobName": options.job})
    if options.wait is None:
        text = f"{options.job} is stopping; follow it with: clary describe {options.job}"
        print(_json(options.job, "Stopping") if options.json else text)
        return 0
    deadline = time.monotonic() + options.wait
    while time.monotonic() < deadline:
        status = connection.call("DescribeTrainingJob", {"TrainingJobName": options.job})["TrainingJobStatus"]
        if status not in ("InProgress", "Stopping"):
            print(_json(options.job, status) if options.json else f"{options.job} is {status}")
            return 0
        time.sleep(POLL_S)
    print(f"clary: {options.job} has not ended within {options.wait:g} s; it goes on stopping", file=sys.stderr)
    return EXIT_TIMEOUT


def _json(job: str, status: str) -> str:
    return json.dumps({"TrainingJobName": job, "TrainingJobStatus": status}, indent=2)
