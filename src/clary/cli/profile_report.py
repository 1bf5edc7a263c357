"""`clary profile-report JOB`: findings of a job's profiler rules; `--output FILE` writes the report with pictures."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from clary.base.errors import ClaryError, Fault
from clary.cli.connection import connect


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("profile-report", help="what profiler rules say of a job, and its report as one page")
    parser.add_argument("job", metavar="JOB", help="name of a training job")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the report, one HTML file, here")
    parser.add_argument("--json", action="store_true", help="print what each rule says as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the verdicts, write the report. Raises: ClaryError (fault USER)."""
    query = {"format": "json", **({"html": "1"} if options.output is not None else {})}
    page = connect().job_page(options.job, "profiler-report", query)
    report = page.pop("html", "")
    if options.output is not None:
        try:
            options.output.write_text(report, encoding="utf-8", errors="replace")
        except OSError as error:
            raise ClaryError(
                f"the report cannot be written to {options.output}: {error.strerror}", fault=Fault.USER
            ) from error
    if options.json:
        print(json.dumps(page, indent=2))
        return 0
    print(verdicts_text(page))
    if options.output is not None:
        print(f"\nreport: {options.output}")
    return 0


def verdicts_text(page: dict[str, Any]) -> str:
    """Return the verdicts of the rules, rules with findings first, with their evidence and advice."""
    lines = [f"{page['job']}  {page['status']}"]
    order = sorted(page["rules"], key=lambda rule: (not rule["fires"], not rule["was_judged"]))
    for rule in order:
        word = "ISSUE" if rule["fires"] else "ok" if rule["was_judged"] else "-"
        lines.append(f"  {word:<6}{rule['rule']:<23}{rule['earlier'] or rule['detail']}")
        if rule["fires"]:
            lines += [f"{'':<31}{line}" for line in rule["evidence"][1:]]
            lines += [f"{'':<31}> {rule['advice']}"] if rule["advice"] else []
    return "\n".join(lines)
