"""Parsing of files of /proc. Pure.

Where: `process_table` and the sources read the files.
Source: proc(5).
"""

from __future__ import annotations

from typing import NamedTuple

# Fields of /proc/PID/stat, counted from the one behind the command's closing bracket.
_STATE, _PARENT, _UTIME, _STIME, _CUTIME, _CSTIME, _THREADS, _STARTED, _RSS = 0, 1, 11, 12, 13, 14, 17, 19, 21
_RECEIVED, _SENT = 0, 8  # of a line of net/dev, behind the interface's name
_ENDED = (b"Z", b"X", b"x")
# Fields of the line "cpu" of /proc/stat; guest time is part of user time already.
_IDLE, _IOWAIT, _STEAL, _NUM_TIMES = 3, 4, 7, 8
_RANK_VARIABLES = (b"RANK", b"OMPI_COMM_WORLD_RANK", b"PMI_RANK")
_RANK_DIGITS = 6


class ProcessStat(NamedTuple):
    """A line of /proc/PID/stat."""

    parent: int
    cpu_ticks: int  # of its threads, including ended ones
    reaped_cpu_ticks: int  # of children that it has waited for, and of their children
    num_threads: int
    started_at: int  # clock ticks since the machine started
    memory_pages: int  # resident
    has_ended: bool  # it waits to be reaped; its counters are still valid


class IoCounters(NamedTuple):
    """Bytes that reached or left the disk, of a process and of the children that it has waited for."""

    read_bytes: int
    write_bytes: int


class CpuTimes(NamedTuple):
    """The machine's processor time since it started, in clock ticks of all processors together."""

    busy: int
    iowait: int  # a processor was idle while a disk was busy
    steal: int  # the machine below this virtual one ran other work


def parse_stat(text: bytes) -> ProcessStat:
    """Read /proc/PID/stat; the command in it may hold spaces and brackets. Raises: ValueError, IndexError."""
    fields = text[text.rindex(b")") + 2 :].split(None, _RSS + 1)
    return ProcessStat(
        parent=int(fields[_PARENT]),
        cpu_ticks=int(fields[_UTIME]) + int(fields[_STIME]),
        reaped_cpu_ticks=int(fields[_CUTIME]) + int(fields[_CSTIME]),
        num_threads=int(fields[_THREADS]),
        started_at=int(fields[_STARTED]),
        memory_pages=int(fields[_RSS]),
        has_ended=fields[_STATE] in _ENDED,
    )


def parse_io(text: bytes) -> IoCounters:
    """Read /proc/PID/io. Raises: ValueError, KeyError."""
    words = text.split()
    values = dict(zip(words[::2], words[1::2], strict=False))
    return IoCounters(int(values[b"read_bytes:"]), int(values[b"write_bytes:"]))


def parse_network(text: bytes) -> tuple[int, int]:
    """Return the bytes that all interfaces except loopback have received and sent, of /proc/PID/net/dev."""
    received = sent = 0
    for line in text.splitlines():
        name, colon, numbers = line.partition(b":")
        if colon and name.strip() != b"lo":
            fields = numbers.split()
            received += int(fields[_RECEIVED])
            sent += int(fields[_SENT])
    return received, sent


def parse_cpu_times(text: bytes) -> CpuTimes:
    """Read the first line of /proc/stat. Raises: ValueError."""
    name, *fields = text[: text.index(b"\n")].split()
    if name != b"cpu" or len(fields) < _NUM_TIMES:
        raise ValueError(f"/proc/stat: expected a line of processor times, got {text[:80]!r}")
    times = [int(field) for field in fields[:_NUM_TIMES]]
    idle = times[_IDLE] + times[_IOWAIT] + times[_STEAL]
    return CpuTimes(busy=sum(times) - idle, iowait=times[_IOWAIT], steal=times[_STEAL])


def parse_available_memory(text: bytes) -> tuple[int, int]:
    """Return total and available bytes of /proc/meminfo. Raises: KeyError, ValueError."""
    kib = {line.partition(b":")[0]: line.split()[1] for line in text.splitlines() if b":" in line}
    return int(kib[b"MemTotal"]) * 1024, int(kib[b"MemAvailable"]) * 1024


def parse_environment_rank(text: bytes) -> int | None:
    """Return the global rank in /proc/PID/environ, as torchrun, mpirun and similar launchers set it, or None."""
    for entry in text.split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name in _RANK_VARIABLES and value.isdigit() and len(value) <= _RANK_DIGITS:
            return int(value)
    return None
