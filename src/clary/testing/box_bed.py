"""Simulated machines in namespaces: a head for the service, and boxes, each with a real sshd.

Where: each test module for boxes makes a `BoxBed`, and so do the benchmark `cluster` and tools/record_boxes.py. Needs
root and Debian's openssh-server.

    head (10.99.0.254, bridge)     the service; `ssh box1` works there through the owner's own ssh configuration
    box1 .. boxN (10.99.0.I)       sshd; users root and ml, whose homes survive a power cut

Each machine is a network, hostname, mount and process namespace, whose first process is a shell; all its processes end
with that shell, as in a power cut. Machines share this machine's files, except homes, /tmp, /run, the lists of users
and hosts, and the id of the kernel's boot, which changes with each start.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

HEAD, HEAD_ADDRESS, PORT = "head", "10.99.0.254", 4571
USERS = {"root": (0, "root"), "ml": (5000, "ml")}
START_LIMIT_S = 30.0
END_LIMIT_S = 10.0
COMMAND_LIMIT_S = 60.0
POLL_S = 0.05
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

_SSHD = """
Port 22
HostKey @FOLDER@/keys/host
AuthorizedKeysFile @FOLDER@/keys/client.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
UsePAM no
StrictModes no
PidFile none
"""
_CLIENT = """
Host box*
    IdentityFile @FOLDER@/keys/client
    IdentitiesOnly yes
    UserKnownHostsFile @FOLDER@/keys/known
    StrictHostKeyChecking yes
    LogLevel ERROR
"""
_FIRST = """
name=$1 folder=$2
for file in passwd shadow hosts; do mount --bind "$folder/etc/$file" /etc/$file; done
mount --bind "$folder/boot-id/$name" /proc/sys/kernel/random/boot_id
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/sshd
mount -t tmpfs -o mode=1777,size=3g tmpfs /tmp
mount --bind "$folder/homes/$name" "$folder/home"
hostname "$name"
ip link set lo up
touch "$folder/up/$name"
while :; do sleep 1000 & wait $!; done
"""


class BoxBed:
    """A head and some boxes; call `start`, and finally `stop`, also after a failure.

    Args:
        folder: new, empty folder that every user can reach, not below /tmp.
        num_boxes: number of boxes.
    """

    def __init__(self, folder: Path, *, num_boxes: int = 2) -> None:
        self.folder = folder
        self.boxes = [f"box{number}" for number in range(1, num_boxes + 1)]
        self.home = folder / "service"  # state folder of the service
        self._outer: dict[str, subprocess.Popen[bytes]] = {}  # machine -> `unshare`, which ends with its child
        self._first: dict[str, int] = {}  # machine -> pid of its first process in this process's namespace
        self._handles: dict[str, int] = {}  # machine -> pidfd of that process

    def start(self) -> None:
        """Make the machines and start every sshd."""
        try:
            self._write_files()
            self._make_machine(HEAD)
            self.run(HEAD, "ip", "link", "add", "br0", "type", "bridge")
            self.run(HEAD, "ip", "addr", "add", f"{HEAD_ADDRESS}/24", "dev", "br0")
            self.run(HEAD, "ip", "link", "set", "br0", "up")
            for box in self.boxes:
                self.power_on(box)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every process of every machine; the kernel then removes namespaces, mounts and links."""
        for machine in list(self._outer):
            self.power_off(machine)

    def first_process(self, machine: str) -> int:
        """Return the pid of a machine's first process in this process's namespace."""
        return self._first[machine]

    def argv_on(self, machine: str, *command: str) -> list[str]:
        """Return the command line that runs a command on a machine."""
        target = f"--target={self._first[machine]}"
        return ["nsenter", target, "--net", "--uts", "--mount", "--pid", "--", *command]

    def run(
        self,
        machine: str,
        *command: str,
        check: bool = True,
        stdin: str = "",
        timeout_s: float = COMMAND_LIMIT_S,
        **variables: str,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a machine as root; return the completed process.

        Args:
            machine: head or a box.
            command: program and arguments.
            check: whether to raise if it fails.
            stdin: text for the command's standard input.
            timeout_s: seconds after which the command is killed.
            variables: environment variables besides PATH, HOME and LC_ALL.
        Raises: AssertionError with the output if the command fails and `check` is true.
        """
        done = subprocess.run(
            self.argv_on(machine, *command),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={"PATH": PATH, "LC_ALL": "C.UTF-8", "HOME": str(self.folder / "home/root"), **variables},
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{command} on {machine}: {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def clary(
        self, *arguments: str, check: bool = True, machine: str = HEAD, **variables: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a `clary` command on a machine, by default on the head; return the completed process.

        Args:
            arguments: arguments of the `clary` command.
            check: whether to raise if it fails.
            machine: head or a box.
            variables: environment variables; the values are text.
        """
        command = [sys.executable, "-m", "clary.cli.main", *arguments]
        return self.run(machine, *command, check=check, CLARY_HOME=str(self.home), **variables)

    def rows(self) -> dict[str, Any]:
        """Return name -> box, as printed by `clary hosts --json`."""
        return {box["name"]: box for box in json.loads(self.clary("hosts", "--json").stdout)["boxes"]}

    def power_off(self, machine: str) -> None:
        """Kill every process of a machine at once. Raises: AssertionError if the machine does not end."""
        self._first.pop(machine, None)
        handle = self._handles.pop(machine, None)
        if handle is None:
            self._outer[machine].kill()
        else:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            select.select([handle], [], [], END_LIMIT_S)
            os.close(handle)
        outer = self._outer.pop(machine)
        try:
            outer.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            outer.kill()
            outer.wait(END_LIMIT_S)
            raise AssertionError(f"{machine} does not end") from None

    def power_on(self, box: str) -> None:
        """Start a box and its sshd; its homes still contain the files of earlier starts."""
        self._make_machine(box)
        number = self.boxes.index(box) + 1
        head = ["nsenter", f"--target={self._first[HEAD]}", "--net", "--"]
        self.run(HEAD, "ip", "link", "del", f"p{number}", check=False)  # the kernel may still have the old link
        # The interface keeps its MAC address over a reboot, like a real machine's: other machines cache it.
        peer = ["peer", "name", "eth0", "address", f"02:00:00:00:00:{number:02x}", "netns", str(self._first[box])]
        link = ["ip", "link", "add", f"p{number}", "type", "veth", *peer]
        subprocess.run([*head, *link], check=True, timeout=COMMAND_LIMIT_S)
        self.run(HEAD, "ip", "link", "set", f"p{number}", "master", "br0", "up")
        self.run(box, "ip", "addr", "add", f"10.99.0.{number}/24", "dev", "eth0")
        self.run(box, "ip", "link", "set", "eth0", "up")
        self.run(box, "/usr/sbin/sshd", "-f", str(self.folder / "etc/sshd"), "-E", str(self.folder / f"log/{box}"))

    def plug(self, box: str, *, is_in: bool) -> None:
        """Pull a box's network cable, or put it in again."""
        number = self.boxes.index(box) + 1
        self.run(HEAD, "ip", "link", "set", f"p{number}", "up" if is_in else "down")

    def clear(self, box: str) -> list[str]:
        """Remove the processes and files that a test left on a box; return a list of them."""
        places = [place for user in USERS for place in self.home_of(box, user).iterdir()]
        left = [*self.processes(box).values(), *map(str, places)]
        if left:
            self.power_off(box)
            for place in places:
                shutil.rmtree(place) if place.is_dir() else place.unlink()
            self.power_on(box)
        return left

    def processes(self, machine: str) -> dict[int, str]:
        """Return pid (in the machine's namespace) -> command line of a machine's processes, without the bed's own."""
        lines = self.run(machine, "ps", "-eo", "pid=,stat=,args=").stdout.splitlines()
        found = {int(pid): args for pid, stat, args in (line.split(None, 2) for line in lines) if stat[0] != "Z"}
        own = ("sleep 1000", "ps -eo", "sshd: ", "/usr/sbin/sshd", "/first.sh ")
        return {pid: args for pid, args in found.items() if not any(text in args for text in own)}

    def home_of(self, machine: str, user: str) -> Path:
        """Return the path of a user's home on a machine, as this process sees it."""
        return self.folder / "homes" / machine / user

    def node_folder(self, box: str, user: str) -> Path:
        """Return the path of a box daemon's folder, as this process sees it."""
        return self.home_of(box, user) / ".clary-node" / box

    def _write_files(self) -> None:
        for name in ("etc", "keys", "up", "log", "home", "boot-id", "homes"):
            (self.folder / name).mkdir()
        home = self.folder / "home"
        users = {name: f"{name}:x:{uid}:{uid}::{home}/{name}:/bin/sh" for name, (uid, _) in USERS.items()}
        known = [line for line in Path("/etc/passwd").read_text().splitlines() if line.split(":")[0] not in users]
        (self.folder / "etc/passwd").write_text("\n".join([*users.values(), *known]) + "\n")
        (self.folder / "etc/shadow").write_text("".join(f"{name}:*:19000:0:99999:7:::\n" for name in USERS))
        names = {HEAD: HEAD_ADDRESS, **{box: f"10.99.0.{number + 1}" for number, box in enumerate(self.boxes)}}
        hosts = "".join(f"{address} {name}\n" for name, address in names.items())
        (self.folder / "etc/hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
        for key in ("host", "client"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / "keys" / key)]
            subprocess.run(command, check=True, timeout=COMMAND_LIMIT_S)
        public = (self.folder / "keys/host.pub").read_text()
        (self.folder / "keys/known").write_text("".join(f"{box} {public}" for box in self.boxes))
        (self.folder / "first.sh").write_text(_FIRST)
        (self.folder / "etc/sshd").write_text(_SSHD.replace("@FOLDER@", str(self.folder)))
        for machine in (HEAD, *self.boxes):
            for name, (uid, _) in USERS.items():
                place = self.home_of(machine, name)
                place.mkdir(parents=True)
                os.chown(place, uid, uid)
        ssh = self.home_of(HEAD, "root") / ".ssh"
        ssh.mkdir(mode=0o700)
        (ssh / "config").write_text(_CLIENT.replace("@FOLDER@", str(self.folder)))

    def _make_machine(self, machine: str) -> None:
        ready = self.folder / "up" / machine
        ready.unlink(missing_ok=True)
        (self.folder / "boot-id" / machine).write_text(f"{uuid.uuid4()}\n")
        flags = ("-numpf", "--kill-child=KILL", "--mount-proc", "--propagation=private")
        outer = subprocess.Popen(  # tests recognize it by the bed's folder in its command line
            ["unshare", *flags, "bash", str(self.folder / "first.sh"), machine, str(self.folder)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # unshare prints an error when its child is killed
            env={"PATH": PATH},
        )
        self._outer[machine] = outer
        deadline = time.monotonic() + START_LIMIT_S
        while not ready.exists():
            assert outer.poll() is None, f"{machine} ended with {outer.returncode}"
            assert time.monotonic() < deadline, f"{machine} was not made within {START_LIMIT_S} s"
            time.sleep(POLL_S / 10)
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        self._first[machine] = int(children[0])
        self._handles[machine] = os.pidfd_open(self._first[machine])
