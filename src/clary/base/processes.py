"""Processes identified by id and start time, so that a reused id is never mistaken for one of Clary's processes.

Where: used for all processes that are counted or signalled later by their id: the service, the engine's agents, the
object store, the processes of a host. Linux only.

[Note: marks] A process is also found by its environment. The read stops at MAX_ENVIRONMENT_BYTES, the most that the
kernel gives to a program that it starts, so it finds every process that left its environment as it was. A process that
hides its mark behind more bytes (`kernel_files`) could as well have erased it: marks find processes that were left
behind, and only cgroups, namespaces and descent find processes that hide.

Source: proc(5) for /proc/PID/stat; pidfd_open(2), which closes the gap between the check and the signal; Linux,
fs/binfmt_elf.c (`create_elf_tables`) for the moment after exec in which arguments are not readable yet, fs/exec.c
(`bprm_stack_limits`) for the size of arguments and variables.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from clary.base.kernel_files import read_at_most

MAX_ENVIRONMENT_BYTES = 6 * 1024 * 1024  # limit of exec for arguments and variables together: 3/4 of _STK_LIM
MAX_ARGUMENT_BYTES = 64 * 1024  # of every process; the command lines of Clary's own processes are much shorter
# Fields of /proc/PID/stat, counted from the field behind the command's closing bracket.
_STATE_FIELD, _PARENT_FIELD, _FLAGS_FIELD, _START_TIME_FIELD = 0, 1, 6, 19
_ENDED_STATES = frozenset("ZX")
_EXITING_FLAGS = 0x4 | 0x200  # PF_EXITING, PF_DUMPCORE of linux/sched.h
_KERNEL_THREAD_FLAG = 0x200000  # PF_KTHREAD of linux/sched.h
_EXEC_LIMIT_S = 0.5  # longest wait of a whole scan for programs that are being started on a busy machine
_EXEC_POLL_S = 0.0005


class ProcessEntry(NamedTuple):
    """A line of the machine's process list."""

    parent: int
    state: str  # one letter, as in proc(5)
    started_at: int  # clock ticks since the machine started; with the pid it identifies a process until the next boot
    is_exiting: bool = False  # whether the process is exiting; freeing much memory or writing a dump takes long
    is_kernel_thread: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended and only waits to be reaped."""
        return self.state in _ENDED_STATES


@dataclass(frozen=True)
class ProcessId:
    """One process.

    Args:
        pid: process id.
        started: start time in clock ticks since boot, as text (field 22 of /proc/PID/stat).
    """

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """Identify the process that has this id now, or None if it does not exist or is a zombie."""
        entry = read_entry(pid)
        return None if entry is None or entry.has_ended else cls(pid, str(entry.started_at))

    def is_alive(self) -> bool:
        """Whether this very process still exists and is not a zombie."""
        return ProcessId.of(self.pid) == self

    def terminate(self, *, timeout_s: float) -> bool:
        """Send SIGTERM and wait until the process has ended; False if it has not within `timeout_s`."""
        return self._end(signal.SIGTERM, timeout_s)

    def kill(self, *, timeout_s: float) -> bool:
        """Send SIGKILL and wait until the process has ended; False if it has not within `timeout_s`."""
        return self._end(signal.SIGKILL, timeout_s)

    def end_by(self, number: signal.Signals, *, timeout_s: float) -> bool:
        """Send a signal that ends the process and wait until it has ended; False if it has not within `timeout_s`."""
        return self._end(number, timeout_s)

    def _end(self, number: signal.Signals, timeout_s: float) -> bool:
        """Signal this very process and wait; True, without a signal, if it has ended already.

        Raises: PermissionError if the process belongs to another user.
        """
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            # Checked after the descriptor was opened: a process alive now is the descriptor's process.
            if not self.is_alive():
                return True
            signal.pidfd_send_signal(descriptor, number)
            poller = select.poll()
            poller.register(descriptor, select.POLLIN)
            return bool(poller.poll(timeout_s * 1000))
        except ProcessLookupError:
            return True
        finally:
            os.close(descriptor)


def parse_stat(line: bytes) -> ProcessEntry:
    """Read /proc/PID/stat; the command name in it may contain spaces, parentheses and bytes that are not text."""
    fields = line[line.rindex(b")") + 2 :].split()
    return ProcessEntry(
        parent=int(fields[_PARENT_FIELD]),
        state=fields[_STATE_FIELD].decode(),
        started_at=int(fields[_START_TIME_FIELD]),
        is_exiting=bool(int(fields[_FLAGS_FIELD]) & _EXITING_FLAGS),
        is_kernel_thread=bool(int(fields[_FLAGS_FIELD]) & _KERNEL_THREAD_FLAG),
    )


def read_entry(pid: int) -> ProcessEntry | None:
    """Return the facts of a process from /proc, or None if it does not exist or may not be seen."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return parse_stat(file.read())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def read_process_list() -> dict[int, ProcessEntry]:
    """Return every process that /proc shows; a process that ends meanwhile may be missing."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return {pid: entry for pid in pids if (entry := read_entry(pid)) is not None}


def live_descendants(ancestor: int) -> dict[int, ProcessEntry]:
    """Return the processes below `ancestor` that have not ended."""
    entries = read_process_list()
    return {pid: entries[pid] for pid in descendants_in(entries, [ancestor]) if not entries[pid].has_ended}


def descendants_in(entries: Mapping[int, ProcessEntry], ancestors: Iterable[int]) -> set[int]:
    """Return the processes below `ancestors`, including ended ones, and ancestors that are below other ancestors.

    Args:
        entries: result of `read_process_list`.
        ancestors: pids of the processes whose descendants are returned.
    """
    children: dict[int, list[int]] = {}
    for pid, entry in entries.items():
        children.setdefault(entry.parent, []).append(pid)
    found: set[int] = set()
    waiting = [child for ancestor in ancestors for child in children.get(ancestor, ())]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting.extend(children.get(pid, ()))
    return found


def exec_deadline() -> float:
    """Return the monotonic time until which a scan that begins now waits for programs that are being started."""
    return time.monotonic() + _EXEC_LIMIT_S


def read_arguments(pid: int, deadline: float | None = None) -> list[str]:
    """Return the arguments of a process; empty if it has ended, is a kernel thread, or may not be seen.

    Only arguments that end within the first MAX_ARGUMENT_BYTES are returned.

    `execve` reports its success to the parent before /proc/PID/cmdline has content. The function waits during that
    moment: a search for arguments would otherwise miss a process that was just started.

    Args:
        deadline: result of `exec_deadline`, shared by all processes of one scan; None begins a new scan.
    """
    text = _arguments(pid, exec_deadline() if deadline is None else deadline)
    return [part.decode(errors="replace") for part in text.split(b"\0")[:-1]]


def read_environment(pid: int, deadline: float | None = None) -> bytes:
    """Return the variables with which a process was started, each `NAME=value` and a zero byte, as the kernel has them.

    Empty as for `read_arguments`. The content has at most MAX_ENVIRONMENT_BYTES; it is not for splitting, because a
    stranger may have millions of variables.
    """
    text = _read(pid, "environ", MAX_ENVIRONMENT_BYTES)
    if not text and _arguments(pid, exec_deadline() if deadline is None else deadline):
        time.sleep(_EXEC_POLL_S)  # the kernel sets up variables just after the arguments
        text = _read(pid, "environ", MAX_ENVIRONMENT_BYTES)
    return text


def has_variable(pid: int, name: str, value: str, deadline: float | None = None) -> bool:
    """Whether a process was started with this variable; [Note: marks] names its limits.

    Args:
        pid: of the process.
        name: of the variable.
        value: of the variable.
        deadline: as for `read_arguments`.
    """
    variable = os.fsencode(f"{name}={value}")
    return b"\0%b\0" % variable in b"\0%b\0" % read_environment(pid, deadline)


def read_variable(pid: int, name: str, deadline: float | None = None) -> str | None:
    """Return the value of a variable with which a process was started; None if it was started without it.

    Args:
        pid: of the process.
        name: of the variable.
        deadline: as for `read_arguments`.
    """
    value = find_variable(read_environment(pid, deadline), name)
    return None if value is None else value.decode(errors="replace")


def find_variable(environment: bytes, name: str) -> bytes | None:
    """Return the value of the first variable of this name in a result of `read_environment`. Pure."""
    prefix = os.fsencode(f"{name}=")
    if environment.startswith(prefix):
        start = len(prefix)
    elif (at := environment.find(b"\0" + prefix)) >= 0:
        start = at + 1 + len(prefix)
    else:
        return None
    end = environment.find(b"\0", start)
    return environment[start:] if end < 0 else environment[start:end]


def _arguments(pid: int, deadline: float) -> bytes:
    while not (text := _read(pid, "cmdline", MAX_ARGUMENT_BYTES)):
        entry = read_entry(pid)
        if entry is None or entry.has_ended or entry.is_exiting or entry.is_kernel_thread:
            return b""
        if time.monotonic() > deadline:
            return b""
        time.sleep(_EXEC_POLL_S)
    return text


def _read(pid: int, name: str, max_bytes: int) -> bytes:
    try:
        return read_at_most(f"/proc/{pid}/{name}", max_bytes)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):  # says nothing about the process, as in `read_entry`
            raise
        return b""
