"""The debugger's step count of a checkpoint set: the last step that had begun when its newest file was written.

Where: `storing` gets the counts for a manifest, `host_checkpoints` writes restored counts for the program's hook. See
`contract.step_counts` for the files; the program owns the folder, so no link in it is followed.

Logs and text files are not counted as newest files: programs also write to them after the checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from clary.agent.checkpoints.folder import CheckpointFolder
from clary.agent.checkpoints.log_names import is_log
from clary.base.beneath import Folder
from clary.base.plain import to_plain
from clary.contract.checkpoint_sets import CheckpointFile, CheckpointSet
from clary.contract.step_counts import (
    ENDING,
    FILE_BYTES,
    HEADER_BYTES,
    RESTORED_FILE,
    CountsHeader,
    CountsRow,
    RestoredCounts,
    StepCounts,
    counts_at,
    read_header,
    read_rows,
)

_TEXT_ENDING = ".txt"  # text: a log, or a small part of a checkpoint that is not written last
_MAX_FILES = 1024  # limit of files read; a program may have created more
_MAX_PROCESSES = 16  # limit of processes read, the ones with the latest steps; 230 kB each
_MAX_KNOWN = 256  # limit of cached moments

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class _Process:
    header: CountsHeader
    data: bytes


class StepCountSource:
    """Step counts of the processes of one host, with times. Used by the thread that writes sets.

    Args:
        folder: folder with the processes' counts.
        restored: this host's restored set; its step counts are valid until a process of the program counts.
    """

    def __init__(self, folder: CheckpointFolder, restored: CheckpointSet | None = None) -> None:
        self._folder = folder
        self._processes: list[_Process] = []
        self._looked_ns = 0
        self._before = restored.step_counts if restored is not None else None
        self._known: dict[int, StepCounts | None] = {}  # cached by moment: rows are overwritten after a while
        at_ns = newest_ns(restored.files) if restored is not None else None
        if restored is not None and at_ns is not None:
            self._known[at_ns] = self._before

    def look(self) -> None:
        """Read the current counts, after a look at the checkpoint folder; never raise."""
        self._looked_ns = time.time_ns()
        try:
            self._processes = _read_processes(self._folder)
        except (OSError, ValueError) as error:
            logger.debug("what the debugger has counted is not read: %s", error)

    def counts_of(self, files: Iterable[CheckpointFile]) -> StepCounts | None:
        """Return the counts at the time when the newest of some files was written, or None if unknown."""
        at_ns = newest_ns(files)
        if at_ns is None:
            return None
        # clock set back: not cached, since a cached value would be used as long as this file is the newest
        if at_ns > self._looked_ns:
            return self._counts_at(at_ns)
        if at_ns not in self._known:
            self._known[at_ns] = self._counts_at(at_ns)
            if len(self._known) > _MAX_KNOWN:
                del self._known[next(iter(self._known))]
        return self._known[at_ns]

    def _counts_at(self, at_ns: int) -> StepCounts | None:
        if not self._processes:
            return self._before
        began = [process for process in self._processes if process.header.began_ns <= at_ns] or self._processes[:1]
        rows = {process: read_rows(process.data[HEADER_BYTES:]) for process in began}
        # The process with the latest step, not the latest start: a short training may run beside the long training.
        process = max(began, key=lambda one: (_stepped_ns(rows[one], at_ns), one.header.began_ns))
        return counts_at(process.header, rows[process], at_ns)


def newest_ns(files: Iterable[CheckpointFile]) -> int | None:
    """Return the mtime (ns) of the newest of some files, except logs and text files, or None without such a file."""
    return max((file.modified_ns for file in files if not _may_be_log(file.path)), default=None)


def restored_counts(
    sets: Iterable[CheckpointSet], *, own_host: str, order: Callable[[str], tuple[int, str]]
) -> RestoredCounts:
    """Return a host's step counts from the sets that are restored; `first` is the same for all hosts.

    Args:
        sets: of all hosts; a host continues the first host's counts even if its own files replace that host's files.
        order: sort key of host names.
    """
    known = {one.host: one.step_counts for one in sets if one.step_counts is not None and one.step_counts.is_possible}
    return RestoredCounts(own=known.get(own_host), first=known[min(known, key=order)] if known else None)


def leave_restored(folder: CheckpointFolder, counts: RestoredCounts) -> None:
    """Replace the folder's files by a file with the counts, if any; only while no program runs. Never raises."""
    try:
        folder.make()
        with Folder(folder.open()) as opened:
            for name in opened.names():  # left by an earlier attempt in a reused folder
                with contextlib.suppress(IsADirectoryError):
                    opened.remove(name)
            if counts != RestoredCounts():
                opened.write(RESTORED_FILE, json.dumps(to_plain(counts)).encode())
    except OSError as error:
        logger.warning("the debugger's steps begin with 0: %s", error)


def _stepped_ns(rows: Iterable[CountsRow], at_ns: int) -> int:
    """Return the start of a process's last step up to a moment, or the moment itself if it has no such step."""
    return max((row.at_ns for row in rows if row.at_ns <= at_ns), default=at_ns)


def _may_be_log(path: str) -> bool:
    return is_log(path) or path.lower().endswith(_TEXT_ENDING)


def _read_processes(folder: CheckpointFolder) -> list[_Process]:
    """Return the first worker's processes by start time: it writes the checkpoints, and other workers may be ahead."""
    with Folder(folder.open()) as opened:
        names = [name for name in opened.names(limit=_MAX_FILES) if name.endswith(ENDING)]
    found = []
    for name in names:
        data, written_ns = _read_start(folder, name, HEADER_BYTES)
        header = read_header(data)
        if header is not None:
            found.append((written_ns, name, header))
    worker = min((header.worker for _, _, header in found), default=None)
    own = sorted((one for one in found if one[2].worker == worker), key=lambda one: one[0])[-_MAX_PROCESSES:]
    processes = [_Process(header, _read_start(folder, name, FILE_BYTES)[0]) for _, name, header in own]
    return sorted(processes, key=lambda process: process.header.began_ns)


def _read_start(folder: CheckpointFolder, name: str, num_bytes: int) -> tuple[bytes, int]:
    """Return the first bytes and the mtime (ns) of a regular file; no bytes and 0 if it is unreadable."""
    try:
        descriptor = folder.open_file(name)
    except OSError:
        return b"", 0  # a link, or removed
    try:
        facts = os.fstat(descriptor)
        return os.read(descriptor, num_bytes), facts.st_mtime_ns
    except OSError:
        return b"", 0
    finally:
        os.close(descriptor)
