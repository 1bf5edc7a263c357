"""Write the table of profiler rules in `docs/profiler.md` from the rules' docstrings and fields.

Run: `python tools/make_profiler_rules_table.py`; `--check` changes nothing and fails if it is out of date.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from pathlib import Path

from clary.control.profiling.rule import ProfilerRule, summary_of
from clary.control.profiling.rules import RULES

PAGE = Path(__file__).parent.parent / "docs/profiler.md"
BEGIN, END = "<!-- rules: written by tools/make_profiler_rules_table.py -->", "<!-- end of rules -->"
_ARGUMENT = re.compile(r"^    (\w+): ", re.MULTILINE)


def main() -> int:
    """Write the page, or say that it is out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    wanted = with_table(page)
    if options.check and wanted != page:
        print(f"{PAGE} is out of date: run python tools/make_profiler_rules_table.py", file=sys.stderr)
        return 1
    if not options.check:
        PAGE.write_text(wanted, encoding="utf-8")
    return 0


def with_table(page: str) -> str:
    """Return a page with the table between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}{END}{after}"


def table() -> str:
    """Return the table: name, what it says, formula, parameters with defaults."""
    lines = ["| rule | it fires when | formula | parameters and defaults |", "|---|---|---|---|"]
    return "\n".join([*lines, *(_row(name, rule) for name, rule in RULES.items())]) + "\n"


def _row(name: str, rule: type[ProfilerRule]) -> str:
    body, _, arguments = (inspect.getdoc(rule) or "").partition("Args:\n")
    formula = " ".join(body.partition("Formula: ")[2].split())
    parameters = {key: value for key, value in rule().parameters().items() if key != "scan_interval_us"}
    described = [key for key in _ARGUMENT.findall(arguments) if key != "scan_interval_us"]
    if sorted(described) != sorted(parameters):
        raise ValueError(f"{name} takes {list(parameters)}, its docstring describes {described}")
    given = ", ".join(f"`{key}={parameters[key]!r}`" for key in described) or "none"
    cells = (f"`{name}`", summary_of(rule), formula, given)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
