"""`clary console`: the console's address, and a link that signs in."""

from __future__ import annotations

import argparse
import json
from typing import Any

from clary.cli.connection import connect


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("console", help="print the console's address and a link that signs in once")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the address, and a link with a one-time code; open nothing."""
    connection = connect()
    answer = connection.post("session-code", {})
    # A browser does not send the fragment: the code appears in no log of a server or a proxy.
    found = {
        "url": f"{connection.record.url}/",
        "sign_in_url": f"{connection.record.url}/#code={answer['code']}",
        "valid_s": answer["valid_s"],
    }
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    print(f"console   {found['url']}")
    print(f"sign in   {found['sign_in_url']}")
    if connection.context:
        print(f"          works once, within {found['valid_s']:g} s")
        return 0
    print(f"          works once, within {found['valid_s']:g} s; or sign in with the admin token, which is in")
    print(f"          {connection.folder.root / 'secrets' / 'root.json'}")
    return 0
