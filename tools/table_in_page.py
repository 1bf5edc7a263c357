"""A table within a page of the documentation that a tool writes between two marks.

Where: `make_rules_table` and `make_profiler_rules_table`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

END = "<!-- end of rules -->"


def with_table(page: str, table: str, *, tool: str) -> str:
    """Return a page with the table between the marks of a tool. Pure.

    Args:
        page: with both marks.
        table: lines with their ends.
        tool: file name of who writes it.
    """
    begin = f"<!-- rules: written by tools/{tool} -->"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(END)
    return f"{before}{begin}\n{table}{END}{after}"


def write_page(path: Path, table: str, *, tool: str, description: str | None) -> int:
    """Write a page, or with `--check` on the command line return 1 if it is out of date."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    page = path.read_text(encoding="utf-8")
    wanted = with_table(page, table, tool=tool)
    if options.check and wanted != page:
        print(f"{path} is out of date: run python tools/{tool}", file=sys.stderr)
        return 1
    if not options.check:
        path.write_text(wanted, encoding="utf-8")
    return 0
