"""Write the table of floors in ARCHITECTURE.md from `.importlinter`, which `make check` holds the code against.

Run: `python tools/write_floors.py`; with `--check` it changes nothing and fails if the table is out of date, or if a
package with more than MOST_WITHOUT_FLOORS modules has no exhaustive contract of layers.
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
SOURCES = ROOT / "src"
MOST_WITHOUT_FLOORS = 15
BEGIN = "<!-- floors: written by tools/write_floors.py -->\n"
END = "<!-- end of floors -->\n"
HEAD = "| package | floors, the lowest first: each may import those before it, and none beside it |\n|---|---|\n"


def table(text: str) -> str:
    """Return the table for the text of `.importlinter`: a row for each contract of layers, in their order there."""
    parser = configparser.ConfigParser()
    parser.read_string(text)
    contracts = [parser[name] for name in parser.sections() if parser[name].get("type") == "layers"]
    return HEAD + "".join(map(_row, contracts))


def without_floors(text: str, sources: Path) -> list[str]:
    """Return a line for each large package that has no exhaustive contract of layers.

    Args:
        text: of `.importlinter`.
        sources: folder of the package `clary`.
    """
    parser = configparser.ConfigParser()
    parser.read_string(text)
    contracts = [parser[name] for name in parser.sections() if parser[name].get("type") == "layers"]
    have = {name for one in contracts if one.getboolean("exhaustive") for name in one.get("containers", "").split()}
    lines = []
    for folder in sorted({path.parent for path in (sources / "clary").rglob("__init__.py")}):
        package = ".".join(folder.relative_to(sources).parts)
        count = sum(1 for path in folder.glob("*.py") if path.stem != "__init__")
        if count > MOST_WITHOUT_FLOORS and package not in have:
            lines.append(
                f"{package}: {count} modules and no floors: give it an exhaustive contract in {CONTRACTS.name}"
            )
    return lines


def main() -> int:
    """Write the table, or with --check compare it."""
    parser = argparse.ArgumentParser(description="Write the table of floors in ARCHITECTURE.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the table is out of date")
    is_check = parser.parse_args().check
    contracts = CONTRACTS.read_text(encoding="utf-8")
    if is_check and (lines := without_floors(contracts, SOURCES)):
        print("\n".join(lines))
        return 1
    page = PAGE.read_text(encoding="utf-8")
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        print(f"{PAGE.name}: the marks around the table of floors are missing: {BEGIN.strip()} ... {END.strip()}")
        return 1
    wanted = before + begin + table(contracts) + end + after
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
