"""`clary down`: stop the service, its object store and its running jobs."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from clary.cli.up import find_running
from clary.contract.processes import ProcessId
from clary.control.settings import load_settings
from clary.control.state_folder import StateFolder

DOWN_TIMEOUT_S = 60.0
POLL_S = 0.1


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("down", help="stop the service and what it started")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Ask the service to leave and wait until it has."""
    del options
    folder = StateFolder(load_settings().home_folder)
    running = find_running(folder)
    if running is None:
        print(f"clary does not run for {folder.root}")
        return 0
    process = ProcessId(running.record.pid, running.record.process_started)
    process.terminate()
    deadline = time.monotonic() + DOWN_TIMEOUT_S
    while time.monotonic() < deadline:
        if not process.is_alive():
            print(f"clary is down; jobs, logs and objects stay in {folder.root}")
            return 0
        time.sleep(POLL_S)
    print(
        f"clary: process {process.pid} has not left within {DOWN_TIMEOUT_S:.0f} s; see {folder.service_log}",
        file=sys.stderr,
    )
    return 1
