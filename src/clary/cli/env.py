"""`clary env`: print the environment variables that a client needs; use it as: eval "$(clary env)"."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from clary.base.errors import ClaryError, Fault
from clary.cli.connection import Connection, connect
from clary.cli.contexts import URL_VARIABLE
from clary.contract.launch_plan import Credentials
from clary.control.clients.client_files import (
    CA_FILE,
    SAGEMAKER_CONFIG,
    UNSET_VARIABLES,
    client_variables,
    sagemaker_config,
    tls_variables,
)
from clary.control.clients.client_profiles import checked_name, is_profile_name, profile_variables, write_profiles
from clary.control.settings import load_settings
from clary.control.state_folder import StateFolder

PROFILE_VARIABLES = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE")


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("env", help='print variables for clients: eval "$(clary env)"')
    parser.add_argument("--tls", action="store_true", help="also answer as https://sts.<region>.amazonaws.com")
    parser.add_argument(
        "--profile",
        action="append",
        default=[],
        metavar="NAME",
        help="make this AWS profile lead to the service too, like default; may be repeated",
    )
    parser.add_argument("--unset", action="store_true", help="print commands that unset the variables")
    parser.add_argument(
        "--json", action="store_true", help="print the variables as a JSON object; with --unset their names as a list"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print shell lines. Raises: ClaryError (fault USER)."""
    settings = load_settings()
    folder = StateFolder(settings.home_folder)
    tls_names = tuple(tls_variables(folder.tls, proxy_url="", environ=os.environ))
    # A proxy and a certificate bundle from another source are kept.
    has_tls = os.environ.get("AWS_CA_BUNDLE") == str(folder.tls / CA_FILE)
    if options.unset:  # this part needs no service
        nobody = Credentials(access_key_id="", secret_access_key="")
        names = (
            *client_variables(settings, url="", credentials=nobody, client_folder=folder.client),
            *profile_variables(folder.client),
        )
        return _print_unset(names + (tls_names if has_tls or options.tls else ()), as_json=options.json)
    for name in options.profile:
        checked_name(name)
    connection = connect()
    if connection.context:
        return _run_elsewhere(connection, options)
    if options.tls and not connection.record.tls_url:
        raise ClaryError("the service has no TLS port: set tls_port and start it again", fault=Fault.USER)
    credentials = connection.secrets.credentials
    variables = {
        **client_variables(settings, url=connection.record.url, credentials=credentials, client_folder=folder.client),
        **_profiles(connection, folder, options),
        **(tls_variables(folder.tls, proxy_url=connection.record.proxy_url, environ=os.environ) if options.tls else {}),
    }
    unset = UNSET_VARIABLES + (tls_names if has_tls and not options.tls else ())
    return _print(variables, unset, as_json=options.json)


def _run_elsewhere(connection: Connection, options: argparse.Namespace) -> int:
    """Print the variables for a service elsewhere, and write the files that they name."""
    if options.tls:
        raise ClaryError(
            f"--tls belongs to a service on this machine, and {connection.context} names one elsewhere",
            fault=Fault.USER,
        )
    folder = connection.folder.client
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SAGEMAKER_CONFIG).write_text(sagemaker_config(connection.settings), encoding="utf-8")
    credentials = connection.secrets.credentials
    url = connection.record.url
    variables = {
        **client_variables(connection.settings, url=url, credentials=credentials, client_folder=folder),
        **_profiles(connection, connection.folder, options),
    }
    if connection.ca_file:
        variables["AWS_CA_BUNDLE"] = connection.ca_file
    return _print(variables, UNSET_VARIABLES, as_json=options.json)


def _profiles(connection: Connection, folder: StateFolder, options: argparse.Namespace) -> Mapping[str, str]:
    """Write the profiles, and return their variables; no variables, but a message, if a file can not be written."""
    # Keys that come from the environment alone are not written to a disk.
    credentials = None if connection.context == URL_VARIABLE else connection.secrets.credentials
    try:
        write_profiles(
            folder.client,
            connection.settings,
            url=connection.record.url,
            credentials=credentials,
            names=(*options.profile, *filter(is_profile_name, _profiles_of_shell().values())),
        )
    except OSError as error:
        print(
            f"clary: {folder.client} can not be written ({error.strerror}): clients will not find AWS profiles that "
            "lead to this service; name no profile, or free the disk and repeat clary env",
            file=sys.stderr,
        )
        return {}
    if credentials is None:
        for name in options.profile:
            print(
                f"clary: the profile {name} has no keys: those of {URL_VARIABLE} are in the environment alone, and are "
                "not written to a file; choose it by AWS_PROFILE, or use clary context add",
                file=sys.stderr,
            )
    return profile_variables(folder.client)


def _profiles_of_shell() -> Mapping[str, str]:
    """Return the variables of the caller's shell that choose a profile."""
    return {name: os.environ[name] for name in PROFILE_VARIABLES if os.environ.get(name)}


def _say_profiles(has_files: bool) -> None:
    """Print a comment on each profile that the caller's shell chooses, or a message for a bad name."""
    for variable, name in _profiles_of_shell().items():
        if not is_profile_name(name):
            print(f"clary: {variable} is unset: {name[:150]!a} is no name for a profile here", file=sys.stderr)
        elif has_files:
            print(f"# {variable} was {name} and is unset: the profile {name} leads to this service too")


def _print_unset(names: Sequence[str], *, as_json: bool) -> int:
    print(json.dumps(list(names), indent=2) if as_json else f"unset {' '.join(names)}")
    return 0


def _print(variables: Mapping[str, str], unset: Sequence[str], *, as_json: bool) -> int:
    if as_json:
        print(json.dumps(dict(variables), indent=2))
        return 0
    print(f"unset {' '.join(unset)}")
    for name, value in variables.items():
        print(f"export {name}={shlex.quote(value)}")
    _say_profiles("AWS_CONFIG_FILE" in variables)
    return 0
