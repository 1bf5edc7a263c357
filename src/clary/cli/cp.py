"""`clary cp JOB:output .`: copy a part of a job, such as its model, to this machine."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clary.base.errors import ClaryError, Fault
from clary.cli.checkpoint_words import count, size
from clary.cli.connection import Connection, connect
from clary.cli.copying import CODE, LOGS, MODEL, OUTPUT, THINGS, Copied, fetch, fetch_logs, place_of
from clary.cli.parsers import did_you_mean
from clary.cli.tables import visible
from clary.contract.launch_plan import Endpoint
from clary.contract.object_store import ObjectStore

NAMED_LINKS = 5


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("cp", help="copy a job's model, output, checkpoints, code or logs to this machine")
    things = "; ".join(f"{name}: {what}" for name, what in THINGS.items())
    parser.add_argument("source", metavar="JOB:WHAT", help=f"the part WHAT of a job. {things}")
    parser.add_argument("target", metavar="DEST", help="file or folder here; NAME/ is a folder")
    parser.add_argument(
        "-x", "--extract", action="store_true", help="unpack model, output or code into the folder DEST"
    )
    parser.add_argument("--json", action="store_true", help="print JSON: a list of the files")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Copy the files and print their names and sizes. Raises: ClaryError (fault USER)."""
    job, thing = _source(options.source)
    if options.extract and thing not in (MODEL, OUTPUT, CODE):
        raise ClaryError(f"--extract belongs to archives: {MODEL}, {OUTPUT}, {CODE}", fault=Fault.USER)
    copied = []
    for item in _copy(connect(), job, thing, options.target, unpacks=options.extract):
        copied.append({"from": item.source, "to": str(item.path), "size_bytes": item.size_bytes})
        if not options.json:
            print(f"{visible(str(item.path))}  {size(item.size_bytes)}", flush=True)
        if item.links_left_out:
            print(
                f"clary: {count(len(item.links_left_out), 'link')} left out, which lead to no place in {item.path}: "
                f"{', '.join(map(ascii, item.links_left_out[:NAMED_LINKS]))}",
                file=sys.stderr,
            )
    if options.json:
        print(json.dumps(copied, indent=2))
    return 0


def _source(text: str) -> tuple[str, str]:
    job, colon, thing = text.partition(":")
    if not colon or not job:
        raise ClaryError(
            f"expected JOB:WHAT, as in my-job:{MODEL}, got {text!r}; files can be copied only from jobs "
            "to this machine",
            fault=Fault.USER,
        )
    if thing not in THINGS:
        raise ClaryError(
            f"a job has no {thing!r} to copy; there are {', '.join(THINGS)}{did_you_mean(thing, THINGS)}",
            fault=Fault.USER,
        )
    return job, thing


def _copy(connection: Connection, job: str, thing: str, place: str, *, unpacks: bool) -> Iterator[Copied]:
    """Copy a part, and yield each file. Raises: ClaryError (fault USER) for a file that cannot be written here."""
    try:
        yield from _copied(connection, job, thing, place, unpacks=unpacks)
    except OSError as error:
        raise ClaryError(
            f"{error.filename or place} cannot be written: {error.strerror or error}; name another place as DEST",
            fault=Fault.USER,
        ) from error


def _copied(connection: Connection, job: str, thing: str, place: str, *, unpacks: bool) -> Iterator[Copied]:
    target = Path(place)
    if thing == LOGS:
        yield from fetch_logs(connection, job, target)
        return
    uri = place_of(connection, job, thing)
    if place.endswith(os.sep):  # a path has no slash at its end any more
        target.mkdir(parents=True, exist_ok=True)
    endpoint = Endpoint(
        url=connection.record.url, region=connection.record.region, credentials=connection.secrets.credentials
    )
    with connection.trusted(), ObjectStore(endpoint) as store:
        yield from fetch(store, uri, target, unpacks=unpacks, what=f"the {thing} of {job}")
