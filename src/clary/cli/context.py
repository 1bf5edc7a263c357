"""`clary context`: give names to remote services, and choose the service that commands talk to."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from clary.base.errors import ClaryError, Fault
from clary.cli.connection import connect
from clary.cli.contexts import (
    CONTEXT_VARIABLE,
    LOCAL,
    URL_VARIABLE,
    Contexts,
    RemoteService,
    chosen_service,
    context_folder,
    read_contexts,
    read_service,
    write_contexts,
)
from clary.cli.tables import table
from clary.control.clients.client_profiles import forget_profiles
from clary.control.settings import load_settings
from clary.control.state_folder import StateFolder


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("context", help="name services elsewhere, and choose which one commands talk to")
    parser.set_defaults(run=run_list)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    listing = actions.add_parser("list", help="list contexts; * marks the chosen one (the default action)")
    listing.set_defaults(run=run_list)
    use = actions.add_parser("use", help=f"talk to this one from now on; {LOCAL}: this machine's service")
    use.add_argument("name", metavar="NAME", help="of a context")
    use.set_defaults(run=run_use)
    add = actions.add_parser("add", help="name a service, from what `clary context export` has printed there")
    add.add_argument("name", metavar="NAME", help="that it has here")
    add.add_argument("file", metavar="FILE", help="with what was printed; - reads standard input")
    add.add_argument("--url", metavar="URL", help="under which it is reached from here, if not the printed one")
    add.add_argument("--ca-file", metavar="FILE", help="certificate of the authority that has signed the service's")
    add.add_argument("--plain-http", action="store_true", help="let keys go there without TLS")
    add.set_defaults(run=run_add)
    remove = actions.add_parser("remove", help="forget one, with its keys")
    remove.add_argument("name", metavar="NAME", help="of a context")
    remove.set_defaults(run=run_remove)
    export = actions.add_parser(
        "export", help="print address and keys of the service, for `clary context add` elsewhere"
    )
    export.add_argument("--url", metavar="URL", help="under which it is reached from elsewhere")
    export.set_defaults(run=run_export)
    parser.add_argument("--json", action="store_true", help="print JSON")
    for action in (listing, use, add, remove, export):
        action.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")


def run_list(options: argparse.Namespace) -> int:
    """Print one line for each context; keys are not shown."""
    settings = load_settings()
    contexts = read_contexts(settings)
    chosen = chosen_service(settings)
    name = LOCAL if chosen is None else chosen[0]
    places = {LOCAL: str(settings.home_folder), **{key: one.url for key, one in contexts.services.items()}}
    if chosen is not None and name not in places:
        places[name] = chosen[1].url  # CLARY_URL
    if options.json:
        found = [{"name": key, "place": place, "is_current": key == name} for key, place in places.items()]
        print(json.dumps(found, indent=2))
        return 0
    rows = [("*" if key == name else "", key, place) for key, place in places.items()]
    print(table(("", "NAME", "PLACE"), rows))
    return 0


def run_use(options: argparse.Namespace) -> int:
    """Choose a context for all later commands."""
    settings = load_settings()
    contexts = read_contexts(settings)
    if options.name != LOCAL:
        contexts.of(options.name).check(f"context {options.name}")
    write_contexts(settings, replace(contexts, current=options.name))
    _say(options, {"current": options.name}, f"commands talk to {options.name} from now on")
    chosen = chosen_service(settings)
    if (LOCAL if chosen is None else chosen[0]) != options.name:
        print(f"clary: but here {CONTEXT_VARIABLE} or {URL_VARIABLE} is set, which comes first", file=sys.stderr)
    return 0


def run_add(options: argparse.Namespace) -> int:
    """Store address and keys of a service. Raises: ClaryError (fault USER)."""
    settings = load_settings()
    if options.name == LOCAL or not options.name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise ClaryError(
            f"{options.name!a} is no name for a context: letters, digits, - _ and . but not {LOCAL}", fault=Fault.USER
        )
    try:
        service = read_service(json.loads(_text(options.file)))
    except ValueError as error:
        raise ClaryError(
            f"{options.file}: expected what `clary context export` prints: {error}", fault=Fault.USER
        ) from error
    changes: dict[str, Any] = {"plain_http": options.plain_http or service.plain_http}
    if options.url:
        changes["url"] = options.url.rstrip("/")
    if options.ca_file:
        changes["ca_file"] = str(Path(options.ca_file).absolute())
    service = replace(service, **changes)
    service.check(f"context {options.name}")
    contexts = read_contexts(settings)
    write_contexts(settings, replace(contexts, services={**contexts.services, options.name: service}))
    text = f"{options.name} is {service.url}; talk to it with: clary context use {options.name}"
    _say(options, {"name": options.name, "url": service.url}, text)
    return 0


def run_remove(options: argparse.Namespace) -> int:
    """Delete a context, and the files with its keys. Raises: ClaryError; WireError NotFound."""
    settings = load_settings()
    contexts = read_contexts(settings)
    contexts.of(options.name)
    try:
        forget_profiles(StateFolder(context_folder(settings, options.name)).client)
    except OSError as error:
        raise ClaryError(
            f"{error.filename} holds keys of {options.name} and cannot be removed: {error.strerror}; remove it and "
            f"repeat clary context remove {options.name}",
            fault=Fault.USER,
        ) from error
    left = {name: one for name, one in contexts.services.items() if name != options.name}
    current = LOCAL if contexts.current == options.name else contexts.current
    write_contexts(settings, Contexts(current=current, services=left))
    _say(options, {"removed": options.name, "current": current}, f"{options.name} is forgotten, with its keys")
    return 0


def run_export(options: argparse.Namespace) -> int:
    """Print the address and secrets of the service; their holder has full rights there."""
    connection = connect()
    record, secrets, settings = connection.record, connection.secrets, connection.settings
    service = RemoteService(
        url=options.url or record.url,
        access_key_id=secrets.access_key_id,
        secret_access_key=secrets.secret_access_key,
        admin_token=secrets.admin_token,
        region=settings.region,
        default_bucket=settings.default_bucket,
        account_id=settings.account_id,
        role_name=settings.role_name,
    )
    print(json.dumps(asdict(service), indent=2))
    return 0


def _say(options: argparse.Namespace, facts: Mapping[str, Any], text: str) -> None:
    print(json.dumps(facts, indent=2) if options.json else text)


def _text(path: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ClaryError(f"{path}: cannot be read: {error}", fault=Fault.USER) from error
