"""Texts of `clary doctor JOB` on a job's health: two matrices, and sentences on findings other than ok.

The first matrix has a row for each host and a column for each check; the second shows links from host (row) to host
(column). BAD is red, warn is yellow, ok is green, - was not checked, ... is still in progress.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

OK, WARN, BAD, SKIPPED, PENDING = "ok", "warn", "bad", "skipped", "pending"
_WORST_FIRST = (BAD, WARN, PENDING, OK, SKIPPED)
_SHOWN = {OK: "ok", WARN: "warn", BAD: "BAD", SKIPPED: "-", PENDING: "..."}
_COLOURS = {OK: "32", WARN: "33", BAD: "31;1", SKIPPED: "2", PENDING: "2"}
_NAMELESS = (OK, SKIPPED, PENDING)  # states whose cells do not show the names of checks
_ENDED = ("Completed", "Failed", "Stopped")
_HOST_CHECKS = ("disk", "memory", "clock", "gpu", "names", "port", "interface", "collective")
_SELF = "\\"

Cell = tuple[str, str]  # the text, and the state that colours it


def has_colours(stream: TextIO) -> bool:
    """Whether a stream is a terminal, and its user has not disabled colours (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def is_bad(page: Mapping[str, Any]) -> bool:
    """Whether a finding is bad."""
    return any(finding["state"] == BAD for found in page["hosts"].values() for finding in found)


def health_text(page: Mapping[str, Any], *, colours: bool) -> str:
    """Return the text that `clary doctor JOB` prints."""
    hosts: Mapping[str, Sequence[Mapping[str, Any]]] = page["hosts"]
    lines = [f"{page['job']}  {page['state']}, attempt {page['attempt']}"]
    lines += [f"attempt {past['number']} ended early: {past['reason']}" for past in page["past_attempts"]]
    if not page["is_checked"]:
        return "\n".join([*lines, "hosts were not checked (setting health_checks, or InfraCheckConfig of the job)"])
    if not any(hosts.values()):
        return "\n".join([*lines, "no host has reported its checks" + (" yet" if hosts else ": there are no hosts")])
    header = ["HOST", *(check.upper() for check in _HOST_CHECKS)]
    rows = [[(name, ""), *(_own_cell(found, check) for check in _HOST_CHECKS)] for name, found in hosts.items()]
    lines += ["", *_matrix(header, rows, colours=colours)]
    if any(finding["peer"] is not None for found in hosts.values() for finding in found):
        link_rows = [[(name, ""), *(_link_cell(found, name, peer) for peer in hosts)] for name, found in hosts.items()]
        lines += ["", *_matrix(["FROM/TO", *hosts], link_rows, colours=colours)]
    told = [_told(finding) for found in hosts.values() for finding in found if finding["state"] in (WARN, BAD)]
    lines += ["", *told] if told else []
    for sick in page["sick"]:
        what = f"the link {sick['host']} - {sick['peer']}" if sick["peer"] is not None else sick["host"]
        lines += ["", f"sick: {what}: {sick['reason']}"]
    skipped = sorted({(finding["check"], finding["words"]) for found in hosts.values() for finding in _skipped(found)})
    lines += ["", *(f"not checked: {check}: {words}" for check, words in skipped)] if skipped else []
    pending = sorted({finding["check"] for found in hosts.values() for finding in found if finding["state"] == PENDING})
    if pending:
        how = "never known: the hosts were gone before" if page["status"] in _ENDED else "still under way"
        lines += ["", f"{how}: {', '.join(pending)}"]
    if not told:
        lines += ["", "all that was checked so far is well" if pending else "all that was checked is well"]
    return "\n".join(lines)


def _own_cell(found: Sequence[Mapping[str, Any]], check: str) -> Cell:
    states = [finding["state"] for finding in found if finding["check"] == check and finding["peer"] is None]
    state = states[0] if states else SKIPPED
    return _SHOWN[state], state


def _link_cell(found: Sequence[Mapping[str, Any]], host: str, peer: str) -> Cell:
    """Return the state of a link's worst findings, with the names of the checks if it is warn or bad."""
    if host == peer:
        return _SELF, SKIPPED
    of_link = [finding for finding in found if finding["peer"] == peer]
    for state in _WORST_FIRST:
        checks = [finding["check"] for finding in of_link if finding["state"] == state]
        if checks:
            shown = _SHOWN[state] if state in _NAMELESS else f"{_SHOWN[state]} {','.join(checks)}"
            return shown, state
    return _SHOWN[SKIPPED], SKIPPED


def _matrix(header: Sequence[str], rows: Sequence[Sequence[Cell]], *, colours: bool) -> list[str]:
    """Return a table whose cells are coloured after their widths are measured."""
    widths = [max(len(header[i]), *(len(row[i][0]) for row in rows)) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(header, widths, strict=True)).rstrip()]
    for row in rows:
        cells = []
        for (text, state), width in zip(row, widths, strict=True):
            padding = " " * (width - len(text))
            cells.append(f"\033[{_COLOURS[state]}m{text}\033[0m{padding}" if colours and state else text + padding)
        lines.append("  ".join(cells).rstrip())
    return lines


def _told(finding: Mapping[str, Any]) -> str:
    where = f"{finding['host']} to {finding['peer']}" if finding["peer"] is not None else finding["host"]
    cause = f"; {finding['cause']}" if finding["cause"] else ""
    return f"{_SHOWN[finding['state']]:<4}  {where}  {finding['check']}: {finding['words']}{cause}"


def _skipped(found: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [finding for finding in found if finding["state"] == SKIPPED]
