"""Write the table of built-in rules in `docs/debugger.md` from the rules' docstrings and signatures.

Run: `python tools/make_rules_table.py`; with `--check` it changes nothing and fails if the table is out of date.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from pathlib import Path

from clary.train.debugger.rules import RULES, parameters_of

PAGE = Path(__file__).parent.parent / "docs/debugger.md"
BEGIN, END = "<!-- rules: written by tools/make_rules_table.py -->", "<!-- end of rules -->"


def main() -> int:
    """Write the page, or say that it is out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    wanted = with_table(page)
    if options.check and wanted != page:
        print(f"{PAGE} is out of date: run python tools/make_rules_table.py", file=sys.stderr)
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
    for name, rule in RULES.items():
        summary, formula, arguments = _parts(inspect.getdoc(rule) or "")
        parameters = parameters_of(rule)
        if list(parameters) != arguments:
            raise ValueError(f"{name} takes {list(parameters)}, its docstring describes {arguments}")
        given = ", ".join(f"`{one.name}={one.default!r}`" for one in parameters.values())
        lines.append(f"| `{name}` | {summary} | {formula} | {given} |")
    return "\n".join(_escaped(line) for line in lines) + "\n"


def _parts(docstring: str) -> tuple[str, str, list[str]]:
    """Return a docstring's first sentence without its full stop, its formula, and the names of its arguments."""
    summary, _, rest = docstring.partition("\n")
    body, _, arguments = rest.partition("Args:\n")
    formula = " ".join(body.replace("Formula:", "").split())
    names = [
        line.strip().partition(":")[0] for line in arguments.splitlines() if line.startswith("    ") and ":" in line
    ]
    return summary[0].lower() + summary.rstrip(".")[1:], formula, [name for name in names if " " not in name]


def _escaped(line: str) -> str:
    """Return a row whose bars within cells do not end them."""
    if line.startswith("|---"):
        return line
    cells = line.strip("| ").split(" | ")
    return "| " + " | ".join(cell.replace("\\|", "|").replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
