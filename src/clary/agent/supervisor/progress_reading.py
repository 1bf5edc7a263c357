"""What /proc says of a program's progress, and of what each of its processes waits for.

Where: `progress_watch`. Counters are summed over the live processes below the host's first one; what belongs to one
that has ended is missing from then on, which the policy takes for a movement.
Source: proc(5): /proc/PID/stat (utime, stime), /proc/PID/io (rchar, wchar), /proc/PID/net/dev, /proc/PID/wchan.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from clary.contract.processes import live_descendants

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_UTIME_FIELD, _STIME_FIELD = 11, 12  # behind the command's closing bracket
_RECEIVED_FIELD, _SENT_FIELD = 0, 8  # of a line of net/dev, behind the interface's name
_MAX_SHOWN = 16  # processes in a sentence of evidence
_MAX_COMMAND_CHARACTERS = 60


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Sums over a program's processes."""

    cpu_s: float
    io_bytes: int
    network_bytes: int


def read_counters(first_pid: int) -> Counters:
    """Return the counters of a process and all below it; what cannot be read counts as nothing."""
    pids = [first_pid, *live_descendants(first_pid)]
    return Counters(
        cpu_s=sum(map(_cpu_s, pids)), io_bytes=sum(map(_io_bytes, pids)), network_bytes=_network_bytes(first_pid)
    )


def evidence(first_pid: int) -> str:
    """Say of each process what it is, its state and where in the kernel it waits, in one line."""
    found = sorted(live_descendants(first_pid).items())
    words = [f"{pid} {_command(pid)} ({entry.state}, {_wait_channel(pid)})" for pid, entry in found[:_MAX_SHOWN]]
    if len(found) > _MAX_SHOWN:
        words.append(f"and {len(found) - _MAX_SHOWN} more")
    return "; ".join(words)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _cpu_s(pid: int) -> float:
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return (int(fields[_UTIME_FIELD]) + int(fields[_STIME_FIELD])) / _TICKS_PER_S if fields else 0.0


def _io_bytes(pid: int) -> int:
    lines = dict(line.split(b": ") for line in _read(f"/proc/{pid}/io").splitlines() if b": " in line)
    return int(lines.get(b"rchar", 0)) + int(lines.get(b"wchar", 0))


def _network_bytes(pid: int) -> int:
    """Return what interfaces but loopback have moved; those of the machine where the host has none of its own."""
    total = 0
    for line in _read(f"/proc/{pid}/net/dev").splitlines():
        name, colon, numbers = line.partition(b":")
        if colon and name.strip() != b"lo":
            fields = numbers.split()
            total += int(fields[_RECEIVED_FIELD]) + int(fields[_SENT_FIELD])
    return total


def _command(pid: int) -> str:
    program, _, arguments = _read(f"/proc/{pid}/cmdline").partition(b"\0")
    command = os.path.basename(program) + b" " + arguments.replace(b"\0", b" ")  # folders would fill the line
    words = command.decode("utf-8", "backslashreplace").strip()
    return words if len(words) <= _MAX_COMMAND_CHARACTERS else f"{words[:_MAX_COMMAND_CHARACTERS]}..."


def _wait_channel(pid: int) -> str:
    channel = _read(f"/proc/{pid}/wchan").decode("ascii", "replace").strip()
    return channel if channel not in ("", "0") else "no wait in the kernel"
