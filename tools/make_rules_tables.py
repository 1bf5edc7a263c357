"""Write the tables of built-in rules in `docs/debugger.md` and `docs/profiler.md` from docstrings and parameters.

Run: `python tools/make_rules_tables.py`; with `--check` it changes nothing and fails if a page is out of date.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clary.control.profiling.rules import RULES as PROFILER_RULES
from clary.train.debugger.rules import RULES as DEBUGGER_RULES
from clary.train.debugger.rules import parameters_of

DOCS = Path(__file__).parent.parent / "docs"
DEBUGGER_PAGE, PROFILER_PAGE = DOCS / "debugger.md", DOCS / "profiler.md"
BEGIN, END = "<!-- rules: written by tools/make_rules_tables.py -->\n", "<!-- end of rules -->"
HEAD = "| rule | it fires when | formula | parameters and defaults |\n|---|---|---|---|\n"
_ARGUMENT = re.compile(r"^    (\w+): ", re.MULTILINE)
_SAID_ONCE = "scan_interval_us"  # all rules of the profiler have it


def main() -> int:
    """Write the pages, or say which are out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    old = {path: path.read_text(encoding="utf-8") for path in (DEBUGGER_PAGE, PROFILER_PAGE)}
    late = {path: page for path in old if (page := with_table(path)) != old[path]}
    for path, page in late.items():
        if options.check:
            print(f"{path} is out of date: run python tools/make_rules_tables.py", file=sys.stderr)
        else:
            path.write_text(page, encoding="utf-8")
    return 1 if options.check and late else 0


def with_table(path: Path) -> str:
    """Return a page with its table as the rules are now."""
    before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    rows = debugger_rows() if path == DEBUGGER_PAGE else profiler_rows()
    return f"{before}{BEGIN}{HEAD}{''.join(rows)}{END}{after}"


def debugger_rows() -> list[str]:
    """Return the rows of the debugger's rules."""
    return [
        _row(name, rule, {key: one.default for key, one in parameters_of(rule).items()})
        for name, rule in DEBUGGER_RULES.items()
    ]


def profiler_rows() -> list[str]:
    """Return the rows of the profiler's rules."""
    return [_row(name, rule, rule().parameters()) for name, rule in PROFILER_RULES.items()]


def _row(name: str, rule: type[Any], defaults: Mapping[str, Any]) -> str:
    """Return a table row: a rule's name, summary, formula, and parameters in the order of its docstring."""
    summary, _, rest = (inspect.getdoc(rule) or "").partition("\n")
    text, _, arguments = rest.partition("Args:\n")
    described = _ARGUMENT.findall(arguments)
    if sorted(described) != sorted(defaults):
        raise ValueError(f"{name} takes {list(defaults)}, its docstring describes {described}")
    given = ", ".join(f"`{key}={defaults[key]!r}`" for key in described if key != _SAID_ONCE)
    formula = " ".join(text.partition("Formula:")[2].split())
    cells = (f"`{name}`", _within_a_sentence(summary.rstrip(".")), formula.rstrip("."), given or "none")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _within_a_sentence(text: str) -> str:
    """Return a sentence as one that stands behind other words; abbreviations stay."""
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


if __name__ == "__main__":
    sys.exit(main())
