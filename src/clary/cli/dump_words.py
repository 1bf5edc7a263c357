"""How `clary dump` shows what processes are doing: who is suspected, ranks by place, then the other processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from clary.cli.checkpoint_words import printable
from clary.cli.tables import clock_time, table

_MOST_FRAMES = 12  # of a group; --threads shows all
_WIDEST = 48  # characters of a function's name
_RED, _BOLD, _END = "\033[31;1m", "\033[1m", "\033[0m"


def dump_text(page: Mapping[str, Any], *, threads: bool, colours: bool) -> str:
    """Return the text that `clary dump JOB` prints."""
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
        lines += ["", "nobody stands out"]
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
