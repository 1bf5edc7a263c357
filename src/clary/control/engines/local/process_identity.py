"""Which process a recorded pid means: a pid counts only with the start time that the kernel gave it.

Where: the anchor and the engine record identities in the attempt's folder; after a restart the service signals a
process only if pid, start time and boot still match. A pid that was handed on to somebody else is never touched.
Source: proc(5), /proc/PID/stat; pidfd_open(2), which closes the gap between the check and the signal.
"""

from __future__ import annotations

import os
import select
import signal
from typing import Any, NamedTuple

KILL_TIMEOUT_S = 10.0  # SIGKILL to exit; longer means a process stuck in the kernel


class ProcessIdentity(NamedTuple):
    """One process, for ever."""

    pid: int
    start_time: int  # clock ticks after boot
    boot_id: str

    def to_plain(self) -> dict[str, Any]:
        """Return the identity as JSON-ready values."""
        return self._asdict()


def from_plain(data: Any) -> ProcessIdentity | None:
    """Read what `to_plain` wrote; None for anything else."""
    if not isinstance(data, dict):
        return None
    pid, start_time, boot = data.get("pid"), data.get("start_time"), data.get("boot_id", "")
    if not isinstance(pid, int) or not isinstance(start_time, int) or not isinstance(boot, str) or pid <= 1:
        return None
    return ProcessIdentity(pid, start_time, boot)


def boot_id() -> str:
    """Return the id of this boot of the machine; empty where the kernel does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def identity_of(pid: int) -> ProcessIdentity | None:
    """Return the identity of the process that has `pid` now; None if there is none, or only its zombie."""
    stat = _stat(pid)
    if stat is None or stat[0] in "ZX":
        return None
    return ProcessIdentity(pid, int(stat[19]), boot_id())


def is_alive(identity: ProcessIdentity) -> bool:
    """Whether exactly this process still runs; a zombie does not."""
    return identity_of(identity.pid) == identity


def session_of(pid: int) -> int | None:
    """Return the session id of a process; None if it is gone."""
    stat = _stat(pid)
    return int(stat[3]) if stat else None


def kill(identity: ProcessIdentity, *, timeout_s: float = KILL_TIMEOUT_S) -> bool:
    """End exactly this process with SIGKILL and wait until it is gone; blocks.

    Returns: whether there was anything to kill.
    Raises: OSError if the signal is refused; TimeoutError if the process outlives `timeout_s`.
    """
    try:
        descriptor = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_alive(identity):
            return False
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        except ProcessLookupError:
            return False
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        if not poller.poll(timeout_s * 1000):
            raise TimeoutError(f"process {identity.pid} is still there {timeout_s:g} s after SIGKILL")
        return True
    finally:
        os.close(descriptor)


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from `state` on (field 3); the name before it may hold anything."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode("ascii", "replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
