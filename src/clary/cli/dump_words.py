"""Texts of `clary dump`: the suspects, the ranks by their position in the code, then the other processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from clary.base.rank_lists import rank_text
from clary.cli.checkpoint_words import printable
from clary.cli.tables import clock_time, table

_MOST_FRAMES = 12  # of a group; --threads shows all
_WIDEST = 48  # characters of a function's name
_MOST_GROUPS = 8  # of ranks, with their last collectives; --threads shows all
_NAME = 12  # characters of a group's name: torch names some by a digest
_RED, _BOLD, _END = "\033[31;1m", "\033[1m", "\033[0m"


def dump_text(page: Mapping[str, Any], *, threads: bool, colours: bool) -> str:
    """Return the text that `clary dump JOB` prints.

    Args:
        page: the service's answer: autopsy, and dumps by host.
        threads: whether to show the stacks of every thread, and all collectives.
        colours: whether to colour the text, for a terminal.
    """
    taken = clock_time(datetime.fromisoformat(page["asked_at"]))
    hosts = f"{len(page['hosts'])} host{'s' if len(page['hosts']) != 1 else ''}"
    lines = [f"{page['job']}  attempt {page['attempt']}, {hosts}, {taken}: {printable(page['reason'])}"]
    autopsy = page["autopsy"]
    if autopsy["suspicions"]:
        lines.append("")
    for item in autopsy["suspicions"]:
        is_suspect = item["weight"] == "suspect"
        head = _painted("SUSPECT", _RED, colours) if is_suspect else item["weight"].upper()
        lines.append(f"{head}  {printable(item['who'])}: {printable(item['why'])}")
    for group in autopsy["groups"]:
        lines += ["", *_group_lines(group, threads=threads, colours=colours)]
    if not autopsy["groups"]:
        lines += ["", "no rank could be looked at"]
    elif not autopsy["suspicions"]:
        lines += ["", "nothing suspicious was found"]
    calls = _call_rows(autopsy.get("collectives", ()), most=None if threads else _MOST_GROUPS)
    if calls:
        lines += ["", table(("GROUP", "RANKS", "LAST COLLECTIVE", "STATE", "SINCE", ""), calls)]
    if threads:
        lines += _thread_lines(page["dumps"])
    others = _other_processes(page["dumps"])
    if others:
        lines += ["", table(("HOST", "PROCESS", "STATE", "WAITS IN", "COMMAND"), others)]
    errors = sorted({process["error"] for dump in page["dumps"].values() for process in dump["processes"]} - {""})
    lines += ["", *(f"without stacks: {printable(error)}" for error in errors)] if errors else []
    return "\n".join(lines)


def _group_lines(group: Mapping[str, Any], *, threads: bool, colours: bool) -> Iterable[str]:
    members = group["members"]
    by_host: dict[str, list[str]] = {}
    for member in members:
        by_host.setdefault(member["host"], []).append(_name(member["rank"], member["pid"]))
    who = "; ".join(f"{', '.join(ranks)} on {host}" for host, ranks in by_host.items())
    doing = f"{group['doing']}{' in ' + printable(group['operation']) if group['operation'] else ''}"
    head = f"{len(members)} {'rank' if len(members) == 1 else 'ranks'}, {who}: {doing}"
    yield _painted(f"{head}   << stands out", _BOLD, colours) if group["is_odd"] else head
    yield from _frame_lines(group["frames"], most=None if threads else _MOST_FRAMES)


def _frame_lines(frames: Sequence[Mapping[str, Any]], *, most: int | None) -> Iterable[str]:
    shown = frames if most is None or len(frames) <= most else [*frames[: most - 3], *frames[-3:]]
    width = min(_WIDEST, max((len(frame["function"]) for frame in shown), default=0))
    for index, frame in enumerate(shown):
        if len(shown) < len(frames) and most is not None and index == most - 3:
            yield f"    ... {len(frames) - len(shown)} more"
        place = f"{frame['file']}:{frame['line']}" if frame["line"] else frame["file"]
        yield f"    {printable(frame['function'])[:width].ljust(width)}  {printable(place)}"


def _call_rows(groups: Sequence[Mapping[str, Any]], *, most: int | None) -> list[list[str]]:
    """Return one row for each set of ranks with the same last call, ordered by process group."""
    used = [group for group in groups if any(member["call"] for member in group["members"])]
    rows = []
    for group in used if most is None else used[:most]:
        name = f"{printable(group['name'])[:_NAME]} ({printable(group['kind'])})"
        for members in _alike(group["members"]):
            call, first = members[0]["call"], members[0]
            marks = [word for word, has in (("another", first["differs"]), ("behind", first["is_behind"])) if has]
            ranks = [member["rank"] for member in members]
            who = rank_text(ranks) if None not in ranks else ", ".join(_name(m["rank"], m["pid"]) for m in members)
            ended = "" if first["pid"] else " (its process has ended)"
            since = max((member["call"]["age_s"] for member in members if member["call"]), default=None)
            rows.append(
                [
                    name,
                    who + ended,
                    _call_words(call),
                    call["state"] if call else "-",
                    f"{since:.1f} s" if since is not None else "-",
                    f"<< {', '.join(marks)}" if marks else "",
                ]
            )
            name = ""
    if len(rows) and most is not None and len(used) > most:
        rows.append([f"{len(used) - most} more", "", "", "", "", ""])
    return rows


def _alike(members: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Group members by call and state."""
    found: dict[tuple[object, ...], list[Mapping[str, Any]]] = {}
    for member in members:
        call = member["call"] or {}
        facts = (call.get(key) for key in ("number", "operation", "count", "dtype", "state", "peer"))
        key = (*facts, member["is_behind"], member["differs"], bool(member["pid"]), member["rank"] is None)
        found.setdefault(key, []).append(member)
    return list(found.values())


def _call_words(call: Mapping[str, Any] | None) -> str:
    """Return an operation in words: `all_reduce #41, 4 float32`."""
    if call is None:
        return "none yet"
    amount = f", {call['count']} {printable(call['dtype'] or 'elements')}" if call["count"] else ""
    peer = f", peer {call['peer']}" if call["peer"] >= 0 else ""
    return f"{printable(call['operation'])} #{call['number']}{amount}{peer}"


def _thread_lines(dumps: Mapping[str, Any]) -> list[str]:
    lines = []
    for host, dump in dumps.items():
        for process in dump["processes"]:
            for thread in process["threads"]:
                name = _name(process["rank"], process["pid"])
                lines += ["", f"{host}, {name}, thread {printable(thread['name']) or thread['thread']}"]
                lines += _frame_lines(thread["frames"], most=None)
    return lines


def _other_processes(dumps: Mapping[str, Any]) -> list[list[str]]:
    return [
        [
            host,
            str(process["pid"]),
            process["state"],
            printable(process["wait_channel"] or "-"),
            printable(process["command"]),
        ]
        for host, dump in dumps.items()
        for process in dump["processes"]
        if process["rank"] is None
    ]


def _name(rank: int | None, pid: int) -> str:
    return f"rank {rank}" if rank is not None else f"process {pid}"


def _painted(text: str, colour: str, colours: bool) -> str:
    return f"{colour}{text}{_END}" if colours else text
