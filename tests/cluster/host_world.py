"""Helpers for hosts under test: folders, namespaces in place of an anchor's, and listeners."""

import contextlib
import glob
import os
import shutil
import subprocess
import tempfile
import threading
import time
import uuid
from pathlib import Path

import clary
from clary.agent.host.limits.cgroups import HostCgroup
from clary.agent.host.program import Program
from clary.agent.host.sandbox import ProcessSpec, Sandbox
from clary.base.processes import read_process_list
from clary.contract.launch_plan import Isolation, Resources

PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
PYTHON = "/usr/bin/python3"  # every user may execute it, unlike one in root's home
NOBODY = 65534
PACKAGE_FOLDER = str(Path(clary.__file__).parent)  # holds the files that ranks start from; hosts of jobs show it too
DEADLINE_S = 20.0


class Listener:
    """Keeps the output of every process."""

    def __init__(self):
        self._changed = threading.Condition()
        self._data = {}

    def __call__(self, index, data):
        with self._changed:
            self._data[index] = self._data.get(index, b"") + data
            self._changed.notify_all()

    def text(self, index=0):
        with self._changed:
            return self._data.get(index, b"").decode()

    def wait_for(self, text, *, index=0, times=1):
        with self._changed:
            found = self._changed.wait_for(
                lambda: self._data.get(index, b"").decode().count(text) >= times, timeout=DEADLINE_S
            )
            assert found, f"no {times} x {text!r} in {self._data}"


class HostWorld:
    """Makes sandboxes of one mode: `root` and `user` use namespaces, `plain` uses plain processes."""

    def __init__(self, mode):
        self.mode = mode
        self.isolation = Isolation.PROCESSES if mode == "plain" else Isolation.NAMESPACES
        # Not pytest's folder, because other users cannot read that one.
        self.base = Path(tempfile.mkdtemp(prefix=f"clary-host-{os.getpid()}-", dir="/var/tmp"))
        self.base.chmod(0o755)
        self._holders = []
        self._programs = []

    def folder(self, name):
        path = self.base / name
        path.mkdir(parents=True)
        if self.mode == "user" and os.geteuid() == 0:
            os.chown(path, NOBODY, NOBODY)
        return path

    def hold_namespaces(self):
        """Start a process with its own network (and user) namespaces; return its pid."""
        command = ["unshare", "--net", "sh", "-c", "ip link set lo up; echo up; exec sleep 300"]
        if self.mode == "user":
            command[1:2] = ["-Urn"]
            if os.geteuid() == 0:
                drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
                command = drop + command
        holder = subprocess.Popen(command, stdout=subprocess.PIPE)
        self._holders.append(holder)
        assert holder.stdout.readline() == b"up\n"
        return holder.pid

    def sandbox(self, name="algo-1", *, own_network=False, memory_bytes=None, num_cpus=64.0, folder=None, **fields):
        user = network = None
        if own_network or (self.mode == "user" and os.geteuid() == 0):
            holder = self.hold_namespaces()
            network = f"/proc/{holder}/ns/net" if own_network else None
            user = f"/proc/{holder}/ns/user" if self.mode == "user" else None
        unique = uuid.uuid4().hex[:8]
        return Sandbox(
            isolation=self.isolation,
            hostname=name,
            host_folder=str(folder or self.folder(f"host-{unique}")),
            ml_folder=str(self.folder(f"ml-{unique}")),
            network_namespace_path=network,
            user_namespace_path=user,
            hosts_file=fields.pop("hosts_file", {"algo-1": "10.9.0.1", "algo-2": "10.9.0.2"}),
            resources=Resources(num_cpus=num_cpus, memory_bytes=memory_bytes),
            cgroup_name=f"test-{os.getpid()}-{unique}",  # the check for leftovers finds cgroups by this name
            visible_folders=fields.pop("visible_folders", (PACKAGE_FOLDER,)),
            **fields,
        )

    def start(self, *processes, sandbox=None, listener=None):
        listener = listener or Listener()
        program = Program.start(processes, sandbox or self.sandbox(), on_output=listener)
        self._programs.append(program)
        return program, listener

    def run(self, script, *, sandbox=None):
        """Run a shell script to its end; return its output."""
        program, listener = self.start(shell(script), sandbox=sandbox)
        result = program.wait(DEADLINE_S)
        program.close()
        assert result is not None, f"still running: {script}; so far: {listener.text()}"
        return listener.text()

    def expect_no_cgroup_of(self, sandbox):
        """Wait until the cgroup of a host whose agent has died is gone."""
        if self.mode == "user" and os.geteuid() == 0:
            # A process that has become another user cannot remove root's cgroup; the next start takes the cgroup over.
            assert HostCgroup.create(sandbox.cgroup_name, sandbox.resources).remove() is None
        else:
            eventually(lambda: not glob.glob(f"/sys/fs/cgroup/**/{sandbox.cgroup_name}", recursive=True))

    def close(self):
        with contextlib.ExitStack() as left:  # runs the last callback first, and all even if one fails
            left.callback(shutil.rmtree, self.base)
            for holder in self._holders:
                left.callback(end_holder, holder)
            for program in self._programs:
                left.callback(program.close)


def end_holder(holder):
    holder.kill()
    holder.wait(DEADLINE_S)
    holder.stdout.close()


def shell(script, **fields):
    return process("/bin/sh", "-c", script, **fields)


def python(script, **fields):
    return process(PYTHON, "-I", "-u", "-c", script, **fields)


def process(*argv, environment=None, working_folder="/", rank=0, local_rank=0):
    return ProcessSpec(
        argv=argv,
        environment={"PATH": PATH, **(environment or {})},
        working_folder=working_folder,
        rank=rank,
        local_rank=local_rank,
    )


def pids_with(marker):
    """Return every live process of the machine that has `marker` in its command line."""
    found = []
    for pid, entry in read_process_list().items():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if entry.state not in "ZX" and marker.encode() in command and pid != os.getpid():
            found.append(pid)
    return found


def eventually(condition, *, within_s=DEADLINE_S):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "did not come true in time"
        time.sleep(0.01)


def unique_sleep():
    """Return a long sleep command whose unique argument identifies the process."""
    return f"sleep 3600.{uuid.uuid4().int % 10**12:012d}"
