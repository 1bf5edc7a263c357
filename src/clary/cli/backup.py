"""`clary backup`: copies of the service's database; see docs/backups.md."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from clary.base.errors import ClaryError, Fault
from clary.cli.connection import connect, find_running
from clary.cli.contexts import require_local
from clary.cli.tables import table
from clary.control.server.ownership import sole_owner
from clary.control.settings import Settings, load_settings
from clary.control.state_folder import StateFolder
from clary.control.store.backups import Backups
from clary.control.store.database import parse_url
from clary.control.store.database_life import DatabaseLife


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("backup", help="list backups of the database, make one, or bring one back")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_list)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    listing = actions.add_parser("list", help="list them, newest first (the default)")
    listing.set_defaults(run=run_list)
    make = actions.add_parser("make", help="make one now")
    make.set_defaults(run=run_make)
    restore = actions.add_parser("restore", help="replace the database by a backup; the service must be down")
    restore.add_argument("name", nargs="?", metavar="NAME", help="file of the backup (default: the newest)")
    restore.set_defaults(run=run_restore)
    for action in (listing, make, restore):  # the option may precede or follow the action
        action.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")


def run_list(options: argparse.Namespace) -> int:
    """Print one line for each backup."""
    found = _backups(_settings()).all()
    if options.json:
        facts = [
            {"name": one.path.name, "made_at": one.made_at.isoformat(), "size_bytes": one.size_bytes} for one in found
        ]
        print(json.dumps(facts, indent=2))
        return 0
    if not found:
        print("no backups yet: the service makes one a few seconds after its start")
        return 0
    rows = [(item.path.name, f"{item.made_at:%Y-%m-%d %H:%M:%S} UTC", f"{item.size_bytes}") for item in found]
    print(table(("NAME", "MADE", "BYTES"), rows))
    return 0


def run_make(options: argparse.Namespace) -> int:
    """Request a backup from the running service."""
    _backups(_settings())  # raises if the database is not a file
    made = connect().post("backup", {})
    print(json.dumps(made, indent=2) if options.json else f"backup made: {made['path']}")
    return 0


def run_restore(options: argparse.Namespace) -> int:
    """Replace the database by a backup. Raises: ClaryError (fault USER)."""
    settings = _settings()
    folder = StateFolder(settings.home_folder)
    backups = _backups(settings)
    if find_running(settings) is not None:
        backups.sound(options.name)  # before the service, and with it every job, is ended for nothing
        raise ClaryError("the service runs and has the database open; end it first: clary down", fault=Fault.USER)
    with sole_owner(folder):
        backup, aside = backups.bring_back(options.name, datetime.now(UTC))
    if options.json:
        print(json.dumps({"name": backup.path.name, "former": None if aside is None else str(aside)}, indent=2))
        return 0
    print(f"{backup.path.name}, of {backup.made_at:%Y-%m-%d %H:%M:%S} UTC, is the database now; start with: clary up")
    if aside is not None:
        print(f"  the former one is {aside}")
    print("  jobs that were created since are unknown; hosts of theirs that still run are taken back at the start")
    return 0


def _settings() -> Settings:
    """Return this machine's settings; raise ClaryError if the selected context is a service on another machine."""
    settings = load_settings()
    require_local(settings, "backup")
    return settings


def _backups(settings: Settings) -> Backups:
    url = parse_url(settings.resolved_database)
    if url.get_backend_name() != "sqlite":
        raise ClaryError(
            "the database is a PostgreSQL server's: back it up with its own tools, such as pg_dump", fault=Fault.USER
        )
    life = DatabaseLife(settings.home_folder, keep=settings.num_backups)
    return life.backups(Path(str(url.database)))
