"""`clary dump JOB`: the state of every process of a job, with the suspects; `--last` shows the newest dump again."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from clary.cli.connection import Connection, connect
from clary.cli.dump_words import dump_text
from clary.cli.health_words import has_colours

WAIT_S = 40.0  # longest wait for the hosts: 1 s until the next report, and 20 s for the stacks of a host
_POLL_S = 0.2


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("dump", help="stacks of all processes of a job, and who stands out")
    parser.add_argument("job", metavar="JOB", help="name of a training job")
    parser.add_argument("--last", action="store_true", help="show the newest dump; take none")
    parser.add_argument("--threads", action="store_true", help="show every thread of every process")
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the dump; return 1 if a host did not answer."""
    service = connect()
    page = service.job_page(options.job, "dump") if options.last else take(service, options.job)
    if options.json:
        print(json.dumps(page, indent=2))
    else:
        print(dump_text(page, threads=options.threads, colours=has_colours(sys.stdout)))
    return 1 if page["missing"] else 0


def take(service: Connection, job: str) -> dict[str, Any]:
    """Request a dump, wait at most `WAIT_S` for all hosts, and return the page with the answers so far."""
    number = service.post_job_page(job, "dump", {})["number"]
    end_s = time.monotonic() + WAIT_S
    while True:
        page = service.job_page(job, "dump", {"number": number, "brief": 1})
        if not page["missing"] or time.monotonic() > end_s:
            return service.job_page(job, "dump", {"number": number})
        time.sleep(_POLL_S)
