"""`clary plan JOB`: print the launch plan of a job, without its secrets."""

from __future__ import annotations

import argparse
import json
from typing import Any

from clary.cli.connection import connect


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("plan", help="print the launch plan that a job's agents received, as JSON")
    parser.add_argument("job", metavar="JOB", help="name of a training job")
    parser.add_argument("--json", action="store_true", help="print JSON, as without it")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the plan."""
    print(json.dumps(connect().job_page(options.job, "plan"), indent=2))
    return 0
