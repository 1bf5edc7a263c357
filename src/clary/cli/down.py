"""`clary down`: stop the service, its object store and its running jobs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

from clary.cli.connection import find_running
from clary.cli.contexts import require_local
from clary.control.full_disks import why_unwritable
from clary.control.server.ownership import is_owned
from clary.control.server.succession import is_taken_over
from clary.control.settings import load_settings

DOWN_TIMEOUT_S = 60.0


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("down", help="stop the running jobs, the service and what it started")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Ask the service to end, and wait until it has ended."""
    settings = load_settings()
    require_local(settings, "down")
    running = find_running(settings)
    if running is None:
        _say(options, {"was_running": False}, f"clary does not run for {settings.home_folder}")
        return 0
    process, folder = running.record.process, running.folder
    if process.terminate(timeout_s=DOWN_TIMEOUT_S):
        if is_taken_over(folder) or is_owned(folder):
            print(
                "clary: the service is down, but a service that another command has started, such as clary restart, "
                "takes its place, and jobs run on; run clary down again",
                file=sys.stderr,
            )
            return 1
        if folder.service_record_path.exists():  # an ending service removes this file unless jobs continue
            why = why_unwritable(folder.root) or f"see {folder.service_log}"
            print(
                f"clary: the service is down, but jobs run on without it: {why}. The next clary up takes them up, and "
                "clary down ends them then.",
                file=sys.stderr,
            )
            return 1
        text = f"clary is down, and jobs that ran are stopped; records, logs and objects stay in {folder.root}"
        _say(options, {"was_running": True}, text)
        return 0
    print(
        f"clary: process {process.pid} has not left within {DOWN_TIMEOUT_S:.0f} s; see {folder.service_log}",
        file=sys.stderr,
    )
    return 1


def _say(options: argparse.Namespace, facts: Mapping[str, Any], text: str) -> None:
    print(json.dumps(facts, indent=2) if options.json else text)
