"""Write the table of floors in ARCHITECTURE.md from `.importlinter`, which `make check` holds the code against.

Run: `python tools/write_floors.py`; with `--check` it changes nothing and fails if the table is out of date.
"""

from __future__ import annotations

import argparse
import configparser
import os
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "ARCHITECTURE.md"
CONTRACTS = ROOT / ".importlinter"
BEGIN = "<!-- floors: written by tools/write_floors.py -->\n"
END = "<!-- end of floors -->\n"
HEAD = "| package | floors, the lowest first: each may import those before it, and none beside it |\n|---|---|\n"


def table(text: str) -> str:
    """Return the table for the text of `.importlinter`: a row for each contract of layers, in their order there."""
    parser = configparser.ConfigParser()
    parser.read_string(text)
    contracts = [parser[name] for name in parser.sections() if parser[name].get("type") == "layers"]
    return HEAD + "".join(map(_row, contracts))


def main() -> int:
    """Write the table, or with --check compare it."""
    parser = argparse.ArgumentParser(description="Write the table of floors in ARCHITECTURE.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the table is out of date")
    is_check = parser.parse_args().check
    page = PAGE.read_text(encoding="utf-8")
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        print(f"{PAGE.name}: the marks around the table of floors are missing: {BEGIN.strip()} ... {END.strip()}")
        return 1
    wanted = before + begin + table(CONTRACTS.read_text(encoding="utf-8")) + end + after
    if wanted == page:
        return 0
    if is_check:
        print(f"{PAGE.name}: the table of floors differs from {CONTRACTS.name}: run python tools/write_floors.py")
        return 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


def _row(contract: Mapping[str, str]) -> str:
    layers = [line.strip() for line in contract["layers"].splitlines() if line.strip()]
    package = contract.get("containers", "").strip()
    if not package:  # layers are written in full there
        modules = [module for layer in layers for module in _modules(layer)]
        package = os.path.commonpath([module.replace(".", "/") for module in modules]).replace("/", ".")
    floors = " < ".join(
        ", ".join(f"`{module.removeprefix(package).lstrip('.')}`" for module in _modules(layer))
        for layer in reversed(layers)
    )
    return f"| `{package}` | {floors} |\n"


def _modules(layer: str) -> list[str]:
    return [module.strip() for module in layer.replace(":", "|").split("|")]


if __name__ == "__main__":
    sys.exit(main())
