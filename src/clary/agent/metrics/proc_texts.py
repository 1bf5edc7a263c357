"""Parsers for files of /proc. Pure.

Where: `process_table` and the sources read the files.
Source: proc(5).
"""

from __future__ import annotations

from typing import NamedTuple

# Indexes of fields in /proc/PID/stat after the command's closing bracket.
_STATE, _PARENT, _UTIME, _STIME, _CUTIME, _CSTIME, _THREADS, _STARTED, _RSS = 0, 1, 11, 12, 13, 14, 17, 19, 21
_RECEIVED, _SENT = 0, 8  # indexes of fields of a line of net/dev, after the interface's name
_ENDED = (b"Z", b"X", b"x")
# Fields of the line "cpu" of /proc/stat; guest time is already part of user time.
_IDLE, _IOWAIT, _STEAL, _NUM_TIMES = 3, 4, 7, 8
_RANK_VARIABLES = (b"RANK", b"OMPI_COMM_WORLD_RANK", b"PMI_RANK")
_RANK_DIGITS = 6


class ProcessStat(NamedTuple):
    """A line of /proc/PID/stat."""

    parent: int
    cpu_ticks: int  # of its threads, including ended threads
    reaped_cpu_ticks: int  # of reaped children, and of their reaped children
    num_threads: int
    started_at: int  # clock ticks since the machine started
    memory_pages: int  # resident
    has_ended: bool  # whether it is a zombie, whose counters are still valid


class IoCounters(NamedTuple):
    """Bytes read from and written to the disk by a process and its reaped children."""

    read_bytes: int
    write_bytes: int


class CpuTimes(NamedTuple):
    """The machine's processor time since its start, in clock ticks summed over all processors."""

    busy: int
    iowait: int  # a processor was idle while a disk was busy
    steal: int  # the machine under this virtual machine ran other work


def parse_stat(text: bytes) -> ProcessStat:
    """Parse /proc/PID/stat; the command in it may contain spaces and brackets. Raises: ValueError, IndexError."""
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
    """Parse /proc/PID/io. Raises: ValueError, KeyError."""
    words = text.split()
    values = dict(zip(words[::2], words[1::2], strict=False))
    return IoCounters(int(values[b"read_bytes:"]), int(values[b"write_bytes:"]))


def parse_network(text: bytes) -> tuple[int, int]:
    """Parse /proc/PID/net/dev; return the bytes received and sent by all interfaces except loopback."""
    received = sent = 0
    for line in text.splitlines():
        name, colon, numbers = line.partition(b":")
        if colon and name.strip() != b"lo":
            fields = numbers.split()
            received += int(fields[_RECEIVED])
            sent += int(fields[_SENT])
    return received, sent


def parse_cpu_times(text: bytes) -> CpuTimes:
    """Parse the first line of /proc/stat. Raises: ValueError."""
    name, *fields = text[: text.index(b"\n")].split()
    if name != b"cpu" or len(fields) < _NUM_TIMES:
        raise ValueError(f"/proc/stat: expected a line of processor times, got {text[:80]!r}")
    times = [int(field) for field in fields[:_NUM_TIMES]]
    idle = times[_IDLE] + times[_IOWAIT] + times[_STEAL]
    return CpuTimes(busy=sum(times) - idle, iowait=times[_IOWAIT], steal=times[_STEAL])


def parse_available_memory(text: bytes) -> tuple[int, int]:
    """Parse total and available bytes in /proc/meminfo. Raises: KeyError, ValueError."""
    kib = {line.partition(b":")[0]: line.split()[1] for line in text.splitlines() if b":" in line}
    return int(kib[b"MemTotal"]) * 1024, int(kib[b"MemAvailable"]) * 1024


def parse_environment_rank(text: bytes) -> int | None:
    """Return the global rank in /proc/PID/environ, set by torchrun, mpirun and similar launchers, or None."""
    for entry in text.split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name in _RANK_VARIABLES and value.isdigit() and len(value) <= _RANK_DIGITS:
            return int(value)
    return None
