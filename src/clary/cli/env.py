"""`clary env`: print the environment variables that a client needs; use it as: eval "$(clary env)"."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from clary.base.errors import ClaryError, Fault
from clary.cli.connection import Connection, connect
from clary.contract.launch_plan import Credentials
from clary.control.client_files import (
    CA_FILE,
    SAGEMAKER_CONFIG,
    UNSET_VARIABLES,
    client_variables,
    sagemaker_config,
    tls_variables,
)
from clary.control.settings import load_settings
from clary.control.state_folder import StateFolder


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("env", help='print variables for clients: eval "$(clary env)"')
    parser.add_argument("--tls", action="store_true", help="also answer as https://sts.<region>.amazonaws.com")
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
        names = tuple(client_variables(settings, url="", credentials=nobody, client_folder=folder.client))
        return _print_unset(names + (tls_names if has_tls or options.tls else ()), as_json=options.json)
    connection = connect()
    if connection.context:
        return _run_elsewhere(connection, options)
    if options.tls and not connection.record.tls_url:
        raise ClaryError("the service has no TLS port: set tls_port and start it again", fault=Fault.USER)
    credentials = connection.secrets.credentials
    variables = {
        **client_variables(settings, url=connection.record.url, credentials=credentials, client_folder=folder.client),
        **(tls_variables(folder.tls, proxy_url=connection.record.proxy_url, environ=os.environ) if options.tls else {}),
    }
    unset = UNSET_VARIABLES + (tls_names if has_tls and not options.tls else ())
    return _print(variables, unset, as_json=options.json)


def _run_elsewhere(connection: Connection, options: argparse.Namespace) -> int:
    """Print the variables for a service elsewhere, and write the file that they name."""
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
    variables = dict(client_variables(connection.settings, url=url, credentials=credentials, client_folder=folder))
    if connection.ca_file:
        variables["AWS_CA_BUNDLE"] = connection.ca_file
    return _print(variables, UNSET_VARIABLES, as_json=options.json)


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
    return 0
