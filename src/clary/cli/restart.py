"""`clary restart`: start the service again, with the settings and the release as they are now, while jobs run on."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from clary.base.errors import ClaryError, Fault
from clary.cli.connection import Connection, find_running
from clary.cli.contexts import require_local
from clary.cli.service_start import POLL_S
from clary.cli.up import other_service, start_service
from clary.control.kept_settings import FIXED, Change, changes, read_kept, way_back
from clary.control.server.succession import succeed_option
from clary.control.settings import Settings, load_settings, variable_of

HOLDING = ("Starting", "Running", "Stopping")  # states of jobs that have hosts
PAGE = 500  # jobs in one answer
MOST_NAMED = 5  # jobs that a line names
LEAVING_S = 10.0  # longest wait for the end of a service that does not answer any more


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "restart", help="start the service again, with new settings or a new release, while jobs run on"
    )
    parser.add_argument(
        "--engine",
        choices=("local", "slurm", "boxes"),
        help="as of clary up; wins over setting engine, for this start",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Let a new service take the place of the one that runs, and print which jobs go on.

    Raises: ClaryError if no service runs, a setting cannot change now, or the new service does not come up.
    """
    if options.engine:
        os.environ[variable_of("engine")] = options.engine  # the service that is started inherits it
    settings = load_settings()
    require_local(settings, "restart")
    running = find_running(settings)
    if running is None:
        raise ClaryError(f"no service runs for {settings.home_folder}; start one with: clary up", fault=Fault.USER)
    before = _holders(running)
    changed = _changes(running, settings)
    _require_possible(running, changed, before)
    began_s = time.monotonic()
    unset = argparse.Namespace(new_database=False, new_keys=False)
    try:
        service = start_service(settings, running.folder, unset, succeed_option(running.record.process))
    except ClaryError as error:
        raise ClaryError(f"{error.message}\n{_after_failure(running, before)}", fault=error.fault) from error
    except KeyboardInterrupt:
        print(_after_failure(running, before, advice="run: clary up"), file=sys.stderr)
        raise
    took_s = time.monotonic() - began_s
    after = _holders(service)
    _report(options, service, changed, before, after, took_s)
    return 0


def _require_possible(running: Connection, changed: Sequence[Change], holders: Sequence[str]) -> None:
    """Raise ClaryError if the service cannot be replaced from here, or a changed setting has to stay for its jobs."""
    process, kept = running.record.process, read_kept(running.folder)
    if kept is not None and kept.is_supervised:
        raise ClaryError(
            f"the service of process {process.pid} runs in the foreground of the program that started it, which has "
            f"to start it again: end it with kill -USR1 {process.pid}, which leaves its jobs running, and then run "
            "clary up --foreground there",
            fault=Fault.USER,
        )
    fixed = [change for change in changed if change.name in FIXED]
    if fixed and holders:
        words = "; ".join(f"{one.words}: {FIXED[one.name]}; set it back in {way_back(one)}" for one in fixed)
        raise ClaryError(
            f"nothing is changed, because {_named(holders)} still {'has' if len(holders) == 1 else 'have'} hosts, and "
            f"with them these settings have to stay: {words}; or wait for the jobs, or stop them with: clary down",
            fault=Fault.USER,
        )


def _changes(running: Connection, settings: Settings) -> list[Change]:
    kept = read_kept(running.folder)
    if kept is None:  # of an earlier release
        engine = running.folder.read_engine()
        return [] if engine == settings.engine else [Change(name="engine", before=engine, now=settings.engine)]
    return changes(kept, settings, port=int(running.record.url.rpartition(":")[2]))


def _holders(service: Connection) -> list[str]:
    """Return the names of jobs that have hosts, and of ended jobs whose hosts wait in warm pools."""
    names: list[str] = []
    for state in HOLDING:
        query: dict[str, Any] = {"state": state, "limit": PAGE}
        while True:
            page = service.get("jobs", query)
            names += [job["name"] for job in page["jobs"]]
            if not page["next"]:
                break
            query["after"] = page["next"]
    names += [host["job"] for host in service.get("hosts")["hosts"]]  # also between two attempts, and in warm pools
    return list(dict.fromkeys(names))


def _after_failure(
    running: Connection, holders: Sequence[str], *, advice: str = "mend the cause, and then run: clary up"
) -> str:
    """Return a sentence on the old service and the jobs, for a next service that has not come up."""
    process, end_s = running.record.process, time.monotonic() + LEAVING_S
    # A service that lives and does not answer may be about to leave.
    while process.is_alive() and not running.is_healthy() and time.monotonic() < end_s:
        time.sleep(POLL_S)
    if process.is_alive():
        return "clary: the service that ran before runs on, and nothing has changed"
    if (other := other_service(running.settings, running.folder)) is not None:
        return (
            f"clary: a service that another command has started takes its place at {other.record.url}; "
            "run clary restart again if settings have changed since"
        )
    go_on = f"{_named(holders)} {'goes' if len(holders) == 1 else 'go'} on without a service" if holders else ""
    return f"clary: no service runs now{'; ' if go_on else ''}{go_on}; {advice}"


def _report(
    options: argparse.Namespace,
    service: Connection,
    changed: Sequence[Change],
    before: Sequence[str],
    after: Sequence[str],
    took_s: float,
) -> None:
    go_on = [name for name in after if name in before]
    ended = [name for name in before if name not in after]
    problems = service.get("state")["problems"]
    if options.json:
        record = service.record
        facts = {
            "url": record.url,
            "pid": record.pid,
            "version": record.version,
            "took_s": round(took_s, 3),
            "changed": [{"setting": one.name, "before": one.before, "now": one.now} for one in changed],
            "go_on": go_on,
            "ended": ended,
            "problems": problems,
        }
        print(json.dumps(facts, indent=2))
        return
    print(f"clary {service.record.version} runs at {service.record.url}  (after {took_s:.1f} s)")
    for one in changed:
        print(f"  new    setting {one.words}")
    if go_on:
        print(f"  jobs   {_named(go_on)} {'goes' if len(go_on) == 1 else 'go'} on")
    if ended:
        print(f"  ended  meanwhile: {_named(ended)}; see: clary jobs")
    for sentence in problems:
        print(f"  note   {sentence}")


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MOST_NAMED]) + (", ..." if len(names) > MOST_NAMED else "")
    return f"{len(names)} job{'' if len(names) == 1 else 's'} ({shown})"
