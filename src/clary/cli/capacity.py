"""`clary capacity`: the nodes that can run hosts, and their instance types."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from clary.cli.connection import connect
from clary.cli.tables import table

_GIB = 1 << 30


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("capacity", help="show the nodes that hosts can come from, by kind")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print one line for each kind of node."""
    page = connect().get("capacity")
    if options.json:
        print(json.dumps(page, indent=2))
        return 0
    if not page["kinds"]:
        words = "shows no nodes that jobs could use" if page.get("remarks") else "has no nodes"
        print(f"{page['engine']} {words}{_advice(page['engine'])}")
        _print_remarks(page)
        return 1
    rows = [
        (
            ", ".join(kind["instance_types"]) or "by shape",
            str(kind["num_nodes"]),
            f"{kind['num_free']:g}",  # hosts of this machine may be fractions
            str(kind["num_cpus"]),
            f"{kind['memory_bytes'] / _GIB:.0f} GiB",
            str(kind["num_gpus"]),
            kind["maps_to"] + (f"; {kind['isolation']}" if kind["isolation"] else ""),
        )
        for kind in page["kinds"]
    ]
    print(f"engine {page['engine']}" + (f", nodes reach the service at {page['url']}" if page["url"] else ""))
    print(table(("TYPE", "NODES", "FREE", "CPUS", "MEMORY", "GPUS", "MAPS TO"), rows))
    in_rows = sum(kind["num_nodes"] for kind in page["kinds"])
    num_nodes = page.get("num_nodes", in_rows)  # a service of an earlier version does not send it
    if num_nodes != in_rows:
        print(f"{num_nodes} nodes in all: some are in several rows")
    if out_of_use := dict.fromkeys(words for kind in page["kinds"] if (words := kind.get("out_of_use", ""))):
        print(f"out of use: {', '.join(out_of_use)}")
    _print_remarks(page)
    return 0


def _print_remarks(page: Mapping[str, Any]) -> None:
    for remark in page.get("remarks", ()):  # a service of an earlier version sends none
        print(f"!! {remark}")


def _advice(engine: str) -> str:
    return ": add machines with: clary hosts add USER@HOST" if engine == "boxes" else ""
