"""`clary doctor`: check this machine and the service; list the parts that are emulated or not isolated.

`clary doctor JOB`: the health of a job's hosts and of the links between them, as the hosts report it.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from clary.base.errors import ClaryError
from clary.cli.connection import connect, find_running
from clary.cli.contexts import require_local
from clary.cli.health_words import has_colours, health_text, is_bad
from clary.control.egress.entries import Reachable, parse_entry
from clary.control.egress.package_indexes import index_entries
from clary.control.engines.cluster.cluster_engine import SHARED
from clary.control.engines.images import default_python, why_default_fails
from clary.control.engines.interpreters import InterpreterProbe
from clary.control.engines.local.engine import LocalEngine
from clary.control.engines.local.machine_census import dead_sockets, listening_ports
from clary.control.full_disks import why_unwritable
from clary.control.objects.weed_process import HOST, MIN_FREE_SHARE, StoreRecord, find_program, socket_paths
from clary.control.permissions.grants import OWN
from clary.control.process_limits import low_limits
from clary.control.scheduling.memory import gib
from clary.control.scheduling.placement import capacity_of
from clary.control.settings import Settings, load_settings
from clary.control.shared_words import OWN_ACCESS, shared_by_settings
from clary.control.state_folder import StateFolder
from clary.control.unused_settings import unused_settings

GIB = 1024**3
MIN_FREE_BYTES = 5 * GIB
STORE_LIMIT_S = 5.0  # longest wait for the object store's answer


@dataclass(frozen=True)
class Finding:
    """One line of the report; `is_problem` makes the command fail."""

    name: str
    text: str
    is_problem: bool = False


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("doctor", help="check this machine and the service, or the hosts of a job")
    parser.add_argument("job", nargs="?", metavar="JOB", help="a job: the health of its hosts and links")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print every finding; return 1 if a finding is a problem."""
    if options.job is not None:
        return _run_for_job(options)
    settings = load_settings()
    require_local(settings, "doctor")
    folder = StateFolder(settings.home_folder)
    engine = LocalEngine(settings, "http://127.0.0.1:0")
    nodes = _all_checked("nodes", lambda: _nodes(settings))
    has_hosts = settings.engine == "local" and not any(finding.name.endswith(" nodes") for finding in nodes)
    findings = [
        _checked("service", lambda: _service(settings)),
        _checked("object store", lambda: _object_store(settings, folder)),
        _checked("environment", lambda: _environment(settings)),
        *_this_machine(engine, settings, has_hosts=has_hosts),
        *nodes,
        *[Finding("not isolated", sentence) for sentence in shared_by_settings(settings, _reachable(settings))],
        *[Finding("settings", sentence) for sentence in unused_settings(settings)],
        *([Finding("job keys", OWN_ACCESS)] if settings.job_api_access == OWN else []),
        _disk(folder, settings),
        *_limits(settings),
        *_all_checked("state", lambda: _state(settings)),
        *[Finding("left behind", text, is_problem=True) for text in asyncio.run(engine.leftovers())],
        *[Finding("left behind", text, is_problem=True) for text in _store_leftovers(settings, folder)],
        *[Finding("shared memory", text) for text in asyncio.run(engine.unclaimed_memory())],
        *_emulated(has_hosts=has_hosts),
    ]
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
        return int(any(finding.is_problem for finding in findings))
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        print(f"{'!!' if finding.is_problem else 'ok'}  {finding.name.ljust(width)}  {finding.text}")
    return 1 if any(finding.is_problem for finding in findings) else 0


def _run_for_job(options: argparse.Namespace) -> int:
    page = connect().job_page(options.job, "health")
    print(json.dumps(page, indent=2) if options.json else health_text(page, colours=has_colours(sys.stdout)))
    return 1 if is_bad(page) else 0


def _checked(name: str, look: Callable[[], Finding]) -> Finding:
    try:
        return look()
    except ClaryError as error:
        return Finding(name, error.message, is_problem=True)


def _all_checked(name: str, look: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return look()
    except ClaryError as error:  # such as a service whose database is away: the other findings stay
        return [Finding(name, error.message, is_problem=True)]


def _nodes(settings: Settings) -> list[Finding]:
    """Return findings on the nodes of an engine that uses other machines; empty for the engine `local`."""
    running = find_running(settings)
    if running is None or not running.is_healthy():
        return []
    try:
        page = running.get("capacity")
    except ClaryError as error:
        return [Finding("nodes", error.message, is_problem=True)]
    if page["engine"] == "local":
        return []
    text = "; ".join(map(_kind_words, page["kinds"]))
    name = f"{page['engine']} nodes"
    none = "none" + ("; add machines with: clary hosts add USER@HOST" if page["engine"] == "boxes" else "")
    return [
        Finding(name, text or none, is_problem=not text),
        *[Finding(name, sentence, is_problem=True) for sentence in page.get("remarks", ())],
        Finding(name, f"they reach the service at {page['url']}"),
        *[Finding("not isolated", sentence) for sentence in SHARED],
    ]


def _kind_words(kind: Mapping[str, Any]) -> str:
    words = f"{kind['num_free']} of {kind['num_nodes']} free: {kind['maps_to']}"
    return f"{words} ({kind['out_of_use']})" if kind.get("out_of_use") else words


def _this_machine(engine: LocalEngine, settings: Settings, *, has_hosts: bool) -> list[Finding]:
    """Return findings on this machine as a place of hosts; empty if hosts run on other machines."""
    if not has_hosts:
        words = "hosts run on other machines; this one runs the service and its object store"
        return [Finding("machine", words), _checked("memory limits", lambda: _memory_limits(engine, settings))]
    return [
        _checked("machine", lambda: _machine(engine, settings)),
        _checked("memory limits", lambda: _memory_limits(engine, settings)),
        *_isolation(engine),
    ]


def _emulated(*, has_hosts: bool) -> list[Finding]:
    hosts = "hosts share this machine's CPUs, memory and GPUs"
    if not has_hosts:
        hosts = "a host has the CPUs, memory and GPUs of its node"
    return [
        Finding("emulated", f"instance types are names here: {hosts}"),
        Finding("emulated", "input mode FastFile fetches whole objects before the program starts, as File does"),
    ]


def _service(settings: Settings) -> Finding:
    running = find_running(settings)
    if running is None:
        return Finding("service", f"does not run for {settings.home_folder}; start it with: clary up")
    if not running.is_healthy():
        return Finding("service", f"process {running.record.pid} runs but does not answer", is_problem=True)
    return Finding("service", f"{running.record.url}, process {running.record.pid}, version {running.record.version}")


def _object_store(settings: Settings, folder: StateFolder) -> Finding:
    """Return the store of objects; a problem if the embedded store of a running service does not answer."""
    program = settings.s3_endpoint_url or find_program()
    record = None if settings.s3_endpoint_url else StoreRecord.read(folder.root / "run" / "seaweed.json")
    if record is None or find_running(settings) is None:
        return Finding("object store", program)
    port = record.ports["s3"]
    connection = http.client.HTTPConnection(HOST, port, timeout=STORE_LIMIT_S)
    try:
        connection.request("GET", "/")
        connection.getresponse()  # whatever it is: a refusal is an answer too
    except (OSError, http.client.HTTPException) as error:
        words = f"{program} does not answer at {HOST}:{port} ({error}); the service starts it again once it has ended"
        return Finding("object store", f"{words}; see {folder.root / 'run' / 'seaweed.log'}", is_problem=True)
    finally:
        connection.close()
    return Finding("object store", program)


def _store_leftovers(settings: Settings, folder: StateFolder) -> list[str]:
    """Return sentences on leftovers of a stopped service's object store; a running service cleans up its own."""
    record = StoreRecord.read(folder.root / "run" / "seaweed.json")
    if record is None or find_running(settings) is not None:
        return []
    if record.process is not None and record.process.is_alive():
        pid = record.process.pid
        ports = ", ".join(str(port) for port in sorted(listening_ports([pid]))) or "no port"
        return [
            f"The object store runs without a service (process {pid}, listens at {ports}); "
            f"clary up takes it over; or end it: kill {pid}"
        ]
    return [f"The object store has ended and left {thing}" for thing in dead_sockets(socket_paths(record.ports))]


def _state(settings: Settings) -> list[Finding]:
    """Return the running service's findings on its state folder: problems and facts."""
    running = find_running(settings)
    if running is None or not running.is_healthy():
        return []
    page = running.get("state")
    return [
        *[Finding("state", sentence, is_problem=True) for sentence in page["problems"]],
        *[Finding("state", sentence) for sentence in page["facts"]],
    ]


def _environment(settings: Settings) -> Finding:
    probe = InterpreterProbe()
    problem = why_default_fails(settings, probe)
    if problem:
        told = f"AWS's PyTorch images without an environment of their own are refused: {problem}"
        return Finding("environment", told, is_problem=True)
    python = default_python(settings, probe)
    return Finding("environment", f"AWS's PyTorch images without an environment of their own run in {python}")


def _machine(engine: LocalEngine, settings: Settings) -> Finding:
    machine = engine.capacity().machine
    capacity = capacity_of(machine, settings)
    return Finding(
        "machine",
        f"{machine}, {machine.memory_bytes / GIB:.0f} GiB: up to {capacity.max_hosts} hosts at once, whose memory may "
        f"add up to {gib(capacity.memory_bytes)}; one host may have {gib(capacity.memory_per_host_bytes)}",
    )


def _memory_limits(engine: LocalEngine, settings: Settings) -> Finding:
    """Return how hosts' memory is limited by the running service, or by a service that would start now."""
    running = find_running(settings)
    told = "" if running is None else running.record.memory_limits
    return Finding("memory limits", told or engine.memory_limits(looks_only=True))


def _reachable(settings: Settings) -> tuple[Reachable, ...]:
    """Return the parts of the owner's network that programs reach if the service has this process's environment."""
    named = (parse_entry(text) for text in settings.reachable_networks)
    return tuple(dict.fromkeys((*named, *index_entries(os.environ))))


def _isolation(engine: LocalEngine) -> list[Finding]:
    found = engine.capacity()
    return [
        Finding("isolation", found.isolation.value),
        *[Finding("not isolated", sentence) for sentence in found.gaps],
    ]


def _limits(settings: Settings) -> list[Finding]:
    """Return the limits of this machine that are too low for the running service, or one that would start now."""
    running = find_running(settings)
    pid = 0 if running is None else running.record.pid
    return [Finding("limits", sentence, is_problem=True) for sentence in low_limits(settings.max_connections, pid=pid)]


def _disk(folder: StateFolder, settings: Settings) -> Finding:
    share = 0.0 if settings.s3_endpoint_url else MIN_FREE_SHARE  # the embedded store takes nothing below it
    if why := why_unwritable(folder.root, min_free_share=share):
        return Finding("disk", why, is_problem=True)
    existing = next(path for path in (folder.root, *folder.root.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    return Finding("disk", f"{free / GIB:.1f} GiB free at {existing}", is_problem=free < MIN_FREE_BYTES)
