"""A real Slurm in namespaces: a head and three nodes, with munge, slurmctld and three slurmd.

Where: each test module of tests/cluster/slurm makes a `SlurmBed` (`slurm_fixtures.py`, `slurm_heads.py`), and so does
each run of a machine benchmark. Needs root and Debian's slurmctld, slurmd, slurm-client and munge.

    head (10.88.0.254, bridge)        munged, slurmctld
    node-1 .. node-3 (10.88.0.N)      slurmd; a tmpfs of its own at `scratch`; node-1 and node-2 have two GPUs each,
                                      unless all nodes are alike

Each machine is a network, hostname, mount and process namespace, whose first process is a shell. All processes on it
end, as in a power cut, when that shell is killed or when the thread that started it ends. Names and addresses lie
inside the namespaces, so that two beds do not interfere. Nodes share this machine's files, except `scratch` and the
mounts over /etc/slurm, /etc/hosts and /run/munge.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

HEAD = "head"
HEAD_ADDRESS = "10.88.0.254"
NODES = ("node-1", "node-2", "node-3")
GPU_NODES = NODES[:2]
GRACE_S = 10  # grace time of partition spot
KILL_WAIT_S = 5
START_LIMIT_S = 40.0
END_LIMIT_S = 10.0
COMMAND_LIMIT_S = 30.0
POLL_S = 0.05
PROGRAMS = ("sbatch", "squeue", "sinfo", "scancel", "scontrol", "sacct", "srun", "munge", "unmunge")
_ZERO_DEVICE = os.makedev(1, 5)

_SLURM_CONF = f"""
ClusterName=bed
SlurmctldHost={HEAD}({HEAD_ADDRESS})
SlurmUser=root
AuthType=auth/munge
AuthInfo=cred_expire=15
CryptoType=crypto/munge
StateSaveLocation=@FOLDER@/state
SlurmdSpoolDir=@FOLDER@/spool/%n
SlurmctldPidFile=@FOLDER@/run/slurmctld.pid
SlurmdPidFile=@FOLDER@/run/%n.pid
SlurmctldLogFile=@FOLDER@/log/slurmctld.log
SlurmdLogFile=@FOLDER@/log/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0,sched_min_interval=10000
SlurmdParameters=config_overrides
GresTypes=gpu
ReturnToService=2
SlurmdTimeout=6
UnkillableStepTimeout=300
SlurmctldTimeout=10
MessageTimeout=5
InactiveLimit=0
KillWait={KILL_WAIT_S}
MpiDefault=none
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
@NODES@
PartitionName=train Nodes=node-[1-3] Default=YES MaxTime=2-00:00:00 State=UP PriorityTier=1 PreemptMode=OFF
PartitionName=spot Nodes=node-[1-3] MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=CANCEL GraceTime={GRACE_S}
PartitionName=prod Nodes=node-[1-3] MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""
_TWO_KINDS = """\
NodeName=node-[1-2] NodeAddr=10.88.0.[1-2] CPUs=8 RealMemory=8000 Gres=gpu:2 Feature=a10,ib State=UNKNOWN
NodeName=node-3 NodeAddr=10.88.0.3 CPUs=8 RealMemory=8000 Feature=plain State=UNKNOWN"""
_ONE_KIND = "NodeName=node-[1-3] NodeAddr=10.88.0.[1-3] CPUs=8 RealMemory=8000 Feature=plain State=UNKNOWN"
_GRES_CONF = "NodeName=node-[1-2] Name=gpu File=@FOLDER@/dev/nvidia[0-1]\n"
_HOSTS = f"127.0.0.1 localhost\n{HEAD_ADDRESS} {HEAD}\n" + "".join(
    f"10.88.0.{i + 1} {n}\n" for i, n in enumerate(NODES)
)

# The first process of a machine: it adopts and reaps orphans, so that no zombies remain.
_FIRST = """
name=$1 folder=$2
mount --bind "$folder/etc" /etc/slurm
mount --bind "$folder/hosts" /etc/hosts
mkdir -p /run/munge
mount --bind "$folder/munge" /run/munge
mount -t tmpfs -o size=512m,mode=755 tmpfs "$folder/scratch"
hostname "$name"
ip link set lo up
touch "$folder/run/$name.up"
while :; do sleep 1000 & wait $!; done
"""


class SlurmBed:
    """One cluster; call `start`, and finally `stop`, also after a failure.

    Args:
        folder: new, empty folder that every user can reach.
        options: text appended to slurm.conf.
        are_alike: whether no node has GPUs, so that each can replace every other node.
    """

    def __init__(self, folder: Path, *, options: str = "", are_alike: bool = False) -> None:
        self.folder = folder
        self.nodes = NODES
        self.scratch = folder / "scratch"
        self._slurm_conf = _SLURM_CONF.replace("@NODES@", _ONE_KIND if are_alike else _TWO_KINDS) + options
        self._conf = str(folder / "etc/slurm.conf")
        self._outer: dict[str, subprocess.Popen[bytes]] = {}  # machine -> `unshare`, which ends with its child
        self._first: dict[str, int] = {}  # machine -> pid of its first process in this process's namespace
        self._handles: dict[str, int] = {}  # machine -> pidfd of that process
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}  # name of a daemon -> process

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables with which a scheduler in this process runs Slurm's programs on the head."""
        return {"PATH": f"{self.folder}/bin:/usr/bin:/bin"}

    def start(self) -> None:
        """Make the machines, start every daemon, and wait until three nodes are idle."""
        try:
            self._write_files()
            for machine in (HEAD, *NODES):
                self._make_machine(machine)
            self._wire()
            self._start_munged()
            self.start_controller()
            for node in NODES:
                self.start_node_daemon(node)
            self.wait_for_states(dict.fromkeys(NODES, "idle"))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every process of every machine; the kernel then removes namespaces, mounts and links.

        Raises: the first failure.
        """
        errors: list[Exception] = []
        for machine in list(self._outer):
            try:
                self._end_machine(machine)
            except (AssertionError, OSError) as error:  # the other machines must still be ended
                errors.append(error)
        for process in self._daemons.values():
            try:
                _reap(process)
            except AssertionError as error:
                errors.append(error)
        self._daemons.clear()
        if errors:
            raise errors[0]

    def first_process(self, machine: str) -> int:
        """Return the pid of a machine's first process in this process's namespace."""
        return self._first[machine]

    def argv_on(self, machine: str, *command: str) -> list[str]:
        """Return the command line that runs a command on a machine."""
        pid = self._first[machine]
        return ["nsenter", f"--target={pid}", "--net", "--uts", "--mount", "--pid", "--", *command]

    def run(
        self,
        *command: str,
        check: bool = True,
        machine: str = HEAD,
        user: int | None = None,
        stdin: str | None = None,
        timeout_s: float = COMMAND_LIMIT_S,
    ) -> str:
        """Run a command on a machine and return its output, without surrounding white space.

        Args:
            command: program and arguments.
            check: whether to raise if it fails.
            machine: head or a node.
            user: id of the user who runs the command; root by default.
            stdin: text for it.
            timeout_s: seconds after which the command is killed.
        Raises: AssertionError with the output if the command fails and `check` is true.
        """
        if user is not None:
            command = ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--", *command)
        found = subprocess.run(
            self.argv_on(machine, *command),
            input=stdin if stdin is not None else "",
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "TZ": "UTC"},
            check=False,
        )
        if check and found.returncode != 0:
            raise AssertionError(f"{command} on {machine}: exit code {found.returncode}: {found.stdout}{found.stderr}")
        return found.stdout.strip()

    def states(self) -> dict[str, str]:
        """Return node -> state, as printed by sinfo."""
        lines = self.run("sinfo", "-h", "-N", "-p", "train", "-o", "%N %T").splitlines()
        return {node: state for node, _, state in (line.partition(" ") for line in lines)}

    def wait_for_states(self, wanted: Mapping[str, str], *, limit_s: float = START_LIMIT_S) -> None:
        """Wait until nodes have given states. Raises: AssertionError."""
        deadline = time.monotonic() + limit_s
        while True:
            try:
                states = self.states()
            except AssertionError as error:
                states = {"sinfo": str(error)}
            if all(states.get(node) == state for node, state in wanted.items()):
                return
            assert time.monotonic() < deadline, f"wanted {wanted}, got {states}; {self.logs()}"
            time.sleep(POLL_S)

    def start_controller(self) -> None:
        """Start slurmctld, and wait until it answers."""
        self._start_daemon("slurmctld", HEAD, "slurmctld", "-D", "-f", self._conf)
        deadline = time.monotonic() + START_LIMIT_S
        while "is UP" not in self.run("scontrol", "ping", check=False):
            assert self._daemons["slurmctld"].poll() is None, self.logs()
            assert time.monotonic() < deadline, self.logs()
            time.sleep(POLL_S)

    def kill_controller(self) -> None:
        """Kill slurmctld with SIGKILL, once it has saved its present state."""
        known_at, deadline = time.time(), time.monotonic() + START_LIMIT_S
        self.run("scontrol", "reconfigure")  # slurmctld saves its state at once
        while not (self.folder / "state/job_state").exists() or self._saved_at() < known_at:
            assert time.monotonic() < deadline, self.logs()
            time.sleep(POLL_S)
        self._kill_daemon("slurmctld")

    def start_node_daemon(self, node: str) -> None:
        """Start slurmd on a node."""
        self._start_daemon(f"slurmd-{node}", node, "slurmd", "-D", "-f", self._conf, "-N", node)

    def power_off(self, node: str) -> None:
        """Kill every process of a node at once; network and mounts end too, and no connection is closed properly."""
        self.run("ip", "link", "delete", f"to-node-{NODES.index(node) + 1}")
        self._end_machine(node)
        _reap(self._daemons.pop(f"slurmd-{node}"))

    def power_on(self, node: str, *, until_idle: bool = True) -> None:
        """Start a node again; with `until_idle`, wait until Slurm reports it idle."""
        self._make_machine(node)
        self._wire_node(node)
        self.start_node_daemon(node)
        if until_idle:
            self.wait_for_states({node: "idle"})

    def freeze(self, node: str) -> None:
        """Stop every process of a node except the first: the node no longer answers."""
        self.run("bash", "-c", "kill -STOP -1", machine=node)

    def wake(self, node: str, *, slurm: bool) -> None:
        """Resume the frozen processes of a node.

        Args:
            node: a frozen node.
            slurm: True resumes Slurm's daemons, False all other processes.
        """
        for line in self.run("ps", "-eo", "pid=,args=", machine=node).splitlines():
            pid, _, command = line.strip().partition(" ")
            if pid != "1" and ("slurm" in command.partition(" ")[0]) == slurm:
                self.run("kill", "-CONT", pid, machine=node, check=False)  # the process may have ended
        if slurm:
            self._daemons[f"slurmd-{node}"].send_signal(signal.SIGCONT)  # nsenter was suspended together with its child

    def processes(self, node: str) -> list[str]:
        """Return the command lines of all processes of a node except its first process and slurmd."""
        lines = self.run("ps", "-eo", "pid=,args=", machine=node).splitlines()
        own = ("sleep 1000", "ps -eo", "slurmd -D", "bash /")
        return [line for line in lines if not any(text in line for text in own)]

    def read(self, node: str, path: Path | str) -> str:
        """Return the text of a file of a node; empty for a missing file."""
        return self.run("cat", str(path), machine=node, check=False)

    def logs(self) -> str:
        """Return the end of the controller's log."""
        path = self.folder / "log/slurmctld.log"
        return path.read_text(errors="replace")[-2000:] if path.exists() else "slurmctld has no log"

    def _saved_at(self) -> float:
        return (self.folder / "state/job_state").stat().st_mtime

    def _write_files(self) -> None:
        for name in ("etc", "state", "spool", "run", "log", "munge", "dev", "scratch", "bin"):
            (self.folder / name).mkdir()
        for name, text in (
            ("etc/slurm.conf", self._slurm_conf),
            ("etc/gres.conf", _GRES_CONF),
            ("hosts", _HOSTS),
            ("first.sh", _FIRST),
        ):
            (self.folder / name).write_text(text.replace("@FOLDER@", str(self.folder)))
        for name in ("nvidia0", "nvidia1"):
            os.mknod(self.folder / "dev" / name, 0o666 | stat.S_IFCHR, _ZERO_DEVICE)
        key = self.folder / "munge/key"
        key.write_bytes(os.urandom(64))
        key.chmod(0o400)

    def _make_machine(self, machine: str) -> None:
        ready = self.folder / f"run/{machine}.up"
        ready.unlink(missing_ok=True)
        flags = ("-numpf", "--kill-child=KILL", "--mount-proc", "--propagation=private")
        outer = subprocess.Popen(
            [
                "setpriv",
                "--pdeathsig=KILL",
                "unshare",
                *flags,
                "bash",
                str(self.folder / "first.sh"),
                machine,
                str(self.folder),
            ],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # unshare complains when its child is killed
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        )
        self._outer[machine] = outer
        deadline = time.monotonic() + START_LIMIT_S
        while not ready.exists():
            assert outer.poll() is None, f"{machine} ended with {outer.returncode}"
            assert time.monotonic() < deadline, f"{machine} was not made in {START_LIMIT_S} s"
            time.sleep(POLL_S / 10)
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        self._first[machine] = int(children[0])
        self._handles[machine] = os.pidfd_open(self._first[machine])
        wrapped = PROGRAMS if machine == HEAD else ()
        for program in wrapped:
            path = self.folder / "bin" / program
            line = " ".join(self.argv_on(machine, shutil.which(program) or program, '"$@"'))
            path.write_text(f"#!/bin/sh\nexec {line}\n")
            path.chmod(0o755)

    def _end_machine(self, machine: str) -> None:
        self._first.pop(machine, None)
        handle = self._handles.pop(machine, None)
        if handle is None:
            self._outer[machine].kill()  # the end of `unshare` kills its child
        else:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            select.select([handle], [], [], END_LIMIT_S)
            os.close(handle)
        _reap(self._outer.pop(machine))

    def _wire(self) -> None:
        self.run("ip", "link", "add", "br0", "type", "bridge")
        self.run("ip", "addr", "add", f"{HEAD_ADDRESS}/24", "dev", "br0")
        self.run("ip", "link", "set", "br0", "up")
        for node in NODES:
            self._wire_node(node)

    def _wire_node(self, node: str) -> None:
        number = NODES.index(node) + 1
        # The head's process namespace lacks the pids of nodes, so the link is made from outside that namespace.
        head = ["nsenter", f"--target={self._first[HEAD]}", "--net", "--"]
        link = ["ip", "link", "add", f"to-node-{number}", "type", "veth", "peer", "name", "eth0"]
        subprocess.run([*head, *link, "netns", str(self._first[node])], check=True, timeout=COMMAND_LIMIT_S)
        self.run("ip", "link", "set", f"to-node-{number}", "master", "br0", "up")
        self.run("ip", "addr", "add", f"10.88.0.{number}/24", "dev", "eth0", machine=node)
        self.run("ip", "link", "set", "eth0", "up", machine=node)

    def _start_munged(self) -> None:
        places = ("key-file=key", "pid-file=pid", "log-file=log", "seed-file=seed", "socket=munge.socket.2")
        options = [f"--{name}=/run/munge/{file}" for name, _, file in (place.partition("=") for place in places)]
        self._start_daemon("munged", HEAD, "munged", "--foreground", "--force", *options)
        deadline = time.monotonic() + START_LIMIT_S
        while not self.run("munge", "-n", check=False):
            assert self._daemons["munged"].poll() is None, "munged ended"
            assert time.monotonic() < deadline, "munged does not answer"
            time.sleep(POLL_S)

    def _start_daemon(self, name: str, machine: str, *command: str) -> None:
        with (self.folder / f"log/{name}.out").open("ab") as output:
            self._daemons[name] = subprocess.Popen(
                self.argv_on(machine, *command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
                start_new_session=True,
            )

    def _kill_daemon(self, name: str) -> None:
        process = self._daemons.pop(name)
        # nsenter has forked: the daemon is its child.
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
        _reap(process)


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process that has ended or will end soon; kill it at the deadline, and raise AssertionError."""
    try:
        process.wait(END_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(END_LIMIT_S)
        raise AssertionError(f"{process.args!r} had to be killed") from None
