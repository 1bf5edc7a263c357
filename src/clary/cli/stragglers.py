"""`clary stragglers JOB`: how each rank spends the time of its steps, and which rank the others wait for."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from clary.cli.connection import connect
from clary.cli.tables import duration, table

_MS_PER_S = 1000
_SHORT_S = 0.1  # shorter steps are shown in milliseconds
_COLUMNS = (
    ("STEP", "step_s"),
    ("DATA", "data_wait_s"),
    ("FORWARD", "forward_s"),
    ("BACKWARD", "backward_s"),
    ("COMMUNICATION", "communication_s"),
    ("OPTIMIZER", "optimizer_s"),
    ("OTHER", "other_s"),
)


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("stragglers", help="show where each rank's steps spend their time, and who is slow")
    parser.add_argument("job", metavar="JOB", help="name of a training job")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the table."""
    page = connect().job_page(options.job, "stragglers")
    print(json.dumps(page, indent=2) if options.json else stragglers_text(page))
    return 0


def stragglers_text(page: Mapping[str, Any]) -> str:
    """Return the table of ranks, with the verdict below it."""
    span_s = (page["until_ms"] - page["since_ms"]) / _MS_PER_S
    is_short = max((rank["step_s"] for rank in page["ranks"]), default=1.0) < _SHORT_S
    unit, factor, places = ("milliseconds", _MS_PER_S, 1) if is_short else ("seconds", 1, 3)
    head = f"{page['job']}  {page['status']}"
    lines = [f"{head}, {unit} of a step, medians of {duration(span_s)}" if page["ranks"] else head]
    if page["ranks"]:
        header = ["HOST", "RANK", *[title for title, _ in _COLUMNS]]
        rows = [
            [rank["host"], str(rank["rank"]), *[f"{rank[name] * factor:.{places}f}" for _, name in _COLUMNS]]
            for rank in page["ranks"]
        ]
        lines += ["", table(header, rows)]
    return "\n".join([*lines, "", *verdict_lines(page["verdict"])])


def verdict_lines(verdict: Mapping[str, Any]) -> list[str]:
    """Return the verdict in a line, and its evidence below."""
    confidence = f"  ({verdict['confidence']} confidence)" if verdict["confidence"] else ""
    return [f"{verdict['text']}{confidence}", *[f"  - {words}" for words in verdict["evidence"]]]
