"""Writes the tables of `docs/clients.md`: how each test of the SDK ended, and why those failed that did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.sdk_tests.plan import ROOT
from tools.sdk_tests.reasons import REASONS, SKIPPED_BY_THE_SDK, Reason, reason_of
from tools.sdk_tests.running import Ended

PAGE = ROOT / "docs/clients.md"
_BEGIN = "<!-- SDK v{sdk}: written by tools/run_sdk_tests.py -->\n"
_END = "<!-- end of SDK v{sdk} -->"
_HEAD = "| test | outcome | reason |\n|---|---|---|\n"
_OUTCOMES = ("passed", "failed", "skipped", "not run")
_MOST_WORDS = 160


def write(sdk: int, result: Mapping[str, Any], ends: Sequence[Ended], path: Path = PAGE) -> None:
    """Replace the part of an SDK in the page."""
    begin, end = _BEGIN.format(sdk=sdk), _END.format(sdk=sdk)
    before, opened, rest = path.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not opened or not closed:
        raise ValueError(f"{path} has no lines {begin.strip()!r} and {end!r}, between which the table stands: add them")
    path.write_text(f"{before}{begin}{section(result, ends)}{end}{after}", encoding="utf-8")


def section(result: Mapping[str, Any], ends: Sequence[Ended], reasons: Sequence[Reason] = REASONS) -> str:
    """Return the counts of a run's outcomes, and a table for each file of tests."""
    packages = ", ".join(f"{name} {version}" for name, version in result["packages"].items())
    counts = Counter(end.outcome for end in ends)
    numbers = ", ".join(f"{counts[outcome]} {outcome}" for outcome in _OUTCOMES if counts[outcome])
    parts = [f"Tests of the repository at version {result['repository']}, with {packages}: **{numbers}**.\n"]
    files: dict[str, list[Ended]] = {}
    for end in ends:
        files.setdefault(end.test.partition("::")[0], []).append(end)
    for name, inside in files.items():
        rows = "".join(_row(end, reasons) for end in inside)
        parts.append(f"\n`{name}`\n\n{_HEAD}{rows}")
    return "\n" + "".join(parts) + "\n"


def unexplained(ends: Sequence[Ended], reasons: Sequence[Reason] = REASONS) -> list[Ended]:
    """Return the tests that neither passed nor were skipped, and for which no reason is known."""
    return [end for end in ends if end.outcome not in ("passed", "skipped") and reason_of(end, reasons) is None]


def _row(end: Ended, reasons: Sequence[Reason]) -> str:
    name = end.test.partition("::")[2] or end.test
    return f"| `{name}` | {end.outcome} | {_why(end, reasons)} |\n"


def _why(end: Ended, reasons: Sequence[Reason]) -> str:
    """Return why a test did not pass; nothing for one that did."""
    if end.outcome == "passed":
        return ""
    reason = reason_of(end, reasons)
    if reason is not None:
        return f"{reason.kind}: {reason.why}"
    if end.outcome == "skipped":
        said = end.words.removeprefix("Skipped: ").strip()
        return SKIPPED_BY_THE_SDK + (f": {_within_a_cell(said)}" if said and said != "unconditional skip" else "")
    return f"not looked at yet: {_within_a_cell(end.words)}"


def _within_a_cell(words: str) -> str:
    """Return words as one line of a table's cell, cut where they are long."""
    line = " ".join(words.split()).replace("|", "\\|").replace("<", "&lt;")
    return line if len(line) <= _MOST_WORDS else line[: _MOST_WORDS - 3] + "..."
