"""`clary spot`: show and set the simulated market of spot capacity, and reclaim a job's capacity, as a cloud would."""

from __future__ import annotations

import argparse
import json
from typing import Any

from clary.cli.connection import connect
from clary.cli.moments import seconds
from clary.cli.tables import duration, table

BY_SCHEDULE = "auto"


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("spot", help="play the market of spot capacity")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_status)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    status = actions.add_parser("status", help="how much capacity there is, and who holds it (the default)")
    status.set_defaults(run=run_status)
    capacity = actions.add_parser("capacity", help="set the capacity until the service ends")
    capacity.add_argument("hosts", type=_hosts, metavar="HOSTS", help=f"a number, or {BY_SCHEDULE}: by the schedule")
    capacity.set_defaults(run=run_capacity)
    reclaim = actions.add_parser("reclaim", help="take a job's capacity; it continues when capacity is available again")
    reclaim.add_argument("job", metavar="JOB", help="name of a training job")
    reclaim.add_argument("--host", metavar="algo-N", help="host whose capacity is taken; the whole job is interrupted")
    reclaim.add_argument("--grace", type=seconds, metavar="SECONDS", help="from SIGTERM to SIGKILL; else the setting")
    reclaim.set_defaults(run=run_reclaim)
    for action in (status, capacity, reclaim):  # the option may precede or follow the action
        action.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")


def run_status(options: argparse.Namespace) -> int:
    """Print the market."""
    facts = connect().get("spot")
    print(json.dumps(facts, indent=2) if options.json else _market(facts))
    return 0


def run_capacity(options: argparse.Namespace) -> int:
    """Set the capacity and print the market."""
    facts = connect().post("spot", {"capacity": options.hosts})
    print(json.dumps(facts, indent=2) if options.json else _market(facts))
    return 0


def run_reclaim(options: argparse.Namespace) -> int:
    """Reclaim the spot capacity of a job."""
    wanted = {"host": options.host, "grace_s": options.grace}
    body = {name: value for name, value in wanted.items() if value is not None}
    answer = connect().post_job_page(options.job, "reclaim", body)
    if options.json:
        print(json.dumps(answer, indent=2))
        return 0
    print(f"{answer['name']}: {answer['reason']}; attempt {answer['attempt']} ends, follow the next with:")
    print(f"  clary logs --follow {answer['name']}")
    return 0


def _market(facts: dict[str, Any]) -> str:
    source = "set by hand" if facts["is_set_by_hand"] else "by the schedule"
    if facts["capacity"] is None:
        lines = ["spot capacity: without a limit, as many hosts as there are"]
    else:
        lines = [f"spot capacity: {facts['capacity']} hosts, {source}"]
    if facts["next_change_s"] is not None and not facts["is_set_by_hand"]:
        lines.append(f"changes in {duration(facts['next_change_s'])}")
    rows = [
        (use["job_name"], str(use["num_hosts"]), "leaves" if use["is_leaving"] else "holds") for use in facts["uses"]
    ]
    lines.append(table(("JOB", "HOSTS", "STATE"), rows) if rows else "no job holds any")
    return "\n".join(lines)


def _hosts(text: str) -> int | None:
    if text == BY_SCHEDULE:
        return None
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"expected a number of hosts or {BY_SCHEDULE}, got {text!r}")
    return int(text)
