"""`clary hosts`: list the boxes that hosts run on, add boxes over SSH, drain, resume and remove them."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from clary.agent.node.packing import digest_of, pack_node
from clary.base.errors import ClaryError, Fault, WireError
from clary.cli.box_admission import checked_probe, fingerprint
from clary.cli.box_words import box_row, clock_ahead_s, clock_words, shape_words
from clary.cli.connection import Connection, connect
from clary.cli.moments import minutes
from clary.cli.remote_python import Place, ask_node
from clary.cli.tables import screen_width, table, visible
from clary.contract.box_protocol import BOX_NAME

AT_ONCE = 8  # boxes that are installed in parallel
READY_LIMIT_S = 30.0  # for a started daemon to reach the service
REMOVAL_LIMIT_S = 45.0  # for a box to end its hosts
POLL_S = 0.25
COLUMNS = ("BOX", "STATE", "CPUS", "MEMORY", "GPUS", "ISOLATION", "RUNS", "")


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("hosts", help="list boxes, add them over SSH, drain, resume or remove them")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_list)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    add = actions.add_parser("add", help="install the daemon on boxes, or repair it; jobs that run there go on")
    add.add_argument("targets", nargs="+", metavar="USER@BOX", help="as ssh takes it, with your own configuration")
    add.add_argument("--name", help="of the box here, if not its name for ssh; for one box")
    add.add_argument("--scratch", default="", metavar="DIR", help="folder there for the files of running hosts")
    add.add_argument("--python", default="python3", metavar="PY", help="interpreter there, 3.10 or newer")
    add.add_argument(
        "--ssh-option", action="append", default=[], metavar="NAME=VALUE", help="for ssh, as of ssh_config; repeat it"
    )
    add.set_defaults(run=run_add)
    for name, run, words in (
        ("drain", run_drain, "give boxes no new host; jobs that run there get a notice"),
        ("resume", run_resume, "take drained boxes into use again"),
        ("remove", run_remove, "end what boxes run, and take away what was installed there"),
    ):
        action = actions.add_parser(name, help=words)
        action.add_argument("boxes", nargs="+", metavar="BOX", help="its name, as clary hosts lists it")
        action.set_defaults(run=run)
        if name == "remove":
            action.add_argument("--force", action="store_true", help="forget a box that does not answer")
    token = actions.add_parser("token", help="print a token with which one machine can join by itself (clary join)")
    token.add_argument("--minutes", type=minutes, default=60.0, help="until it expires; 60 by default")
    token.set_defaults(run=run_token)
    for action in actions.choices.values():
        action.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")


def run_list(options: argparse.Namespace) -> int:
    """Print one line for each box, and one line for each waiting job."""
    page = connect().get("boxes")
    if options.json:
        print(json.dumps({"boxes": page["boxes"], "waiting": page["waiting"]}, indent=2))
        return 0
    if not page["boxes"]:
        print("no boxes: add some with: clary hosts add USER@BOX")
    else:
        daemon = digest_of(pack_node())
        rows = [box_row(box, daemon) for box in page["boxes"]]
        print(table(COLUMNS, rows, width=screen_width(sys.stdout)))
    for words in page["waiting"]:
        print(visible(words))
    return 0


def run_add(options: argparse.Namespace) -> int:
    """Install boxes in parallel; print a line for each; return 1 if a box failed. Raises: ClaryError, WireError."""
    wanted = [_wanted(options, target) for target in options.targets]
    if options.name and len(wanted) > 1:
        raise ClaryError("--name names one box, and there are several; add them one by one", fault=Fault.USER)
    names = [one.name for one in wanted]
    if len(set(names)) < len(names):
        raise ClaryError("two boxes would have one name; add them one by one, with --name", fault=Fault.USER)
    for one in wanted:
        one.place.check()
    connection = connect()
    page = connection.get("boxes")
    with ThreadPoolExecutor(AT_ONCE) as threads:
        outcomes = list(threads.map(lambda one: _outcome(connection, page, one), wanted))
    if options.json:
        print(json.dumps([outcome.plain for outcome in outcomes], indent=2))
    else:
        _print_outcomes(outcomes)
    return int(any(outcome.error for outcome in outcomes))


def run_drain(options: argparse.Namespace) -> int:
    """Drain boxes."""
    return _each(options, "drain", lambda name: f"{name} is drained: it gets no new host")


def run_resume(options: argparse.Namespace) -> int:
    """Allow new hosts on drained boxes again."""
    return _each(options, "resume", lambda name: f"{name} is in use again")


def run_remove(options: argparse.Namespace) -> int:
    """Remove boxes, and wait until they have ended all leases. Return 1 if a box does not answer or takes too long."""
    connection = connect()
    _check_known(connection, options.boxes)
    for name in options.boxes:
        connection.post(_box_path(name, "remove"), {"force": options.force})
    deadline_s = time.monotonic() + REMOVAL_LIMIT_S
    while left := [box for box in connection.get("boxes")["boxes"] if box["name"] in options.boxes]:
        if time.monotonic() > deadline_s or all(box["why"].startswith("not heard of") for box in left):
            break
        time.sleep(POLL_S)
    words = {box["name"]: f"is removed once it answers: {box['why']}" for box in left}
    if options.json:
        print(json.dumps({name: name not in words for name in options.boxes}, indent=2))
    else:
        for name in options.boxes:
            print(f"{name} {visible(words.get(name, 'is removed'))}")
    return int(bool(left))


def run_token(options: argparse.Namespace) -> int:
    """Print a token for joining, with the fingerprint of the service's authority before it."""
    made = connect().post("join-tokens", {"valid_s": options.minutes * 60})
    token = f"{fingerprint(made['ca_pem'])}.{made['token']}"
    if options.json:
        facts = {"token": token, "expires_at": made["expires_at"], "service_url": made["service_url"]}
        print(json.dumps(facts, indent=2))
        return 0
    print(token)
    print(f"on the box, with this line in a file: clary join {made['service_url']} --token-file FILE", file=sys.stderr)
    return 0


@dataclass(frozen=True)
class _Wanted:
    name: str
    place: Place
    scratch: str


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    name: str
    error: str = ""
    state: str = ""
    facts: Mapping[str, Any] | None = None
    restarts: str = ""
    warning: str = ""

    @property
    def plain(self) -> dict[str, Any]:
        return {"name": self.name, "error": self.error, "state": self.state, "facts": self.facts, "note": self.warning}


def _wanted(options: argparse.Namespace, target: str) -> _Wanted:
    host = target.rpartition("@")[2]
    name = options.name or host.replace("_", "-")
    if not BOX_NAME.fullmatch(name):
        raise ClaryError(f"{name!a} is no name for a box: letters, digits, - and .; use --name", fault=Fault.USER)
    if options.scratch and not options.scratch.startswith("/"):
        raise ClaryError(f"--scratch {options.scratch!a}: expected an absolute path", fault=Fault.USER)
    place = Place(target=target, python=options.python, ssh_options=tuple(options.ssh_option))
    return _Wanted(name, place, options.scratch)


def _outcome(connection: Connection, page: Mapping[str, Any], wanted: _Wanted) -> _Outcome:
    try:
        return _add(connection, page, wanted)
    except (ClaryError, WireError) as error:
        return _Outcome(name=wanted.name, error=error.message)


def _add(connection: Connection, page: Mapping[str, Any], wanted: _Wanted) -> _Outcome:
    """Probe one box, register it with the service, install the daemon, and wait for its first request."""
    service = {"url": page["service_url"], "ca_pem": page["ca_pem"], "scratch": wanted.scratch}
    began_s = time.time()
    found = ask_node(wanted.place, "probe", service)
    ahead_s = clock_ahead_s(float(found.get("time") or 0.0), began_s=began_s, ended_s=time.time())
    new = checked_probe(found, wanted.name, str(page["service_url"]))
    is_known = any(box["name"] == wanted.name for box in page["boxes"])
    admission = connection.post("boxes", new)
    try:
        started = ask_node(
            wanted.place,
            "install",
            {
                "name": wanted.name,
                "url": admission["service_url"],
                "ca_pem": admission["ca_pem"],
                "token": admission["token"],
                "scratch": wanted.scratch,
            },
        )
    except ClaryError:
        if not is_known:  # a box that was registered before stays registered, with its hosts
            connection.post(_box_path(wanted.name, "remove"), {"force": True})
        raise
    box = _await_ready(connection, wanted.name, str(started.get("daemon", "")))
    return _Outcome(
        name=wanted.name,
        state=box["state"],
        facts={key: box[key] for key in ("num_cpus", "memory_bytes", "gpus", "isolation")},
        restarts=box["restarts"],
        warning=clock_words(wanted.name, ahead_s),
    )


def _await_ready(connection: Connection, name: str, daemon: str) -> dict[str, Any]:
    deadline_s = time.monotonic() + READY_LIMIT_S
    while True:
        box: dict[str, Any] | None = next(
            (box for box in connection.get("boxes")["boxes"] if box["name"] == name), None
        )
        if box is None:
            raise ClaryError(f"{name}: it was removed meanwhile", fault=Fault.USER)
        is_there = box["was_heard"] and box["daemon"] == daemon and box["state"] != "silent"
        is_late = time.monotonic() > deadline_s
        if is_there and (box["state"] != "unknown" or is_late):  # unknown: its driver has not reported its GPUs yet
            return box
        if is_late:
            raise ClaryError(
                f"{name}: its daemon was started, but has not contacted the service within "
                f"{READY_LIMIT_S:.0f} s; see node.log below ~/.clary-node there",
                fault=Fault.INFRASTRUCTURE,
            )
        time.sleep(POLL_S)


def _print_outcomes(outcomes: list[_Outcome]) -> None:
    widest = max(len(outcome.name) for outcome in outcomes)
    for outcome in outcomes:
        if outcome.error:
            print(f"clary: {outcome.error}", file=sys.stderr)
        elif outcome.facts is not None:
            print(f"{outcome.name.ljust(widest)}   {outcome.state}   {visible(shape_words(outcome.facts))}")
        if outcome.warning:
            print(f"clary: {outcome.warning}", file=sys.stderr)
        if outcome.restarts.startswith("nothing"):
            print(f"clary: {outcome.name}: after a reboot it is started by: clary hosts add", file=sys.stderr)


def _each(options: argparse.Namespace, act: str, words: Callable[[str], str]) -> int:
    connection = connect()
    _check_known(connection, options.boxes)
    for name in options.boxes:
        connection.post(_box_path(name, act), {})
    if options.json:
        print(json.dumps({"boxes": options.boxes, "done": act}, indent=2))
    else:
        for name in options.boxes:
            print(words(name))
    return 0


def _check_known(connection: Connection, names: Sequence[str]) -> None:
    """Refuse names of no box before anything is done: the others must not lose their hosts. Raises: WireError 404."""
    known = {box["name"] for box in connection.get("boxes")["boxes"]}
    for name in names:
        if name not in known:
            raise WireError("NotFound", f"there is no box {name!a}; see: clary hosts", http_status=404)


def _box_path(name: str, act: str) -> str:
    return f"boxes/{quote(name, safe='')}/{act}"
