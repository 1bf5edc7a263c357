"""The service that faults strike: its state folder on small disks of its own, its process, its clients.

Where: `fault_runner` makes one. Everything is found as an administrator would find it: by the records in the state
folder and by /proc. The service is started as `clary up` starts it, without the seconds that the command itself takes.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clary.contract.errors import ClaryError
from clary.contract.processes import ProcessId
from clary.control.settings import SETTINGS_FILE
from clary.control.state_folder import StateFolder
from clary.testing.fault_clients import FaultClients, NoAnswer
from clary.testing.fault_clock import FaultClock, find_compiler
from clary.testing.fault_program import BUCKET, PROGRAM_KEY, program_text

START_TIMEOUT_S = 90.0
DOWN_TIMEOUT_S = 90.0
HOME_MIB, HOSTS_MIB = 640, 256
SETTINGS = """
max_hosts = 10
memory_overcommit = 32.0
stop_grace_s = 5.0
internet = false
[images]
"team/bring-your-own:*" = "train"
[environments]
train = "{python}"
"""


@dataclass(frozen=True, kw_only=True)
class Abilities:
    """What this machine lets faults do, with the reason for what it does not."""

    has_disks: bool
    compiler: str  # path of a C compiler; empty without
    missing: tuple[str, ...]


def find_abilities() -> Abilities:
    """Look at the machine."""
    is_root = os.geteuid() == 0
    compiler = find_compiler() or ""
    missing = [] if is_root else ["disks are not filled: only root may mount small ones"]
    if not compiler:
        missing.append("clocks do not jump: there is no C compiler; apt-get install gcc")
    return Abilities(has_disks=is_root, compiler=compiler, missing=tuple(missing))


class FaultWorld:
    """A service in a state folder of its own.

    Args:
        folder: empty; holds the state folder `home` and what is told to the service from outside.
        abilities: of the machine.
        python: interpreter of the training programs.
        database_url: empty is SQLite in the state folder.
    """

    def __init__(self, folder: Path, *, abilities: Abilities, python: str, database_url: str = "") -> None:
        self.run = secrets.token_hex(3)  # in the names of all jobs, so that no other run's processes are taken for ours
        self.home = folder / "home"
        self.abilities = abilities
        self.database_url = database_url
        self.unexpected_ends: list[str] = []  # of the service, by itself
        self._folder = folder
        self._clock: FaultClock | None = None
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None
        self._is_expected_up = False
        self._lock = threading.Lock()
        self._clients = FaultClients(self.home, self.revive_service)
        self.client = self._clients.client
        self.ask = self._clients.ask
        self._mounts: list[Path] = []

    def open(self) -> None:
        """Mount the disks, start the service and store what jobs need.

        Raises: NoAnswer with the end of the service's log.
        """
        self.home.mkdir(parents=True)
        if self.abilities.has_disks:
            self._mount(self.home, HOME_MIB)
            (self.home / "jobs").mkdir()
            self._mount(self.home / "jobs", HOSTS_MIB)
        (self.home / SETTINGS_FILE).write_text(SETTINGS.format(python=self._python))
        if self.abilities.compiler:
            self._clock = FaultClock(self._folder, self.abilities.compiler)
        self.start_service()
        body = program_text().encode()
        self.ask(lambda: self.client("s3").put_object(Bucket=BUCKET, Key=PROGRAM_KEY, Body=body))

    def close(self) -> None:
        """End the service with everything that it started, and unmount the disks."""
        process, self._is_expected_up = self._process, False
        try:
            if process is not None and process.poll() is None:
                process.terminate()
                try:
                    process.wait(DOWN_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait(DOWN_TIMEOUT_S)
            self._kill_what_is_left()
        finally:
            for mount in reversed(self._mounts):
                subprocess.run(["umount", "--lazy", str(mount)], check=True)
            self._mounts.clear()

    def _kill_what_is_left(self) -> None:
        """End what a service that left in order would have ended: the store, agents, networks."""
        left = [self.store_process()]
        for folder in (self.home / "jobs").glob("*"):
            left += [*self.agents(folder.name).values(), self.anchor(folder.name)]
        for process in left:
            if process is not None:
                process.kill(timeout_s=DOWN_TIMEOUT_S)

    def start_service(self) -> None:
        """Start the service, unless it runs, and return when it answers.

        Raises: NoAnswer with the end of its log.
        """
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return
            folder = StateFolder(self.home)
            deadline = time.monotonic() + START_TIMEOUT_S
            while time.monotonic() < deadline:
                with folder.service_log.open("ab") as log:
                    self._process = subprocess.Popen(
                        [sys.executable, "-m", "clary.control.server"],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        env=self._environment(),
                        start_new_session=True,
                        cwd="/",
                    )
                if self._becomes_ready(folder, deadline):
                    self._is_expected_up = True
                    return
            raise NoAnswer(f"the service did not start within {START_TIMEOUT_S:g} s:\n{self.log_tail()}")

    def kill_service(self) -> ProcessId | None:
        """End the service as kill -9 does; return what was killed."""
        with self._lock:
            process = self.service_process()
            self._is_expected_up = False
            if self._process is not None:
                self._process.kill()
                self._process.wait()
            return process

    def revive_service(self) -> None:
        """Start the service again if it has ended by itself, and take note of that."""
        with self._lock:
            process = self._process
            has_ended = self._is_expected_up and process is not None and process.poll() is not None
            if has_ended and process is not None:
                self._is_expected_up = False
                self.unexpected_ends.append(f"the service ended by itself, {process.returncode}:\n{self.log_tail()}")
        if has_ended:
            self.start_service()

    def service_process(self) -> ProcessId | None:
        """The service, if it runs."""
        process = self._process
        return None if process is None or process.poll() is not None else ProcessId.of(process.pid)

    def service_port(self) -> int:
        """The port on which the service was last."""
        return int(self._clients.url().rpartition(":")[2])

    def store_record(self) -> Mapping[str, Any]:
        """Ports and process of the object store."""
        with suppress(OSError, ValueError):
            record = json.loads((self.home / "run" / "seaweed.json").read_text())
            if isinstance(record, dict):
                return record
        return {"ports": {}, "process": None}

    def store_process(self) -> ProcessId | None:
        """The object store, if it runs."""
        record = self.store_record()["process"]
        process = ProcessId(record["pid"], record["started"]) if record else None
        return process if process is not None and process.is_alive() else None

    def attempt_folder(self, job_name: str) -> Path:
        """The folder of a job's only attempt."""
        return self.home / "jobs" / job_name / "1"

    def agents(self, job_name: str) -> dict[str, ProcessId]:
        """Return host name -> agent, of those that live."""
        try:
            recorded = json.loads((self.attempt_folder(job_name) / "engine.json").read_text())["agents"]
        except (OSError, ValueError, KeyError):
            return {}
        agents = {host: ProcessId(item["pid"], item["started"]) for host, item in recorded.items()}
        return {host: agent for host, agent in agents.items() if agent.is_alive()}

    def anchor(self, job_name: str) -> ProcessId | None:
        """The process that holds a job's network, if it lives."""
        try:
            ready = json.loads((self.attempt_folder(job_name) / "network-ready.json").read_text())
            anchor = ProcessId(ready["pid"], ready["started"])
        except (OSError, ValueError, KeyError):
            return None
        return anchor if anchor.is_alive() else None

    def processes_of_jobs(self) -> dict[str, dict[int, str]]:
        """Return job name -> pid -> command line of every living process that names a job of this folder."""
        found: dict[str, dict[int, str]] = {}
        name = re.compile(rf"fault-\d+-{self.run}-\d{{5}}")
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                match = name.search(command)
                if match and int(path.name) != os.getpid():
                    found.setdefault(match.group(), {})[int(path.name)] = command.strip()
        return found

    def programs(self, job_name: str) -> list[ProcessId]:
        """Return the training programs of a job that live, as seen by their command lines."""
        commands = self.processes_of_jobs().get(job_name, {})
        pids = [pid for pid, command in commands.items() if "program.py" in command]
        return [process for pid in sorted(pids) if (process := ProcessId.of(pid)) is not None]

    def set_clock(self, offset_s: float) -> None:
        """Set the service's and the agents' time of day off the machine's."""
        if self._clock is not None:
            self._clock.set_offset(offset_s)

    def log_tail(self) -> str:
        """Return the end of the service's log."""
        with suppress(OSError):
            return "\n".join((self.home / "service.log").read_text(errors="replace").splitlines()[-25:])
        return "(no log)"

    def _environment(self) -> dict[str, str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "CLARY_"))}
        environment |= {"CLARY_HOME": str(self.home), "CLARY_PORT": "0", "CLARY_TLS_PORT": "0"}
        if self.database_url:
            environment["CLARY_DATABASE_URL"] = self.database_url
        if self._clock is not None:
            environment |= self._clock.environment()
        return environment

    def _becomes_ready(self, folder: StateFolder, deadline: float) -> bool:
        assert self._process is not None
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(OSError, ValueError, ClaryError):
                record = folder.read_service_record()
                if record is not None and record.pid == self._process.pid:
                    return True
            time.sleep(0.02)
        return False

    def _mount(self, folder: Path, size_mib: int) -> None:
        options = f"size={size_mib}m,mode=0700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "clary-faults", str(folder)], check=True)
        self._mounts.append(folder)
