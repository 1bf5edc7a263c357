"""The agent's handle of a host's first process: starts it, sends it messages, ends it and cleans up.

Where: `program` creates one for each start; `standby` creates one before its program is known and hands it over.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import clary
from clary.agent.host.keeper import MAX_MESSAGE_BYTES
from clary.agent.host.leftovers import remove_tree
from clary.agent.host.limits.cgroups import HostCgroup
from clary.agent.host.mounts.machine_view import LAYERS_FOLDER, UPPER_FOLDER
from clary.agent.host.program_order import host_order, process_orders
from clary.agent.host.sandbox import Bind, ProcessSpec, Sandbox
from clary.base.errors import AgentError
from clary.base.processes import read_entry
from clary.contract.launch_plan import Isolation

KILL_LIMIT_S = 5.0  # for processes to end after SIGKILL; processes that hang in the kernel take longer
_START = "import sys; sys.path.insert(0, sys.argv.pop(2)); from clary.agent.host.init import main; main()"


class FirstProcess:
    """One first process; `launch` starts it, `end` ends it, `clean_up` removes its folder, cgroup and descriptors.

    Args:
        sandbox: the host.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._init: subprocess.Popen[bytes] | None = None
        self._failure = ""  # returned by `why_ended`
        self._scratch_folder = ""
        self._cgroup: HostCgroup | None = None
        self._errors = os.memfd_create("clary-init-errors")
        self.control, self._remote_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.control.setblocking(False)

    @property
    def has_ended(self) -> bool:
        """Whether the first process has ended or was never started."""
        return self._init is None or self._init.poll() is not None

    def has_started(self, pid: int) -> bool:
        """Whether a process may be process 1 of this host: the started process, or with namespaces its child.

        Asked about the first process that announces itself, before the host has any process of a program. With /proc
        mounted `hidepid`, an agent without root cannot see process 1, which forbids tracing: then it is believed.
        """
        if self._init is None:
            return False
        if self._sandbox.isolation is Isolation.PROCESSES:
            return pid == self._init.pid
        entry = read_entry(pid)
        return entry is None or entry.parent == self._init.pid

    def launch(
        self,
        processes: Sequence[ProcessSpec],
        *,
        output_fds: Sequence[int],
        standby: Mapping[str, Any] | None = None,
        late_roots: Sequence[str] = (),
    ) -> None:
        """Make the host's folder and cgroup, and start the first process.

        Args:
            processes: processes that it starts once the host is complete.
            output_fds: write end of each process's output pipe.
            standby: interpreter to prepare; then the processes are sent later, by `send_start`.
            late_roots: folders below which binds may be mounted later.

        Raises:
            AgentError: a folder is missing or the cgroup is in use. `end` and `clean_up` must be called even then.
        """
        for folder in (self._sandbox.host_folder, self._sandbox.ml_folder):
            if not os.path.isdir(folder):
                raise AgentError(f"host {self._sandbox.hostname}: folder {folder} does not exist")
        self._scratch_folder = tempfile.mkdtemp(prefix="program-", dir=self._sandbox.host_folder)
        # The folder contains the root of the host, which programs of other users must be able to enter.
        os.chmod(self._scratch_folder, 0o755)  # noqa: S103
        if os.geteuid() == 0:
            # An agent with root rights can start a host in another user's namespace; that user owns the host's folder.
            owner = os.stat(self._sandbox.host_folder)
            os.chown(self._scratch_folder, owner.st_uid, owner.st_gid)
        self._cgroup = HostCgroup.create(self._sandbox.cgroup_name, self._sandbox.resources)
        if standby is not None:
            with contextlib.suppress(OSError):  # if this fails, the imports take processors from other jobs
                self._cgroup.yield_processors()
        order = host_order(
            processes,
            self._sandbox,
            scratch_folder=self._scratch_folder,
            cgroup=self._cgroup,
            output_fds=output_fds,
            standby=standby,
            late_roots=late_roots,
        )
        remote = self._remote_control.fileno()
        sources = str(Path(clary.__file__).parents[1])
        standard_input = _in_memory("clary-host-order", order)
        try:
            # -S: no site-packages, which would cost start-up time.
            self._init = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", "-X", "utf8", "-c", _START, str(remote), sources],
                stdin=standard_input,
                stdout=self._errors,
                stderr=self._errors,
                pass_fds=(remote, *output_fds),
                start_new_session=True,  # only the agent gets a terminal's Ctrl-C
                cwd="/",
                env={"PATH": os.defpath},
            )
        finally:
            os.close(standard_input)
            # Only the first process may hold the other end, so that its death closes the socket.
            self._remote_control.close()

    def send(self, message: Mapping[str, Any]) -> bool:
        """Send one message; return False if the first process has ended."""
        try:
            self.control.send(json.dumps(message).encode())
        except OSError:
            return False
        return True

    def send_start(
        self,
        processes: Sequence[ProcessSpec],
        *,
        forks: Sequence[bool],
        binds: Sequence[Bind],
        output_fds: Sequence[int],
        waits: bool = False,
    ) -> bool:
        """Send the program to a first process that stands by; return False if that failed, as when it has ended.

        From now on the host has its full share of the processors, unless the program waits.

        Args:
            processes: of the program.
            forks: for each process, whether it can be forked from the standby interpreter.
            binds: the host's late binds.
            output_fds: for each process, the write end of its output pipe; the caller closes it.
            waits: whether the program begins only with `send_begin`; its processes are made ready meanwhile.
        """
        order = {
            "processes": process_orders(processes, output_fds, forks=forks),
            "binds": [vars(bind) for bind in binds],
            "waits": waits,
        }
        if not waits and not self._claim_processors():
            return False
        descriptor = _in_memory("clary-start-order", order)
        try:
            rights = array.array("i", [descriptor, *output_fds])
            self.control.sendmsg(
                [json.dumps({"kind": "start"}).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
            )
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True

    def send_begin(self) -> bool:
        """Let a waiting program begin, with the host's full share of the processors; return False if that failed."""
        return self._claim_processors() and self.send({"kind": "begin"})

    def why_ended(self) -> str:
        """Return why the first process ended before its program ran: its reported failure, else its standard error."""
        # A report that a process of the host forged is no reason.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            while not self._failure and (data := self.control.recv(MAX_MESSAGE_BYTES)):
                report = json.loads(data)
                if report["kind"] == "failed":
                    self._failure = str(report["message"])
        return self._failure or self.last_words()

    def last_words(self) -> str:
        """Return the text of the first process's standard error."""
        os.lseek(self._errors, 0, os.SEEK_SET)
        with open(self._errors, "rb", closefd=False) as file:
            return file.read().decode(errors="replace").strip()

    def end(self, *, pidfd: int | None = None) -> None:
        """End the first process and, with it, the program.

        Args:
            pidfd: of process 1 of the host, if known.
        """
        # To the first process this looks like the agent's end: it kills all processes and exits.
        with contextlib.suppress(OSError):
            self.control.shutdown(socket.SHUT_WR)
        if self._init is None:
            return
        try:
            self._init.wait(KILL_LIMIT_S)
        except subprocess.TimeoutExpired:
            if pidfd is not None and self._sandbox.isolation is Isolation.NAMESPACES:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            self._init.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._init.wait(KILL_LIMIT_S)
        # Plain processes can outlive a killed keeper; they are found by their cgroup or sessions.
        if self._cgroup is not None:
            self._cgroup.kill_all()

    @property
    def is_memory_limited(self) -> bool:
        """Whether the kernel enforces the host's memory limit."""
        return self._cgroup is not None and self._cgroup.limits_memory

    def oom_kills(self) -> int:
        """Return how many processes the kernel has killed because the host's memory limit was reached."""
        return 0 if self._cgroup is None else self._cgroup.oom_kills()

    def peak_memory_bytes(self) -> int | None:
        """Return the host's peak memory; None if it is not counted."""
        return None if self._cgroup is None else self._cgroup.peak_memory_bytes()

    def serve_another(self) -> None:
        """Reset the counters before another program."""
        if self._cgroup is not None:
            self._cgroup.count_anew()

    @property
    def scratch_folder(self) -> str:
        """The folder on the machine for the host's temporary files."""
        return self._scratch_folder

    def clean_up(self) -> str | None:
        """Remove folder, cgroup and descriptors; return a sentence if the cgroup stays. Call it once, after `end`."""
        self.control.close()
        self._remote_control.close()
        os.close(self._errors)
        self._keep_layers()
        refusal = None if self._cgroup is None else self._cgroup.remove()
        if self._scratch_folder:
            remove_tree(self._scratch_folder)
        return refusal

    def _claim_processors(self) -> bool:
        """Give the host its full share; end it and return False if that failed.

        A program must not run with the tenth of its share that a standby host has: it gets a new host.
        """
        try:
            if self._cgroup is not None:
                self._cgroup.claim_processors()
        except OSError:
            self.end()
            return False
        return True

    def _keep_layers(self) -> None:
        """Move the overlay layers to be kept into the host's folder, if no process can still write to them."""
        # After the first process was killed, the host's process 1 and the program may still run for a moment.
        if self._init is None or self._init.poll() != 0:
            return
        for name in filter(None, (bind.kept_as for bind in self._sandbox.binds)):
            layer = f"{self._scratch_folder}/{LAYERS_FOLDER}/{name}/{UPPER_FOLDER}"
            with contextlib.suppress(FileNotFoundError):  # the host was never made
                os.chmod(layer, 0o755)  # noqa: S103 - the program may have closed it, and moving writes to its ".."
                os.rename(layer, f"{self._sandbox.host_folder}/{name}")


def _in_memory(name: str, order: Mapping[str, Any]) -> int:
    """Return the descriptor of a file in memory with the order, positioned at its start.

    Unlike a pipe it cannot deadlock on a large order, and unlike a file it leaves no secret on a disk.
    """
    descriptor = os.memfd_create(name)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(json.dumps(order).encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
