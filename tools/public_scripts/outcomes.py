"""Outcomes of runs, and the tables that show them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.public_scripts.places import ROOT
from tools.public_scripts.table import Script

RAN, FAILED, TOO_LONG = "ran", "failed", "ended at the deadline"
REASON_CHARACTERS = 220
_ERROR = re.compile(
    r"(?:^|[\]>:] ?)((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Failure|Lost|Mismatch|Refused|NotFound)\b.*)"
)
_NOT_THE_CAUSE = re.compile(
    r"ChildFailedError|SignalException|CalledProcessError|ExecuteUserScriptError|UnexpectedStatusException"
)


@dataclass(frozen=True)
class Outcome:
    """One run of one script, one way."""

    name: str
    way: str
    result: str
    seconds: float
    reason: str = ""


def judge(script: Script, way: str, *, said: str, code: int | None, seconds: float) -> Outcome:
    """Return the outcome of a run.

    Args:
        said: all that it printed.
        code: its exit code; None if it did not end in time.
    """
    if code is None:
        return Outcome(script.name, way, TOO_LONG, seconds, last_error(said))
    if code:
        return Outcome(script.name, way, FAILED, seconds, last_error(said) or f"ended with {code} and no error")
    if not re.search(script.shows, said):
        return Outcome(
            script.name, way, FAILED, seconds, f"ended with 0, but nothing that it printed is {script.shows}"
        )
    return Outcome(script.name, way, RAN, seconds)


def last_error(said: str) -> str:
    """Return the first error that is no consequence of another, in one line; empty if there is no error."""
    found = (match[1].strip() for line in said.splitlines() if (match := _ERROR.search(line.rstrip())))
    first = next((one for one in found if not _NOT_THE_CAUSE.search(one)), "").replace(f"{ROOT}/", "")
    return first if len(first) <= REASON_CHARACTERS else f"{first[:REASON_CHARACTERS]} ..."


def read(path: Path) -> dict[tuple[str, str], Outcome]:
    """Return the outcomes in a file by script and way; empty if the file does not exist."""
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    return {(one.name, one.way): one for one in (Outcome(**json.loads(line)) for line in lines)}


def write(path: Path, outcomes: Iterable[Outcome]) -> None:
    """Write a file of outcomes, one a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(asdict(one)) for one in sorted(outcomes, key=lambda one: (one.name, one.way))]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def markdown(scripts: list[Script], outcomes: dict[tuple[str, str], Outcome], ways: list[str]) -> str:
    """Return the page's tables: counts, one row for each run of a script, and the scripts that were not run."""
    lines = ["| repository | script | distribution | commit | way | outcome | s | reason |", "|" + "---|" * 8]
    for script in scripts:
        for way in ways:
            one = outcomes.get((script.name, way))
            if one is None:
                continue
            reason = "; ".join(filter(None, [one.reason, script.note])).replace("|", "\\|").replace("`", "'")
            cells = [
                script.repository,
                f"`{script.path.strip()}` ({script.name})",
                f"{script.distribution}, {f'{script.hosts} x ' if script.hosts > 1 else ''}{script.ranks}",
                script.commit[:12],
                way,
                one.result,
                f"{one.seconds:.0f}",
                reason,
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*_counts(scripts, outcomes, ways), "", *lines, "", *_not_run(scripts, outcomes)])


def _not_run(scripts: list[Script], outcomes: dict[tuple[str, str], Outcome]) -> list[str]:
    tried = {name for name, _ in outcomes}
    lines = [
        f"- {script.name}: {script.repository}, `{script.path.strip()}`{f' ({script.note})' if script.note else ''}"
        for script in scripts
        if script.name not in tried
    ]
    return ["In the tables, and not run yet:", "", *lines, ""] if lines else []


def _counts(scripts: list[Script], outcomes: dict[tuple[str, str], Outcome], ways: list[str]) -> list[str]:
    lines = [
        "| way | configurations run | ran to their end | script files run | ran to their end |",
        "|---|---|---|---|---|",
    ]
    tried_both: dict[str, set[str]] = {}
    for way in ways:
        tried = [script for script in scripts if (script.name, way) in outcomes]
        ended = [script for script in tried if outcomes[script.name, way].result == RAN]
        tried_both[way] = {script.name for script in ended}
        files, ended_files = {script.file for script in tried}, {script.file for script in ended}
        lines.append(f"| {way} | {len(tried)} | {len(ended)} | {len(files)} | {len(ended_files)} |")
    both = set.intersection(*tried_both.values()) if tried_both else set()
    files = {script.file for script in scripts if script.name in both}
    lines.append(f"| every way | | {len(both)} | | {len(files)} |")
    return lines
