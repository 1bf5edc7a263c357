"""The record of this process's last collectives: one small memory-mapped file, which the host's agent reads.

Where: `steps.collective_hooks` writes the operations of torch's groups, `collective.cores` has the compiled core write
its own operations. The file is made with the first group, so a process without a group leaves no file.

The file is mapped, because a write to memory is much faster than a system call. It lies in `/dev/shm` if the host has
its own, because a write to a page that is being flushed to a disk may block for milliseconds. Its pages are allocated
before it is mapped: a failed allocation at a later write would raise a signal.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading

from clary.contract.collective_records import (
    ENDING,
    FILE_BYTES,
    FOLDER_IN_NAMESPACES,
    GROUP_BYTES,
    LEFT_OUT_OFFSET,
    NUM_SLOTS,
    NUMBER,
    SWITCH_VARIABLE,
    GroupFacts,
    memory_path,
    pack_group,
    pack_header,
    slot_offset,
)
from clary.contract.step_records import FOLDER_VARIABLE
from clary.contract.step_records import SWITCH_VARIABLE as STEPS_SWITCH

_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


class OperationRecord:
    """The record file of this process.

    Args:
        folder: existing folder, made by the agent.
        rank: rank of this process.
        is_in_memory: whether to put the file in `/dev/shm`, which vanishes with the host, if there is room.

    Raises: OSError, for example for a full disk; ValueError.
    """

    def __init__(self, folder: str, rank: int, *, is_in_memory: bool = False) -> None:
        self.process = os.getpid()
        self._lock = threading.Lock()
        self._num_groups = 0
        path = os.path.join(folder, f"{rank}-{self.process}{ENDING}")
        # Written under another name and renamed: it appears whole, and replaces the file of an earlier process with
        # this pid.
        draft = f"{path}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)
        header = pack_header(rank, self.process)
        target = memory_path(rank, self.process, os.urandom(8).hex())
        memory = None
        if is_in_memory:
            with contextlib.suppress(OSError):  # no room
                memory = _mapped(target, header)
        if memory is not None:
            os.symlink(target, draft)
        self.memory = memory if memory is not None else _mapped(draft, header)
        os.replace(draft, path)

    def begin_group(self, facts: GroupFacts) -> int | None:
        """Describe a new group of this process; return the offset of its rows, or None if all slots are used."""
        with self._lock:
            index = self._num_groups
            self._num_groups += 1
            if index >= NUM_SLOTS:
                NUMBER.pack_into(self.memory, LEFT_OUT_OFFSET, index + 1 - NUM_SLOTS)
                return None
        offset = slot_offset(index)
        packed = pack_group(facts, index + 1)
        # The generation is first in the slot but written last, since it makes the slot valid.
        self.memory[offset + NUMBER.size : offset + GROUP_BYTES] = packed[NUMBER.size :]
        self.memory[offset : offset + NUMBER.size] = packed[: NUMBER.size]
        return offset + GROUP_BYTES


def _mapped(path: str, header: bytes) -> mmap.mmap:
    """Make a file, and return its mapped memory. Raises: OSError, and leaves no file."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(descriptor, 0, FILE_BYTES)
        os.pwrite(descriptor, header.ljust(FILE_BYTES, b"\0"), 0)
        return mmap.mmap(descriptor, FILE_BYTES)
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)


class _OfProcess:
    """Holder of this process's record, which is made at its first use."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.record: OperationRecord | None = None
        self.has_failed = False
        self.is_watching_forks = False
        # Records of parents stay mapped: unmapping closes a descriptor number that may belong to another file by now.
        self.kept: list[OperationRecord] = []

    def begin_anew(self) -> None:
        """Drop the parent's record, in a forked process."""
        self.lock = threading.Lock()
        self.has_failed = False
        if self.record is not None:
            self.kept.append(self.record)
            self.record = None


_own = _OfProcess()


def is_wanted() -> bool:
    """Return whether this job's operations are to be recorded."""
    switches = (os.environ.get(SWITCH_VARIABLE), os.environ.get(STEPS_SWITCH))
    return bool(os.environ.get(FOLDER_VARIABLE)) and "0" not in switches


def record_of_process(rank: int) -> OperationRecord | None:
    """Return the record of this process, or None if it is not wanted or cannot be made.

    Args:
        rank: rank of this process, used if no launcher variable has it.
    """
    if not is_wanted():
        return None
    with _own.lock:
        if _own.record is None and not _own.has_failed:
            if not _own.is_watching_forks:
                os.register_at_fork(after_in_child=_own.begin_anew)
                _own.is_watching_forks = True
            try:
                folder = os.environ[FOLDER_VARIABLE]
                _own.record = OperationRecord(folder, _rank(rank), is_in_memory=folder == FOLDER_IN_NAMESPACES)
            except (OSError, ValueError):
                _own.has_failed = True  # not retried: training matters more than its record
        return _own.record


def _rank(default: int) -> int:
    words = (os.environ.get(name, "") for name in _RANK_VARIABLES)
    return next((int(word) for word in words if word.isdecimal()), default)
