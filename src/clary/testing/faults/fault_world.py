"""The service that faults strike: its state folder on small disks of its own, its process, its clients.

Where: `fault_runner` makes one. Processes are found as an administrator would find them: through the records in the
state folder and in /proc.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clary.base.errors import EngineError
from clary.base.processes import ProcessId, exec_deadline, read_arguments
from clary.control.engines.local.attempt_record import living_agents, living_anchor, pool_folder
from clary.control.settings import SETTINGS_FILE
from clary.testing.faults.fault_clients import FaultClients
from clary.testing.faults.fault_clock import FaultClock, find_compiler
from clary.testing.faults.fault_program import BUCKET, PROGRAM_KEY, program_text
from clary.testing.faults.fault_service import DOWN_TIMEOUT_S, FaultService

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
    """The faults that this machine allows, with the reasons why others are impossible."""

    has_disks: bool
    compiler: str  # path of a C compiler; empty if there is none
    missing: tuple[str, ...]


def find_abilities() -> Abilities:
    """Return the machine's abilities."""
    is_root = os.geteuid() == 0
    compiler = find_compiler() or ""
    missing = [] if is_root else ["disks are not filled: only root may mount small ones"]
    if not compiler:
        missing.append("clocks do not jump: there is no C compiler; apt-get install gcc")
    return Abilities(has_disks=is_root, compiler=compiler, missing=tuple(missing))


class FaultWorld:
    """A service in a state folder of its own.

    Args:
        folder: an empty folder, which will hold the state folder `home` and copies of files that the driver damages.
        abilities: abilities of the machine.
        python: interpreter of the training programs.
        database_url: empty for SQLite in the state folder.
    """

    def __init__(self, folder: Path, *, abilities: Abilities, python: str, database_url: str = "") -> None:
        self.run = secrets.token_hex(3)  # part of all job names, so that they differ from the names in other runs
        self.home = folder / "home"
        self.abilities = abilities
        self.database_url = database_url
        self.aside = folder / "aside"  # copies of files of the state folder, which are put back later
        self.service = FaultService(self.home, self._environment)
        self._folder = folder
        self._clock: FaultClock | None = None
        self._python = python
        self._clients = FaultClients(self.home, self.service.revive)
        self.client = self._clients.client
        self.ask = self._clients.ask
        self.own_page = self._clients.own_page
        self._mounts: list[Path] = []

    def open(self) -> None:
        """Mount the disks, start the service and store the jobs' inputs.

        Raises: NoAnswer with the end of the service's log.
        """
        self.home.mkdir(parents=True)
        self.aside.mkdir()
        if self.abilities.has_disks:
            self._mount(self.home, HOME_MIB)
            (self.home / "jobs").mkdir()
            self._mount(self.home / "jobs", HOSTS_MIB)
        (self.home / SETTINGS_FILE).write_text(SETTINGS.format(python=self._python))
        if self.abilities.compiler:
            self._clock = FaultClock(self._folder, self.abilities.compiler)
        self.service.start()
        body = program_text().encode()
        self.ask(lambda: self.client("s3").put_object(Bucket=BUCKET, Key=PROGRAM_KEY, Body=body))

    def close(self) -> None:
        """End the service and all processes that it started, and unmount the disks."""
        try:
            self.service.end()
            self._kill_what_is_left()
        finally:
            for mount in reversed(self._mounts):
                subprocess.run(["umount", "--lazy", str(mount)], check=True)
            self._mounts.clear()

    def _kill_what_is_left(self) -> None:
        """Kill the store, the agents and the networks that outlived the service."""
        left = [self.store_process()]
        for folder in (self.home / "jobs").glob("pool_*/*"):
            left.append(living_anchor(folder))
            with suppress(EngineError):
                left += living_agents(folder).values()
        for process in left:
            if process is not None:
                process.kill(timeout_s=DOWN_TIMEOUT_S)

    def service_port(self) -> int:
        """Port of the service that runs or that ran last."""
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

    def pool_folder(self, job_name: str) -> Path | None:
        """Return the folder of the pool that runs the attempt; None while no record names the pool."""
        try:
            return pool_folder(self.attempt_folder(job_name))
        except EngineError:
            return None

    def agents(self, job_name: str) -> dict[str, ProcessId]:
        """Return host name -> agent, of living agents."""
        folder = self.pool_folder(job_name)
        with suppress(EngineError):  # the agent's record is damaged
            return {} if folder is None else living_agents(folder)
        return {}

    def anchor(self, job_name: str) -> ProcessId | None:
        """The process that holds a job's network, if it lives."""
        folder = self.pool_folder(job_name)
        return None if folder is None else living_anchor(folder)

    def processes_of_jobs(self) -> dict[str, dict[int, str]]:
        """Return job name -> pid -> command line, for every process whose command line names a job of this run."""
        found: dict[str, dict[int, str]] = {}
        name = re.compile(rf"fault-\d+-{self.run}-\d{{5}}|tuned-\d+-{self.run}-\d+-\d{{3}}-[0-9a-f]{{8}}")
        deadline = exec_deadline()
        for path in Path("/proc").glob("[0-9]*"):
            command = " ".join(read_arguments(int(path.name), deadline))
            match = name.search(command)
            if match and int(path.name) != os.getpid():
                found.setdefault(match.group(), {})[int(path.name)] = command
        return found

    def programs(self, job_name: str) -> list[ProcessId]:
        """Return the living training programs of a job, identified by their command lines."""
        commands = self.processes_of_jobs().get(job_name, {})
        pids = [pid for pid, command in commands.items() if "program.py" in command]
        return [process for pid in sorted(pids) if (process := ProcessId.of(pid)) is not None]

    def set_clock(self, offset_s: float) -> None:
        """Set the offset of the service's and the agents' time of day from the machine's."""
        if self._clock is not None:
            self._clock.set_offset(offset_s)

    def _environment(self) -> dict[str, str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "CLARY_"))}
        environment |= {"CLARY_HOME": str(self.home), "CLARY_PORT": "0", "CLARY_TLS_PORT": "0"}
        if self.database_url:
            environment["CLARY_DATABASE_URL"] = self.database_url
        if self._clock is not None:
            environment |= self._clock.environment()
        return environment

    def _mount(self, folder: Path, size_mib: int) -> None:
        options = f"size={size_mib}m,mode=0700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "clary-faults", str(folder)], check=True)
        self._mounts.append(folder)
