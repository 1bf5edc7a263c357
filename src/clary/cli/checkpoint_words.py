"""Texts on checkpoints: rows of sets, the hosts' reports of their mirroring, findings of a verification.

Other users may have chosen the names of files in buckets: `printable` removes terminal control characters from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from clary.cli.tables import duration, visible
from clary.contract.checkpoint_evidence import Evidence, doubts_in_words, statements_in_words

KILO = 1000
MAX_TEXT = 300
MAX_NAMES = 5
UNITS = ("kB", "MB", "GB", "TB", "PB", "EB")
SET_HEADER = ("HOST", "SET", "TAKEN", "AGE", "FILES", "SIZE", "ATTEMPT", "EVIDENCE", "STATE")


def printable(text: object) -> str:
    """Return a text as one line without control characters, cut to MAX_TEXT characters."""
    shown = visible(str(text)[:MAX_TEXT])
    return f"{shown}..." if len(str(text)) > MAX_TEXT else shown


def size(num_bytes: int) -> str:
    """Return `512 B`, `16.5 MB` or `1.2 GB`."""
    if num_bytes < KILO:
        return f"{num_bytes} B"
    value = num_bytes / KILO
    unit = 0
    while value >= KILO - 0.05 and unit < len(UNITS) - 1:
        value, unit = value / KILO, unit + 1
    return f"{value:.1f} {UNITS[unit]}"


def count(number: int, noun: str) -> str:
    """Return `1 file` or `3 files`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def set_row(entry: Mapping[str, Any], *, job_arn: str, now: datetime) -> tuple[str, ...]:
    """Return the cells of a checkpoint set's row, in the order of SET_HEADER.

    Args:
        entry: a set from the service's page `checkpoints`.
        job_arn: ARN of the requested job; sets of other jobs are marked.
        now: time from which ages count.
    """
    state = f"{entry['state']}: {printable(entry['fault'])}" if entry["fault"] else entry["state"]
    if entry["taken_at"] is None:
        return (entry["host"], str(entry["number"]), "-", "-", "-", "-", "-", "-", state)
    taken = datetime.fromisoformat(entry["taken_at"])
    attempt = str(entry["attempt"])[:20]
    if entry["job_arn"] != job_arn:
        attempt += f" of {printable(entry['job_arn'].rpartition('/')[2])}"
    return (
        entry["host"],
        str(entry["number"]),
        _local(taken),
        duration(max(0.0, (now - taken).total_seconds())),
        str(entry["num_files"]),
        size(entry["size_bytes"]),
        attempt,
        _evidence(entry),
        state,
    )


def mirror_lines(hosts: Mapping[str, Mapping[str, Any]], *, now: datetime) -> list[str]:
    """Return a line for each host on the state of its mirroring."""
    return [f"{host}: {_mirror(facts, now)}" for host, facts in hosts.items()]


def finding_lines(report: Mapping[str, Any]) -> list[str]:
    """Return a line for each damaged set and each file unlike its manifest; further files are only counted."""
    lines = []
    for item in report["sets"]:
        name = f"{item['host']} set {item['number']}"
        if item["fault"]:
            lines.append(f"{name}: damaged: {printable(item['fault'])}")
        lines += [f"{name}: {_finding(found)}" for found in item["wrong"]["first"]]
        lines += _rest(name, item["wrong"], "wrong")
        lines += [f"{name}: not part of a restore: {_finding(found)}" for found in item["plain"]["first"]]
        lines += _rest(name, item["plain"], "not part of a restore")
    return lines


def is_as_stored(report: Mapping[str, Any]) -> bool:
    """Whether every file was read and matches its manifest; a service of an older release reports only `is_whole`."""
    return bool(report.get("is_as_stored", report["is_whole"]))


def doubt_lines(report: Mapping[str, Any]) -> list[str]:
    """Return a line for every set with a file without evidence that it was whole when it was stored."""
    lines = []
    for item in report["sets"]:
        evidence = item.get("evidence") or {}
        if doubts := doubts_in_words(evidence, least_rest_s=item.get("least_rest_s") or 0.0):
            names = item.get("doubtful") or []
            num_more = sum(number for text, number in evidence.items() if not Evidence.of(text).is_statement)
            num_more -= len(names[:MAX_NAMES])
            named = ", ".join(printable(name) for name in names[:MAX_NAMES])
            more = f" and {num_more} more" if num_more > 0 else ""
            lines.append(f"{item['host']} set {item['number']}: {doubts}: {named}{more}")
    return lines


def verdict_line(report: Mapping[str, Any]) -> str:
    """Return the last line of a verification."""
    sets = report["sets"]
    num_plain = sum(item["plain"]["count"] for item in sets)
    read = f"{count(len(sets), 'set')}, {count(sum(item['num_read'] for item in sets), 'file')}, "
    read += f"{size(report['bytes_read'])} read"
    beside = f"; beside the sets, {count(num_plain, 'plain file')} missing or different, no harm to a restore"
    evidence, least_rest_s = _all_evidence(sets)
    said = statements_in_words(evidence)
    if report["is_whole"]:
        return f"whole: {read}{'; ' if said else ''}{said}{beside if num_plain else ''}"
    if is_as_stored(report):
        doubts = doubts_in_words(evidence, least_rest_s=least_rest_s)
        tail = f"{'; ' if said else ''}{said}{beside if num_plain else ''}"
        return f"complete as stored; wholeness not known: {doubts} ({read}{tail})"
    bad = [f"{item['host']} set {item['number']}" for item in sets if item["fault"] or item["wrong"]["count"]]
    parts = [", ".join(bad)] if bad else []
    parts += [f"ended early: {printable(report['error'])}"] if report["error"] else []
    return f"not whole: {'; '.join(parts) or 'nothing was read'} ({read}{beside if num_plain else ''})"


def _finding(found: Mapping[str, Any]) -> str:
    where = "" if found["key"] == found["path"] else f" ({printable(found['key'])})"
    return f"{printable(found['path'])}{where}: {printable(found['fault'])}"


def _all_evidence(sets: Sequence[Mapping[str, Any]]) -> tuple[dict[str, int], float]:
    """Return evidence counts of all sets, and the shortest unchanged time of files with no other evidence."""
    counts: dict[str, int] = {}
    for item in sets:
        for text, number in (item.get("evidence") or {}).items():
            counts[text] = counts.get(text, 0) + number
    rests_s = [item["least_rest_s"] for item in sets if (item.get("evidence") or {}).get(Evidence.RESTED.value)]
    return counts, min(rests_s, default=0.0)


def _evidence(entry: Mapping[str, Any]) -> str:
    """Return the evidence that the files of a set are whole: `12 closed, 1 rested for 43 s`."""
    parts = []
    for text, number in (entry.get("evidence") or {}).items():
        word = Evidence.of(text).value or "unknown"
        rest = f" for {entry.get('least_rest_s') or 0.0:.0f} s" if word == Evidence.RESTED.value else ""
        parts.append(f"{number} {word}{rest}")
    return ", ".join(parts) or "-"


def _rest(name: str, findings: Mapping[str, Any], words: str) -> list[str]:
    num_more = findings["count"] - len(findings["first"])
    return [f"{name}: {count(num_more, 'more file')}, {words}"] if num_more > 0 else []


def _mirror(facts: Mapping[str, Any], now: datetime) -> str:
    # By `get`: an agent of another release may send fewer fields.
    number, committed_at = facts.get("set_number"), facts.get("committed_at")
    parts = [
        f"set {number}{f', committed {_ago(committed_at, now)}' if committed_at else ''}" if number else "no set yet"
    ]
    if dirty := facts.get("dirty_files") or 0:
        waits = f", for {duration(facts['lag_s'])}" if facts.get("lag_s") else ""
        parts.append(f"{count(dirty, 'file')} ({size(facts.get('dirty_bytes') or 0)}) changed since{waits}")
    else:
        parts.append("nothing changed since" if number else "nothing to store")
    if facts.get("stalled_since"):
        parts.append(f"STALLED, began {_ago(facts['stalled_since'], now)}")
    if facts.get("error"):
        parts.append(f"last error: {printable(facts['error'])}")
    missed: Sequence[str] = facts.get("missed") or ()
    if missed:
        names = ", ".join(printable(name) for name in missed[:MAX_NAMES])
        more = f" and {len(missed) - MAX_NAMES} more" if len(missed) > MAX_NAMES else ""
        parts.append(f"NOT STORED at the end: {names}{more}")
    torn: Sequence[str] = facts.get("torn") or ()
    if torn:
        names = ", ".join(printable(name) for name in torn[:MAX_NAMES])
        more = f" and {len(torn) - MAX_NAMES} more" if len(torn) > MAX_NAMES else ""
        parts.append(f"LEFT OUT at the end, cut short by it: {names}{more}")
    if facts.get("restored_files"):
        restored = f"{count(facts['restored_files'], 'file')}, {size(facts.get('restored_bytes') or 0)}"
        own_set = f" from set {facts['restored_set']}" if facts.get("restored_set") else ""
        parts.append(f"began{own_set} with {restored}")
    return "; ".join(parts)


def _ago(text: str, now: datetime) -> str:
    return f"{duration(max(0.0, (now - datetime.fromisoformat(text)).total_seconds()))} ago"


def _local(moment: datetime) -> str:
    try:
        return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError):  # near the ends of the calendar, local times overflow
        return moment.astimezone(UTC).isoformat()
