"""`clary up`: start the service in the background."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

from clary.base.errors import ClaryError, Fault
from clary.cli.connection import Connection, find_running
from clary.cli.contexts import require_local
from clary.cli.service_start import POLL_S, SILENCE_S, wait_until_ready
from clary.control.egress.entries import parse_entry
from clary.control.engines.images import why_default_fails
from clary.control.engines.interpreters import InterpreterProbe
from clary.control.full_disks import why_unwritable
from clary.control.process_limits import low_limits
from clary.control.server.ownership import is_owned
from clary.control.server.succession import HAND_OVER, SUPERVISED
from clary.control.settings import Settings, load_settings, unknown_variables, variable_of
from clary.control.shared_words import shared_by_settings
from clary.control.state_folder import NEW_DATABASE, NEW_KEYS, StateFolder
from clary.control.unused_settings import unused_settings

LOG_TAIL_LINES = 15
OTHER_LIMIT_S = SILENCE_S  # for a service that another command has started to become ready


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("up", help="start the service in the background")
    parser.add_argument("--foreground", action="store_true", help="stay in the foreground, log to the terminal")
    parser.add_argument(
        "--new-database",
        action="store_true",
        help="begin with a new database, without the jobs of the past; an old one is moved aside",
    )
    parser.add_argument(
        "--new-keys",
        action="store_true",
        help="begin with new keys; the old ones, if they are there, are moved aside; jobs that run end, clients need "
        "the new ones",
    )
    parser.add_argument(
        "--engine",
        choices=("local", "slurm", "boxes"),
        help="where hosts come from: this machine, a Slurm cluster, or boxes that `clary hosts add` knows; wins over "
        "setting engine, for this start",
    )
    parser.add_argument("--json", action="store_true", help="print JSON: where the service is")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Start the service unless it runs, wait until it answers, and print its address.

    Raises: ClaryError (fault USER) when a service runs that cannot follow `--engine`, `--new-database` or `--new-keys`,
        which belong to a start; that service keeps running.
    """
    if options.foreground and options.json:
        raise ClaryError(
            "--json prints where the service is, once it runs in the background: leave out --json or --foreground",
            fault=Fault.USER,
        )
    if options.engine:
        os.environ[variable_of("engine")] = options.engine  # the service that is started inherits it
    settings = load_settings()
    require_local(settings, "up")
    folder = StateFolder(settings.home_folder)
    folder.create()
    for sentence in unknown_variables(os.environ):
        _say(sentence)
    if options.foreground:
        os.execv(sys.executable, _command(options, SUPERVISED))  # noqa: S606 - the same interpreter, our own module
    started_at = time.monotonic()
    running = find_running(settings)
    if running is None:
        try:
            connection = start_service(settings, folder, options)
        except ClaryError:
            running = other_service(settings, folder)
            if running is None:
                raise
    if running is not None:
        _require_as_wanted(running, folder, options)
        if options.json:
            return _print_json(running, settings, was_running=True)
        print(f"clary already runs at {running.record.url}  (state in {folder.root}, stop with: clary down)")
        _print_problems(running, settings)
        return 0
    if options.json:
        return _print_json(connection, settings, was_running=False)
    print(f"clary runs at {connection.record.url}  (ready in {time.monotonic() - started_at:.1f} s)")
    if connection.record.tls_url:
        print(f"  tls    {connection.record.tls_url}")
    if settings.engine != "local":
        nodes = connection.get("capacity")
        print(f"  nodes  {nodes['num_nodes']} of {nodes['engine']}, at {nodes['url']}")
        for sentence in nodes.get("remarks", ()):
            print(f"  !!     {sentence}")
    for sentence in unused_settings(settings):
        print(f"  !!     {sentence}")
    for sentence in shared_by_settings(settings, [parse_entry(text) for text in settings.reachable_networks]):
        print(f"  !!     {sentence}")
    print(f"  state  {folder.root}")
    print(f"  memory limits of hosts are {connection.record.memory_limits}")
    print(f"  log    {folder.service_log}")
    print('  use    eval "$(clary env)"')
    print("  pages  clary console")
    print("  stop   clary down")
    _print_problems(connection, settings)
    return 0


def _require_as_wanted(running: Connection, folder: StateFolder, options: argparse.Namespace) -> None:
    """Raise ClaryError if an option asks for another service than the one that runs."""
    others = []
    if options.engine and (engine := folder.read_engine()) != options.engine:
        others.append(f"with engine {engine}, not {options.engine}")
    if options.new_database:
        others.append("with the database that it has")
    if options.new_keys:
        others.append("with the keys that it has")
    if others:
        engine_words = ["--engine", options.engine] if options.engine else []
        again = " ".join(["clary up", *engine_words, *_flags(options)])
        raise ClaryError(
            f"clary already runs at {running.record.url} {', and '.join(others)}; run: clary down, and then: {again}",
            fault=Fault.USER,
        )


def _print_problems(connection: Connection, settings: Settings) -> None:
    for sentence in _without_torch(settings):
        print(f"  !!     {sentence}")
    for sentence in low_limits(settings.max_connections, pid=connection.record.pid):
        print(f"  !!     {sentence}")
    for sentence in connection.get("state")["problems"]:
        print(f"  note   {sentence}")


def _without_torch(settings: Settings) -> list[str]:
    """Return why the default environment takes no PyTorch image, with the command that helps; empty if it does."""
    problem = why_default_fails(settings, InterpreterProbe())
    return [f"AWS's PyTorch images without an environment of their own are refused: {problem}"] if problem else []


def _print_json(connection: Connection, settings: Settings, *, was_running: bool) -> int:
    record = connection.record
    facts = {
        "url": record.url,
        "tls_url": record.tls_url,
        "pid": record.pid,
        "version": record.version,
        "state_folder": str(connection.folder.root),
        "was_running": was_running,
        "problems": [
            *_without_torch(settings),
            *low_limits(settings.max_connections, pid=record.pid),
            *connection.get("state")["problems"],
        ],
    }
    print(json.dumps(facts, indent=2))
    return 0


def _command(options: argparse.Namespace, *more: str) -> list[str]:
    # -P: Python imports nothing from the folder in which the command was called, which may be anybody's.
    return [sys.executable, "-P", "-m", "clary.control.server", *_flags(options), *more]


def _flags(options: argparse.Namespace) -> list[str]:
    wanted = ((NEW_DATABASE, options.new_database), (NEW_KEYS, options.new_keys))
    return [flag for flag, is_wanted in wanted if is_wanted]


def start_service(settings: Settings, folder: StateFolder, options: argparse.Namespace, *more: str) -> Connection:
    """Start the service in the background and return it once it is ready.

    Args:
        settings: settings of the service.
        folder: the state folder, which exists.
        options: options of `clary up`, as far as the server has them.
        more: further options of the server.
    Raises: ClaryError with the end of the service's log if it does not come up; then it is ended.
    """
    # A service that did not end in order has left its record, and perhaps jobs that run.
    ending = HAND_OVER if folder.service_record_path.exists() else signal.SIGTERM
    # The service runs in another working directory, in which a relative state folder would be another folder.
    environment = {**os.environ, variable_of("home"): str(folder.root)}
    with folder.service_log.open("ab") as log:
        process = subprocess.Popen(
            _command(options, *more),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
            cwd="/",
        )

    def find_ready() -> Connection | None:
        connection = find_running(settings)
        is_it = connection is not None and connection.record.pid == process.pid and connection.is_healthy()
        return connection if is_it else None

    try:
        connection = wait_until_ready(process, log=folder.service_log, find_ready=find_ready, say=_say, ending=ending)
    except ClaryError as error:
        raise ClaryError(f"{error.message}{_why(folder, settings)}", fault=error.fault) from error
    # The service outlives this command on purpose.
    process.returncode = 0
    return connection


def other_service(settings: Settings, folder: StateFolder) -> Connection | None:
    """Return the service that another command, even one that was killed, has started, once it is ready; or None."""
    end_s = time.monotonic() + OTHER_LIMIT_S
    with contextlib.suppress(OSError):  # a lock that cannot be read; the service's own words say more
        while is_owned(folder) and time.monotonic() < end_s:
            other = find_running(settings)
            if other is not None and other.is_healthy():
                return other
            time.sleep(POLL_S)
    return None


def _say(sentence: str) -> None:
    print(f"clary: {sentence}", file=sys.stderr, flush=True)


def _why(folder: StateFolder, settings: Settings) -> str:
    """Return the known facts of a failed start, for the end of a sentence."""
    full = why_unwritable(folder.root)  # a log on a full disk cannot name the cause of a service's end
    disk = f"; {full}; then start it again" if full else ""
    limits = "".join(f"; {sentence}" for sentence in low_limits(settings.max_connections))
    return f"{disk}{limits}; end of {folder.service_log}:\n{_log_tail(folder)}"


def _log_tail(folder: StateFolder) -> str:
    lines = folder.service_log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    return "\n".join(f"  {line}" for line in lines)
