"""Decision on when each process of a program gets SIGTERM, with the reason. Pure.

Where: the keeper calls it when the agent orders SIGTERM. If three kinds of processes got the signal at once, the last
output of ranks would be lost, or ranks would be killed while they save their state:

- a process that reads a rank's output through a pipe and has no handler: SDK v3's driver, AWS's toolkit, `tee`. It gets
  the signal after the writers of the pipe have ended.
- an MPI launcher and its daemons: they forward the signal, so that ranks get it twice, and kill the ranks soon after.
  They get no signal; they end with the ranks.
- the ssh connection under which such a daemon runs: its processes get no signal either.

A scheduler that signals every process of a step does not follow these rules. Then processes of the three kinds that do
not block the signal end at once, and the output and the ranks are lost. The shim around mpirun blocks the signal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_MPI_LAUNCHERS = frozenset(("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"))
_MPI_DAEMONS = frozenset(("hydra_pmi_proxy", "orted", "prted"))
_SSH_CLIENT, _SSH_SERVER = "ssh", "sshd"
# A shell that waits for $(...) would continue with the next command of its script.
_SHELLS = frozenset(("ash", "bash", "busybox", "dash", "ksh", "sh", "zsh"))


@dataclass(frozen=True, kw_only=True)
class ProcessView:
    """The facts about one process that determine when it gets SIGTERM.

    Attributes:
        pid: process id.
        parent: process id of its parent.
        name: command name in the kernel, 15 bytes at most.
        dies_of_sigterm: whether it does not handle, ignore or block SIGTERM.
        reads: inodes of the pipes that it can read but not write.
        prints_to: inodes of the pipes that are its standard output or error. Other pipes do not count: a process pool
            notices through such a pipe that a worker has ended, and then restarts the worker.
    """

    pid: int
    parent: int
    name: str
    dies_of_sigterm: bool
    reads: frozenset[int] = frozenset()
    prints_to: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Deferral:
    """The reason why a process does not get SIGTERM at once.

    Attributes:
        until: processes that must end first; None if the process never gets the signal, because it ends by itself.
        reason: the reason, as a text for users.
    """

    until: frozenset[int] | None
    reason: str


def decide_deferrals(processes: Sequence[ProcessView]) -> dict[int, Deferral]:
    """Return pid -> deferral, for processes that do not get SIGTERM at once; all other processes do."""
    by_pid = {process.pid: process for process in processes}
    carriers = _carriers(by_pid)
    readers = {
        process.pid: writers
        for process in processes
        if process.pid not in carriers
        and process.dies_of_sigterm
        and process.name not in _SHELLS
        and (writers := _writers(process, by_pid))
    }
    deferrals = {pid: Deferral(None, reason) for pid, reason in carriers.items()}
    for pid, writers in readers.items():
        if not _waits_for(pid, pid, readers):
            deferrals[pid] = Deferral(writers, f"it reads what {', '.join(map(str, sorted(writers)))} print")
    return deferrals


def _carriers(by_pid: Mapping[int, ProcessView]) -> dict[int, str]:
    """Return pid -> reason, for launchers, daemons and connections that MPI ranks need."""
    parents = {process.parent for process in by_pid.values()}
    found = {}
    for process in by_pid.values():
        ancestors = list(_ancestors(process, by_pid))
        if process.name in _MPI_LAUNCHERS and process.pid in parents:
            found[process.pid] = "it started ranks that hear the signal themselves"
        elif process.name in _MPI_DAEMONS:
            found[process.pid] = "it started ranks that hear the signal themselves"
            found |= {above.pid: "an MPI daemon runs under it" for above in _within_session(ancestors)}
        elif process.name == _SSH_CLIENT and any(above.name in _MPI_LAUNCHERS for above in ancestors):
            found[process.pid] = "it connects mpirun with another host"
    return found


def _within_session(ancestors: Sequence[ProcessView]) -> Sequence[ProcessView]:
    """Return the ancestors within one ssh session, below the listening server; empty without a server."""
    servers = [index for index, above in enumerate(ancestors) if above.name.startswith(_SSH_SERVER)]
    return ancestors[: servers[-1]] if servers else ()


def _writers(reader: ProcessView, by_pid: Mapping[int, ProcessView]) -> frozenset[int]:
    """Return the processes that print into a pipe of `reader`, except its ancestors, which it need not outlive."""
    above = {ancestor.pid for ancestor in _ancestors(reader, by_pid)}
    return frozenset(
        other.pid
        for other in by_pid.values()
        if other.pid != reader.pid and other.pid not in above and other.prints_to & reader.reads
    )


def _ancestors(process: ProcessView, by_pid: Mapping[int, ProcessView]) -> Iterable[ProcessView]:
    """Yield parent, grandparent and so on, while they belong to the program."""
    seen = {process.pid}
    while process.parent in by_pid and process.parent not in seen:
        process = by_pid[process.parent]
        seen.add(process.pid)
        yield process


def _waits_for(pid: int, target: int, readers: Mapping[int, frozenset[int]]) -> bool:
    """Whether `pid` waits for `target`, directly or indirectly; a cycle of waits would last until the kill."""
    waiting, seen = list(readers.get(pid, ())), set()
    while waiting:
        other = waiting.pop()
        if other == target:
            return True
        if other not in seen:
            seen.add(other)
            waiting.extend(readers.get(other, ()))
    return False
