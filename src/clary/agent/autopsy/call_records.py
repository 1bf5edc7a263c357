"""Last collectives of a host's processes, also of killed processes, from the records that they leave.

Where: `host_dump` reads them. Programs may write any content to these files; a file that is not a record is skipped.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from clary.agent.autopsy import process_state
from clary.base.beneath import Folder
from clary.base.rank_lists import rank_text
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
from clary.contract.stack_dumps import CollectiveCall, CollectiveGroup, LeftCalls

MAX_FILES = 1024  # limit of files read: the program can fill the folder
MAX_ROWS = (
    1 << 15
)  # limit of rows in all files: those of 64 processes that use all groups; the service reads a dump of them
_MAX_NAMES = 10_000  # limit of names listed
_PID_DIGITS = 10
_NS_PER_S = 1e9
_DIGITS = 4  # decimal places of seconds


class FoundRecords(NamedTuple):
    """Records that were read.

    Attributes:
        records: those of living processes first, then the newest.
        num_left_out: number of files and records beyond `MAX_FILES` and `MAX_ROWS`.
    """

    records: tuple[CallRecord, ...] = ()
    num_left_out: int = 0


def read_records(
    home: Path, roots: Sequence[str] = ("",), *, below: Sequence[str] = (), living: Container[int] = ()
) -> FoundRecords:
    """Return the records in a folder, including records that its links name; an empty list without such a folder.

    Args:
        home: a folder that the program cannot replace.
        roots: root folders, such as `/proc/PID/root`, below which the program's `/dev/shm` is searched.
        below: path from `home` to the folder of the records; the program may replace parts of it by links.
        living: pids of living processes in their own namespace; their records are read first.
    """
    with contextlib.suppress(OSError), Folder.at(home) as top, top.folder("/".join(below)) as folder:
        names = [name for name in folder.names(limit=_MAX_NAMES) if name.endswith(ENDING)]
        names.sort(key=lambda name: (_process_of(name) not in living, -_written_ns(folder, name), name))
        records = (_read(folder, name) or _read_linked(folder, name, roots) for name in names[:MAX_FILES])
        kept, num_left_out = _bounded(record for record in records if record is not None)
        return FoundRecords(kept, num_left_out + max(0, len(names) - MAX_FILES))
    return FoundRecords()


def _process_of(name: str) -> int:
    """Return the pid in a file's name, RANK-PROCESS.calls; -1 for another name."""
    text = name.removesuffix(ENDING).rpartition("-")[2]
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _PID_DIGITS else -1


def _written_ns(folder: Folder, name: str) -> int:
    """Return when a file was written, or a link made: a process makes its own once; 0 if it is gone."""
    with contextlib.suppress(OSError):
        return folder.status(name).st_mtime_ns
    return 0


def _bounded(records: Iterable[CallRecord]) -> tuple[tuple[CallRecord, ...], int]:
    """Return the records that fit into `MAX_ROWS`, and the number of others; a group counts as one row at least."""
    kept: list[CallRecord] = []
    num_rows = num_left_out = 0
    for record in records:
        num_own = sum(max(1, len(group.rows)) for group in record.groups)
        if num_rows + num_own > MAX_ROWS:
            num_left_out += 1
            continue
        num_rows += num_own
        kept.append(record)
    return tuple(kept), num_left_out


def _read_linked(folder: Folder, name: str, roots: Sequence[str]) -> CallRecord | None:
    """Return the record in shared memory to which a link points in the program's view."""
    try:
        target = folder.read_link(name)
    except OSError:
        return None
    if not is_memory_path(target):
        return None
    for root in roots:
        # The program owns all files below its root: no link there is followed, because it could lead into this
        # process's own root.
        home, below = (root, target.lstrip("/")) if root else os.path.split(target)
        with contextlib.suppress(OSError), Folder.at(home) as top:
            if (record := _read(top, below)) is not None:
                return record
    return None


def match(
    records: Iterable[CallRecord], processes: Mapping[int, int], ranks: Mapping[int, int]
) -> tuple[dict[int, CallRecord], list[CallRecord]]:
    """Return the record of each process, and the newest record left by each rank without a process. Pure.

    Args:
        processes: pid of each process on the machine -> its pid in its own namespace.
        ranks: pid of a process on the machine -> its rank.
    """
    left: dict[int, CallRecord] = {}
    by_own_number: dict[int, list[CallRecord]] = {}
    for record in records:
        by_own_number.setdefault(record.process, []).append(record)
        if record.rank not in left or _newest_ns(left[record.rank]) < _newest_ns(record):
            left[record.rank] = record
    found: dict[int, CallRecord] = {}
    for pid, own_number in processes.items():
        # Pids are reused: a record that names another rank than the process's rank is not its own; of the others the
        # newest is.
        fitting = by_own_number.get(own_number, [])
        fitting = [record for record in fitting if ranks.get(pid) in (None, record.rank)]
        if fitting:
            found[pid] = max(fitting, key=_newest_ns)
    alive = {record.rank for record in found.values()} | set(ranks.values())
    return found, [record for rank, record in sorted(left.items()) if rank not in alive]


def own_number(pid: int) -> int:
    """Return a process's pid in its own namespace; its pid on the machine if the kernel does not show it."""
    for line in process_state.read(f"/proc/{pid}/status").splitlines():
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1])
    return pid


def groups_of(record: CallRecord, now_ns: int) -> tuple[CollectiveGroup, ...]:
    """Return the groups of a record, the most recently used first. Pure.

    Args:
        now_ns: present time by the clock that stamped the rows.
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
    """Return the last calls in records of ended processes. Pure."""
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


def _read(folder: Folder, path: str) -> CallRecord | None:
    try:
        descriptor = folder.open_file(path)
    except OSError:
        return None
    try:
        data = os.pread(descriptor, FILE_BYTES, 0)
        return read_record(data, os.pread(descriptor, FILE_BYTES, 0))
    except OSError:
        return None
    finally:
        os.close(descriptor)
