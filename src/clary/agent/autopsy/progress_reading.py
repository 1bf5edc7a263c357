"""Progress of a program, and the waits of its processes, read from /proc.

Where: `progress_watch` calls these functions. Counters are summed over the host's first process and its live
descendants. The counters of an ended process drop out of the sum, which the policy takes for activity.
Source: proc(5): /proc/PID/net/dev; the sources of the other counters are in `autopsy.process_state`.
"""

from __future__ import annotations

from dataclasses import dataclass

from clary.agent.autopsy import process_state
from clary.base.processes import live_descendants

_RECEIVED_FIELD, _SENT_FIELD = 0, 8  # indexes of fields of a line of net/dev, after the interface's name
_MAX_SHOWN = 16  # limit of processes that `evidence` lists


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Sums over a program's processes."""

    cpu_s: float
    io_bytes: int
    network_bytes: int


def read_counters(first_pid: int) -> Counters:
    """Return the counters of a process and its descendants; an unreadable counter is zero."""
    pids = [first_pid, *live_descendants(first_pid)]
    return Counters(
        cpu_s=sum(map(process_state.cpu_s, pids)),
        io_bytes=sum(map(process_state.bytes_moved, pids)),
        network_bytes=_network_bytes(first_pid),
    )


def evidence(first_pid: int) -> str:
    """Return one line with the command, the state and the wait channel in the kernel of each process."""
    found = sorted(live_descendants(first_pid).items())
    words = [
        f"{pid} {process_state.command(pid)} ({entry.state}, {_waits_in(pid)})" for pid, entry in found[:_MAX_SHOWN]
    ]
    if len(found) > _MAX_SHOWN:
        words.append(f"and {len(found) - _MAX_SHOWN} more")
    return "; ".join(words)


def _waits_in(pid: int) -> str:
    return process_state.wait_channel(pid) or "no wait in the kernel"


def _network_bytes(pid: int) -> int:
    """Return the bytes moved by all interfaces except loopback: the host's own ones, or else the machine's."""
    total = 0
    for line in process_state.read(f"/proc/{pid}/net/dev").splitlines():
        name, colon, numbers = line.partition(b":")
        if colon and name.strip() != b"lo":
            fields = numbers.split()
            total += int(fields[_RECEIVED_FIELD]) + int(fields[_SENT_FIELD])
    return total
