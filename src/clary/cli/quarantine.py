"""`clary quarantine`: list unreadable records of the database, restore them or delete them."""

from __future__ import annotations

import argparse
import base64
import json
from collections.abc import Mapping
from typing import Any

from clary.base.errors import WireError
from clary.cli.connection import connect
from clary.cli.tables import table


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("quarantine", help="list records that cannot be read, take them back or give them up")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_list)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    listing = actions.add_parser("list", help="list them (the default)")
    listing.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
    listing.set_defaults(run=run_list)
    for name, run, words in (
        ("show", run_show, "print what a record holds, column by column"),
        ("release", run_release, "read a record again, after it was mended, and go on with it"),
        ("drop", run_drop, "delete a record; of a job everything is deleted but its objects in S3"),
    ):
        action = actions.add_parser(name, help=words)
        action.add_argument("id", type=int, metavar="ID", help="number of the entry")
        action.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
        action.set_defaults(run=run)


def run_list(options: argparse.Namespace) -> int:
    """Print one line for each entry; return 1 if an entry waits for a decision."""
    entries = connect().get("quarantine")["entries"]
    if options.json:
        print(json.dumps(entries, indent=2))
        return int(any(entry["is_held"] for entry in entries))
    if not entries:
        print("nothing is in quarantine")
        return 0
    rows = [
        (
            str(entry["id"]),
            entry["source"],
            entry["name"],
            entry["found_at"][:19].replace("T", " "),
            "waits for you" if entry["is_held"] else "mended",
            entry["reason"],
        )
        for entry in entries
    ]
    print(table(("ID", "TABLE", "NAME", "FOUND", "STATE", "WHY"), rows))
    return int(any(entry["is_held"] for entry in entries))


def run_show(options: argparse.Namespace) -> int:
    """Print the bytes of a record."""
    contents: Mapping[str, Mapping[str, str]] = connect().get("quarantine", {"id": options.id})["contents"]
    if options.json:
        print(json.dumps(contents, indent=2))
        return 0
    for column, cell in contents.items():
        text = base64.b64decode(cell["base64"]).decode("utf-8", "backslashreplace")
        # Always escaped: a record may hold any bytes, also terminal controls.
        print(f"{column} ({cell['type']}): {text.encode('unicode_escape').decode()}")
    return 0


def run_release(options: argparse.Namespace) -> int:
    """Restore a record."""
    answer = _act("release", options.id)
    if options.json:
        print(json.dumps(answer, indent=2))
        return 0
    print(f"entry {options.id} is taken back" + (f": job {answer['name']}" if answer["name"] else ""))
    return 0


def run_drop(options: argparse.Namespace) -> int:
    """Delete a record."""
    answer = _act("drop", options.id)
    print(json.dumps(answer, indent=2) if options.json else f"entry {options.id} is given up: {answer['name']}")
    return 0


def _act(action: str, number: int) -> dict[str, Any]:
    if number < 0:
        raise WireError("NotFound", f"there is no entry {number} in quarantine; see: clary quarantine list")
    return connect().post("quarantine", {"action": action, "id": number})
