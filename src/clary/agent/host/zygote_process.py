"""The zygote of a standby host: its start, its forks of a program's ranks, its end.

Where: `standing_by` starts it in the first process of the host, `keeper` lets it fork. The zygote runs
`clary.agent.zygote.clary_zygote`. Messages are JSON objects, one per packet:

    from the zygote: ready, refused (reason), forked (pids, is_parent), over
    to the zygote: fork, with descriptors: the order as a file in memory, the gate, the agent's socket, outputs

Forked ranks wait at the gate, a pipe, until the process that forked them has ended, which makes this process their
parent, until their pids are known here, and until the program may begin (`keeper`). Ranks forked ahead have this
process as their parent already. Otherwise the forking process is the zygote (`is_parent`), or, if the zygote lasts for
several programs, a child of the zygote, whose end the zygote reports (`over`). If an error occurs before the ranks may
continue, the gate closes and they exit without effect, so the caller can execute all processes instead.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from clary.agent.host import kernel
from clary.agent.host.confinement import Confinement
from clary.agent.host.spawning import spawn
from clary.agent.host.standstill import Standstill
from clary.base.processes import read_entry

READY_LIMIT_S = 20.0  # from the start order; longer than the start of a new interpreter takes
FORK_LIMIT_S = 10.0  # milliseconds per rank, unless the machine swaps
# Time after which an idle zygote counts as stuck; if it is too short, the only cost is the start of new interpreters.
LOOK_INTERVAL_S = 0.25
MAX_IDLE_LOOKS = 12  # 3 s on a machine that is not busy
KILL_LIMIT_S = 2.0
MAX_DESCRIPTORS = 253  # the kernel's limit of descriptors per message (SCM_MAX_FD)
MAX_PROCESSES = 200
_MAX_MESSAGE_BYTES = 65536
_GO = b"g"
_STOPPED_STATES = frozenset("Tt")  # states of proc(5)
_LIMITS = sorted({value for name, value in vars(resource).items() if name.startswith("RLIMIT_")})
_INHERITED_FILES = ("oom_score_adj", "coredump_filter", "autogroup")


class Zygote:
    """One zygote; it forks for one program and ends, or, with `lasts`, for several programs in succession."""

    def __init__(self, pid: int, remote: socket.socket, *, failure: str, lasts: bool = False) -> None:
        self.pid = pid
        self.lasts = lasts
        self._is_ready = False
        self._socket = remote
        self._socket.settimeout(FORK_LIMIT_S)
        self._failure = failure
        self._has_ended = False
        self._heritage: dict[str, object] = {}  # attributes before the first program

    @classmethod
    def start(
        cls,
        standby: Mapping[str, Any],
        *,
        parent_watched: bool,
        prepare: Callable[[], object],
        confinement: Confinement,
    ) -> Zygote:
        """Start the interpreter and return without waiting for its imports.

        Args:
            standby: argv, environment, and whether the zygote lasts, in the form written by `standby`.
            parent_watched: whether the zygote must die with this process.
            prepare: called in the zygote's process before exec.
            confinement: entered after `prepare`; the zygote's forks inherit it.
        """
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        output_read, output_write = os.pipe()
        try:
            python, script, *rest = standby["argv"]
            pid, failure = spawn(
                {
                    "argv": [python, script, str(there.fileno()), str(output_read), *rest],
                    "environment": standby["environment"],
                    "working_folder": "/",
                    "output_fd": output_write,
                },
                announce=prepare,
                parent_watched=parent_watched,
                confinement=confinement,
                inherited_fds=(there.fileno(), output_read),
            )
        finally:
            there.close()
            os.close(output_read)
            os.close(output_write)
        return cls(pid, here, failure=failure, lasts=bool(standby.get("lasts")))

    def why_unfit(self) -> str:
        """Return "", or the reason why the zygote cannot fork for another program.

        Programs of the same user can set the zygote's limits and priorities, which the next program would inherit.
        """
        if not self.lasts or self._has_ended:
            return "its interpreter has ended"
        entry = read_entry(self.pid)
        if entry is None or entry.has_ended or entry.state in _STOPPED_STATES:
            return "its interpreter has ended or was stopped"
        now = heritage(self.pid)
        changed = sorted(name for name in now if now[name] != self._heritage.get(name))
        if changed:
            return f"the program has changed its interpreter's {changed[0]}"
        return ""

    def fork(
        self,
        processes: Sequence[Mapping[str, Any]],
        *,
        control: socket.socket,
        parent_watched: bool,
        before_gate: Callable[[], object],
    ) -> tuple[dict[int, int], str]:
        """Fork those of `processes` that are marked with `forks`; then the zygote ends, unless it lasts.

        Args:
            processes: in the form of `program_order`, with `forks`.
            control: socket to the agent, where each process announces itself.
            parent_watched: whether the processes die with this process.
            before_gate: called when everything is done except that the gate opens; its errors close the gate.

        Returns: index -> pid of the forked processes, which are children of this process; and the reason if processes
            were marked and none was forked.
        """
        marked = {index: process for index, process in enumerate(processes) if _can_fork(process)}
        forked: dict[int, int] = {}
        try:
            if marked:
                forked = self._fork(marked, control=control, parent_watched=parent_watched, before_gate=before_gate)
        except ConnectionError:
            return {}, "the standby interpreter has ended"
        except (OSError, ValueError, KeyError) as error:
            return {}, str(error)
        finally:
            if not (self.lasts and forked):
                self.end()
        return forked, ""

    def end(self) -> None:
        """End the zygote; a second call does nothing."""
        if not self._has_ended:
            self._has_ended = True
            self._socket.close()
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            # The keeper reaps a zygote that hangs in the kernel.
            with contextlib.suppress(OSError):
                self._await_end(KILL_LIMIT_S)
                os.waitpid(self.pid, os.WNOHANG)

    def _fork(
        self,
        marked: Mapping[int, Mapping[str, Any]],
        *,
        control: socket.socket,
        parent_watched: bool,
        before_gate: Callable[[], object],
    ) -> dict[int, int]:
        if self._failure:
            raise OSError(self._failure)
        if not self._is_ready:
            self._expect("ready", within_s=READY_LIMIT_S)
            self._is_ready = True
            if self.lasts:
                self._heritage = heritage(self.pid)
        gate_read, gate_write = os.pipe()
        try:
            self._send_order(marked, gate=gate_read, control=control, parent_watched=parent_watched)
            said = self._expect("forked", within_s=FORK_LIMIT_S)
            forked = {index: int(pid) for index, pid in zip(marked, said["pids"], strict=True)}
            if self.lasts:
                self._expect("over", within_s=FORK_LIMIT_S)
            elif said["is_parent"]:
                self._await_end(FORK_LIMIT_S)
            before_gate()
            os.write(gate_write, _GO * len(forked))
        finally:
            os.close(gate_read)
            os.close(gate_write)
        return forked

    def _send_order(
        self, marked: Mapping[int, Mapping[str, Any]], *, gate: int, control: socket.socket, parent_watched: bool
    ) -> None:
        order = {
            "parent": os.getpid() if parent_watched else None,
            "lasts": self.lasts,
            "processes": [
                {
                    "index": index,
                    "argv": process["argv"],
                    "environment": process["environment"],
                    "working_folder": process["working_folder"],
                }
                for index, process in marked.items()
            ],
        }
        outputs = [process["output_fd"] for process in marked.values()]
        descriptor = os.memfd_create("clary-fork-order")
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(json.dumps(order).encode())
            os.lseek(descriptor, 0, os.SEEK_SET)
            rights = array.array("i", [descriptor, gate, control.fileno(), *outputs])
            self._socket.sendmsg(
                [json.dumps({"kind": "fork"}).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
            )
        finally:
            os.close(descriptor)

    def _expect(self, kind: str, *, within_s: float) -> dict[str, Any]:
        """Return the next message, which must be of this kind."""
        # A zygote that still imports may wait for files of a FUSE mount, so that it looks idle.
        max_idle_looks = 2 * MAX_IDLE_LOOKS if kind == "ready" else MAX_IDLE_LOOKS
        self._wait_for(
            self._socket.fileno(), f"did not say {kind!r} within", limit_s=within_s, max_idle_looks=max_idle_looks
        )
        data = self._socket.recv(_MAX_MESSAGE_BYTES)
        if not data:
            raise ConnectionResetError
        message: dict[str, Any] = json.loads(data)
        if message["kind"] != kind:
            raise OSError(str(message.get("reason", f"the standby interpreter said {message['kind']!r}")))
        return message

    def _await_end(self, limit_s: float) -> None:
        """Wait until the zygote has ended by itself, so that its children become this process's children."""
        watched = os.pidfd_open(self.pid)
        try:
            self._wait_for(watched, "lived on for", limit_s=limit_s, max_idle_looks=MAX_IDLE_LOOKS)
        finally:
            os.close(watched)

    def _wait_for(self, descriptor: int, otherwise: str, *, limit_s: float, max_idle_looks: int) -> None:
        """Wait until a descriptor is readable, unless the zygote is idle for too long.

        Raises: OSError with the text `otherwise` and the time.
        """
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        standstill = Standstill(self.pid)
        began_s = time.monotonic()
        while not poll.poll(1000 * max(0.0, min(LOOK_INTERVAL_S, began_s + limit_s - time.monotonic()))):
            waited_s = time.monotonic() - began_s
            if waited_s >= limit_s:
                raise OSError(f"the standby interpreter {otherwise} {limit_s:g} s")
            if (num_idle := standstill.look()) >= max_idle_looks:
                idle_s = num_idle * LOOK_INTERVAL_S
                raise OSError(f"the standby interpreter {otherwise} {waited_s:.1f} s, idle for {idle_s:g} s")


def heritage(pid: int) -> dict[str, object]:
    """Return name -> value of a process's inherited attributes that other processes of its user can set.

    PR_SET_DUMPABLE does not prevent other processes from setting these attributes.
    Raises: OSError.
    Source: prlimit(2), sched(7), setpriority(2), ioprio_set(2), proc(5).
    """
    found: dict[str, object] = {f"limit {number} of setrlimit(2)": resource.prlimit(pid, number) for number in _LIMITS}
    found["processors"] = os.sched_getaffinity(pid)
    found["scheduling"] = os.sched_getscheduler(pid), os.sched_getparam(pid).sched_priority
    found["priority"] = os.getpriority(os.PRIO_PROCESS, pid)
    found["priority of input and output"] = kernel.io_priority(pid)
    for name in _INHERITED_FILES:
        with contextlib.suppress(FileNotFoundError, PermissionError), open(f"/proc/{pid}/{name}") as file:
            found[name] = file.read()
    return found


def _can_fork(process: Mapping[str, Any]) -> bool:
    """Whether the zygote may fork a process; not with a bad working folder, which `spawn` reports better."""
    folder = process["working_folder"]
    return bool(process.get("forks")) and os.path.isdir(folder) and os.access(folder, os.X_OK)
