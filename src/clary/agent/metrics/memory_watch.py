"""Watch that ends a host that exceeds its memory limit, where no cgroup enforces the limit.

Where: every part that starts an untrusted program calls `watch_memory`: `host_program` for the job's program,
`rule_world` for its rules, `host_command` for installations. `memory_policy` has the policy. A host's memory is the
private pages of its processes, their shared pages counted once, swap included, and the files in its own /dev/shm. Pages
of files do not count, because the kernel frees them when needed. The limit is no defence against malicious programs:
memory that is not mapped (a memfd) is missed.
Source: proc(5) for smaps_rollup and statm.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from clary.agent.host.program import Program
from clary.agent.host.sandbox import Sandbox
from clary.agent.metrics.memory_policy import ProcessUse, excess_in_words, needs_exact, pause_s
from clary.agent.metrics.process_table import ProcessTable
from clary.agent.worker import Worker
from clary.contract.launch_plan import Isolation

_MAX_OPEN_FILES = 128  # of an agent's 1024 descriptors; the metrics' process table uses most of the others
_KIB = 1024
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_OWN = (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:")


class MemoryWatch(Worker):
    """Watches the processes of one host until `close`, or until it has ended the host.

    Args:
        host: name of the host, for messages.
        first_pid: pid of the host's first process on this machine.
        ranks: pid -> global rank.
        limit_bytes: memory limit of the host.
        advice: advice for this machine if the limit is too low.
        has_own_shared_memory: whether the host's /dev/shm is its own, so that all its files count.
        on_excess: called once, from the watch's thread, with a message; must end the host.
    """

    def __init__(
        self,
        host: str,
        *,
        first_pid: int,
        ranks: Mapping[int, int],
        limit_bytes: int,
        advice: str,
        has_own_shared_memory: bool,
        on_excess: Callable[[str], None],
    ) -> None:
        # If its memory cannot be read, a program is not ended.
        super().__init__(f"clary-memory-{host}", failure=f"memory of {host} is not watched any more")
        self._host = host
        self._limit_bytes = limit_bytes
        self._advice = advice
        self._has_own_shared_memory = has_own_shared_memory
        self._on_excess = on_excess
        self._table = ProcessTable(first_pid, ranks=ranks, members=None, max_open_files=_MAX_OPEN_FILES)

    def _round(self) -> float | None:
        began_s = time.monotonic()
        used_bytes, uses = self._look()
        if used_bytes > self._limit_bytes:
            if not self.is_aborted:
                words = excess_in_words(self._host, used_bytes, self._limit_bytes, uses, advice=self._advice)
                self._on_excess(words)
            return None
        return pause_s(used_bytes, self._limit_bytes, cost_s=time.monotonic() - began_s)

    def _on_end(self) -> None:
        self._table.close()

    def _look(self) -> tuple[int, list[ProcessUse]]:
        """Return the host's memory, never too low; after an exact look, also the memory of its processes."""
        self._table.look()
        readings = self._table.read()
        in_files = _bytes_in_shared_memory(readings) if self._has_own_shared_memory else 0
        rough = sum(reading.memory_bytes for reading in readings.values()) + in_files
        if not needs_exact(rough, self._limit_bytes):
            return rough, []
        own = shared = 0
        uses = []
        for pid, reading in readings.items():
            anonymous, shmem = _pages_of(pid)
            own += anonymous
            shared += shmem
            uses.append(ProcessUse(pid, _name_of(pid), reading.rank, anonymous + shmem))
        if in_files:
            uses.append(ProcessUse(0, "files in /dev/shm", None, in_files))
        # Files of /dev/shm count once even if they are mapped.
        return own + max(shared, in_files), uses


def watch_memory(program: Program, sandbox: Sandbox, on_excess: Callable[[str], None]) -> MemoryWatch | None:
    """Start a watch on a host's memory; return None if the kernel enforces the limit or there is no limit.

    Args:
        on_excess: as for `MemoryWatch`.
    """
    limit_bytes = sandbox.resources.memory_bytes
    if limit_bytes is None or program.is_memory_limited or not program.init_pid:
        return None
    watch = MemoryWatch(
        sandbox.hostname,
        first_pid=program.init_pid,
        ranks=program.ranks_by_pid(),
        limit_bytes=limit_bytes,
        advice=sandbox.resources.memory_advice,
        has_own_shared_memory=sandbox.isolation is Isolation.NAMESPACES,
        on_excess=on_excess,
    )
    watch.start()
    return watch


def parse_own_pages(text: bytes) -> tuple[int, int]:
    """Parse private bytes, swap included, and shared bytes of a process in /proc/PID/smaps_rollup. Pure.

    Raises: ValueError, IndexError, KeyError.
    """
    kib = {}
    for line in text.splitlines():
        words = line.split()
        if words[0] in _OWN:
            kib[words[0]] = int(words[1])
    return (kib[b"Pss_Anon:"] + kib.get(b"SwapPss:", 0)) * _KIB, kib[b"Pss_Shmem:"] * _KIB


def _pages_of(pid: int) -> tuple[int, int]:
    """Return private and shared bytes of a process; (0, 0) if it has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError, KeyError):
        return parse_own_pages(Path(f"/proc/{pid}/smaps_rollup").read_bytes())
    # Unreadable, for example because the process forbids tracing: use its resident pages except file pages.
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/statm").read_bytes().split()
        return (int(fields[1]) - int(fields[2])) * _PAGE_BYTES, 0
    return 0, 0


def _name_of(pid: int) -> str:
    # The name, not the command line, which may contain secrets.
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
        return file.read().strip()
    return "a process"


def _bytes_in_shared_memory(pids: Iterable[int]) -> int:
    """Return the bytes in a host's /dev/shm, read through one of its processes; 0 if that fails for all."""
    for pid in pids:
        # The first process forbids tracing, so an agent that is not root cannot use that process's /proc/PID/root.
        with contextlib.suppress(OSError):
            facts = os.statvfs(f"/proc/{pid}/root/dev/shm")
            return (facts.f_blocks - facts.f_bfree) * facts.f_frsize
    return 0
