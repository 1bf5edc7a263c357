"""Commands of a box: `python node.pyz probe | install | run FOLDER | keep FOLDER`.

Where: `packing` makes the zip; `clary hosts add` sends it over SSH, `clary join` starts it on the box itself. `run` is
the daemon, `keep` runs one lease and is started by the daemon. `probe` and `install` read JSON and print one
line of JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clary.agent.node.daemon import run_daemon
from clary.agent.node.installation import InstallError, install
from clary.agent.node.keeper import keep_lease
from clary.agent.node.probing import probe

ANSWER = "CLARY-NODE "  # prefix of the output line that counts, since users' shells print greetings
MAX_REQUEST_BYTES = 1024 * 1024
EXIT_FAILED, EXIT_USAGE = 1, 2


def main(arguments: list[str]) -> int:
    """Execute one command; return its exit code."""
    match arguments:
        case ["probe"]:
            return _answer(probe(_request()))
        case ["install"]:
            try:
                return _answer(install(_request(), _archive()))
            except InstallError as error:
                return _answer({"error": str(error)})
        case ["run", folder]:
            return run_daemon(Path(folder), _archive())
        case ["keep", folder]:
            return keep_lease(Path(folder))
    print("expected probe, install, run FOLDER or keep FOLDER", file=sys.stderr)
    return EXIT_USAGE


def _request() -> Mapping[str, Any]:
    text = sys.stdin.buffer.read(MAX_REQUEST_BYTES)
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("expected an object on standard input")
    return document


def _answer(document: Mapping[str, Any]) -> int:
    print(f"{ANSWER}{json.dumps(document)}", flush=True)
    return EXIT_FAILED if document.get("error") else 0


def _archive() -> Path:
    """Return the zip file from which this code was loaded."""
    return Path(__file__).parents[3]  # FILE.pyz/clary/agent/node/__main__.py


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
