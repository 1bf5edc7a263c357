"""`clary env`: print what a client needs; use it as: eval "$(clary env)"."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from clary.cli.connection import connect
from clary.contract.errors import ClaryError, Fault
from clary.control.client_files import UNSET_VARIABLES, TlsClient, client_variables


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("env", help='print variables for clients: eval "$(clary env)"')
    parser.add_argument("--tls", action="store_true", help="also answer as https://sts.<region>.amazonaws.com")
    parser.add_argument("--unset", action="store_true", help="print what takes them away again")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print shell lines."""
    connection = connect()
    if options.tls and not connection.record.tls_url:
        raise ClaryError("the service has no TLS port: set tls_port and start it again", fault=Fault.USER)
    variables = client_variables(
        connection.settings,
        url=connection.record.url,
        credentials=connection.secrets.credentials,
        client_folder=connection.folder.client,
        tls=TlsClient(folder=connection.folder.tls, proxy_url=connection.record.proxy_url) if options.tls else None,
    )
    if options.unset:
        print(f"unset {' '.join(variables)}")
        return 0
    print(f"unset {' '.join(UNSET_VARIABLES)}")
    for name, value in variables.items():
        print(f"export {name}={shlex.quote(value)}")
    return 0
