"""Facts of one process from /proc: its command, its processor time, its wait channel in the kernel.

Source: proc(5): /proc/PID/stat (utime, stime), /proc/PID/cmdline, /proc/PID/wchan, /proc/PID/status,
/proc/PID/io; Documentation/scheduler/sched-stats.rst of the kernel: /proc/PID/task/TID/schedstat.
"""

from __future__ import annotations

import os

from clary.base.kernel_files import read_at_most

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_UTIME_FIELD, _STIME_FIELD = 11, 12  # indexes of fields after the command's closing bracket
_NS_PER_S = 1e9
_MAX_COMMAND_CHARACTERS = 60  # later arguments may be secrets and would not fit into a line
_MAX_COMMAND_BYTES = 16 * 1024  # the longest path of a program, and more arguments than a line shows
MAX_READ_BYTES = 1024 * 1024  # /proc/PID/status is longest: it names up to 65,536 groups


def read(path: str, max_bytes: int = MAX_READ_BYTES) -> bytes:
    """Return the first `max_bytes` of a file of /proc; empty if it cannot be read."""
    try:
        return read_at_most(path, max_bytes)
    except OSError:
        return b""


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has used; 0 if it has ended."""
    fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return (int(fields[_UTIME_FIELD]) + int(fields[_STIME_FIELD])) / _TICKS_PER_S if fields else 0.0


def runnable_s(pid: int) -> dict[int, float]:
    """Return thread -> seconds that it has run or waited for a processor; empty if the kernel does not count them."""
    found = {}
    for thread in _threads(pid):
        fields = read(f"/proc/{pid}/task/{thread}/schedstat").split()
        if len(fields) >= 2:
            found[int(thread)] = (int(fields[0]) + int(fields[1])) / _NS_PER_S
    return found


def command(pid: int) -> str:
    """Return the beginning of a process's command line, with the program's name in place of its path."""
    program, _, arguments = read(f"/proc/{pid}/cmdline", _MAX_COMMAND_BYTES).partition(b"\0")
    joined = os.path.basename(program) + b" " + arguments.replace(b"\0", b" ")  # folders would fill the line
    text = joined.decode("utf-8", "backslashreplace").strip()
    words = "".join(
        letter if letter.isprintable() else "?" for letter in text
    )  # the program chooses this text, and a terminal prints it
    return words if len(words) <= _MAX_COMMAND_CHARACTERS else f"{words[:_MAX_COMMAND_CHARACTERS]}..."


def bytes_moved(pid: int) -> int:
    """Return the bytes that a process has moved by read(2), write(2) and similar calls, not by send(2) and recv(2)."""
    lines = dict(line.split(b": ") for line in read(f"/proc/{pid}/io").splitlines() if b": " in line)
    return int(lines.get(b"rchar", 0)) + int(lines.get(b"wchar", 0))


def thread_states(pid: int) -> str:
    """Return the states of a process's threads, one letter per thread."""
    stats = (read(f"/proc/{pid}/task/{thread}/stat").rpartition(b")")[2].split() for thread in _threads(pid))
    return "".join(fields[0].decode("ascii", "replace") for fields in stats if fields)


def num_waits(pid: int) -> int:
    """Return how often a process's main thread has given up its processor to wait for an event."""
    for line in read(f"/proc/{pid}/task/{pid}/status").splitlines():
        if line.startswith(b"voluntary_ctxt_switches:"):
            return int(line.split()[1])
    return 0


def wait_channel(pid: int) -> str:
    """Return the function of the kernel in which a process's main thread sleeps; empty if it does not sleep."""
    channel = read(f"/proc/{pid}/wchan").decode("ascii", "replace").strip()
    return "" if channel == "0" else channel


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
