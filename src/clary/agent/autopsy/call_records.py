"""The last collectives of a host's processes, from the records that they leave; also of those that were killed.

Where: `host_dump`. Programs write these files and may write anything: what is no record is left out.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from clary.agent.autopsy import process_state
from clary.contract.collective_records import (
    DTYPES,
    ENDING,
    FILE_BYTES,
    NO_PEER,
    OPERATIONS,
    STATES,
    CallRecord,
    CallRow,
    RecordedGroup,
    is_memory_path,
    read_record,
)
from clary.contract.rank_lists import rank_text
from clary.contract.stack_dumps import CollectiveCall, CollectiveGroup, LeftCalls

MAX_FILES = 1024  # read: the folder is the program's
_MAX_NAMES = 10_000  # looked at
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NS_PER_S = 1e9
_DIGITS = 4  # of seconds


def read_records(folder: Path, roots: Sequence[str] = ("",)) -> list[CallRecord]:
    """Return the records that a folder has or leads to; none if there is no such folder.

    Args:
        roots: folders below which the program may see its `/dev/shm`, as `/proc/PID/root`.
    """
    records = (_read(folder / name) or _read_linked(folder / name, roots) for name in _names_in(folder))
    return [record for record in records if record is not None]


def _names_in(folder: Path) -> list[str]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        ours = (entry.name for entry in itertools.islice(entries, _MAX_NAMES) if entry.name.endswith(ENDING))
        return sorted(itertools.islice(ours, MAX_FILES))
    return []


def _read_linked(link: Path, roots: Sequence[str]) -> CallRecord | None:
    target = _target(link)
    found = (_read(Path(f"{root}{target}")) for root in roots) if target else ()
    return next((record for record in found if record is not None), None)


def _target(link: Path) -> str:
    """Return where a record lies in memory; empty if the link leads anywhere else."""
    try:
        target = os.readlink(link)
    except OSError:
        return ""
    return target if is_memory_path(target) else ""


def match(
    records: Iterable[CallRecord], processes: Mapping[int, int], ranks: Mapping[int, int]
) -> tuple[dict[int, CallRecord], list[CallRecord]]:
    """Return the record of each process, and of each rank that has no process the newest that is left. Pure.

    Args:
        processes: number by which a process knows itself, by the machine's number.
        ranks: of processes.
    """
    left: dict[int, CallRecord] = {}
    by_own_number: dict[int, list[CallRecord]] = {}
    for record in records:
        by_own_number.setdefault(record.process, []).append(record)
        if record.rank not in left or _newest_ns(left[record.rank]) < _newest_ns(record):
            left[record.rank] = record
    found: dict[int, CallRecord] = {}
    for pid, own_number in processes.items():
        # A number comes again: of several records the one with the process's rank is its own, else the newest.
        fitting = by_own_number.get(own_number, [])
        fitting = [record for record in fitting if ranks.get(pid) in (None, record.rank)]
        if fitting:
            found[pid] = max(fitting, key=_newest_ns)
    alive = {record.rank for record in found.values()} | set(ranks.values())
    return found, [record for rank, record in sorted(left.items()) if rank not in alive]


def own_number(pid: int) -> int:
    """Return the number by which a process knows itself; its number on the machine where that is not told."""
    for line in process_state.read(f"/proc/{pid}/status").splitlines():
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1])
    return pid


def groups_of(record: CallRecord, now_ns: int) -> tuple[CollectiveGroup, ...]:
    """Return what a record says, the group that was used last first. Pure.

    Args:
        now_ns: of the clock that rows have.
    """
    used = sorted(record.groups, key=lambda group: -_newest_of(group))
    return tuple(
        CollectiveGroup(
            name=group.facts.name,
            kind=group.facts.kind,
            size=group.facts.size,
            ranks=rank_text(group.facts.ranks),
            calls=tuple(_call(row, now_ns) for row in group.rows),
            is_point_to_point=group.facts.is_point_to_point,
        )
        for group in used
    )


def left_calls(records: Iterable[CallRecord], now_ns: int) -> tuple[LeftCalls, ...]:
    """Return what records of ended processes say. Pure."""
    return tuple(LeftCalls(rank=record.rank, groups=groups_of(record, now_ns)) for record in records)


def _call(row: CallRow, now_ns: int) -> CollectiveCall:
    return CollectiveCall(
        number=row.number,
        operation=_named(OPERATIONS, row.operation),
        count=row.num_elements,
        dtype=_named(DTYPES, row.dtype),
        state=STATES[row.state],
        age_s=round(max(0, now_ns - row.started_ns) / _NS_PER_S, _DIGITS),
        took_s=round(max(0, row.finished_ns - row.started_ns) / _NS_PER_S, _DIGITS) if row.finished_ns else None,
        peer=row.peer if row.peer >= 0 else NO_PEER,
    )


def _named(names: tuple[str, ...], code: int) -> str:
    return names[code] if code < len(names) else names[0]


def _newest_of(group: RecordedGroup) -> int:
    return max((row.started_ns for row in group.rows), default=0)


def _newest_ns(record: CallRecord) -> int:
    return max(map(_newest_of, record.groups), default=0)


def _read(path: Path) -> CallRecord | None:
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        data = os.pread(descriptor, FILE_BYTES, 0)
        return read_record(data, os.pread(descriptor, FILE_BYTES, 0))
    except OSError:
        return None
    finally:
        os.close(descriptor)
