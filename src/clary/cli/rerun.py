"""`clary rerun JOB`: create the job once more, under a new name, with other values if given."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from typing import Any

from clary.base.errors import ClaryError, Fault
from clary.cli.connection import connect
from clary.control.jobs.job_names import next_name
from clary.control.jobs.repeated_requests import Changes, repeated


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("rerun", help="create a job once more, as it is or with other values")
    parser.add_argument("job", metavar="JOB", help="name of a training job")
    parser.add_argument("--name", metavar="NAME", help="of the new job; else the old one's with the time of today")
    parser.add_argument(
        "-p", "--hyperparameter", action="append", type=_pair, default=[], metavar="KEY=VALUE", help="add or change it"
    )
    parser.add_argument(
        "-e", "--env", action="append", type=_pair, default=[], metavar="KEY=VALUE", help="add or change a variable"
    )
    parser.add_argument("--instance-type", metavar="TYPE", help="of the new job's hosts")
    parser.add_argument("--instance-count", type=_count, metavar="N", help="how many hosts the new job has")
    parser.add_argument("--dry-run", action="store_true", help="print the request as JSON and create nothing")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Create the job and print its name. Raises: ClaryError (fault USER)."""
    connection = connect()
    request = connection.job_page(options.job, "request")["request"]
    name = options.name or next_name(options.job, datetime.now(UTC))
    changes = Changes(
        hyperparameters=dict(options.hyperparameter),
        environment=dict(options.env),
        instance_type=options.instance_type,
        instance_count=options.instance_count,
    )
    try:
        made, notes = repeated(request, name=name, changes=changes)
    except ValueError as error:
        raise ClaryError(f"{options.job}: {error}", fault=Fault.USER) from error
    if options.dry_run:
        print(json.dumps(made, indent=2))
        return 0
    arn = connection.job_page(options.job)["arn"]
    tags = connection.call("ListTags", {"ResourceArn": arn})["Tags"]
    answer = connection.call("CreateTrainingJob", {**made, **({"Tags": tags} if tags else {})})
    if options.json:
        print(json.dumps({"TrainingJobName": name, **answer, "Notes": list(notes)}, indent=2))
        return 0
    print(f"{name} is created, as {options.job} was; follow it with: clary logs --follow {name}")
    for note in notes:
        print(f"  note: {note}")
    return 0


def _pair(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, got {text!r}")
    return key, value


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return int(text)
