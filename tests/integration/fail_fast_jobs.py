"""Gangs to take members from: two hosts with two ranks each, every process of them known, deaths timed."""

import json
import time
from pathlib import Path

from program_jobs import script_request, start
from test_clients_boto3 import log_of, unique, wait

from clary.contract.launch_plan import Isolation
from clary.contract.processes import ProcessId, read_entry
from clary.control.engines.local import cleaning, killing
from clary.control.engines.local.agent_processes import MARK_VARIABLE

TERMINAL = ("Completed", "Failed", "Stopped")
NUM_HOSTS, RANKS_PER_HOST = 2, 2
INSTANCE_TYPE = "ml.two.ranks"
INSTANCE_SETTINGS = f'\n[instance_types."{INSTANCE_TYPE}"]\nprocesses = {RANKS_PER_HOST}\n'
DEADLINE_S = 60.0
POLL_S = 0.02
SCRIPT = """
import time
print("asleep", flush=True)
time.sleep(3600)
"""
DEAF_SCRIPT = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("asleep", flush=True)
time.sleep(3600)
"""


class Gang:
    """One running job and every process that it has."""

    def __init__(self, service, aws, label, *, script=SCRIPT, instance_type=INSTANCE_TYPE):
        self._aws = aws
        self.name = unique(label)
        request = script_request(
            aws,
            self.name,
            {"train.py": script},
            instance_count=NUM_HOSTS,
            hyperparameters={"sagemaker_torch_distributed_enabled": "true"},
        )
        request["ResourceConfig"]["InstanceType"] = instance_type
        start(aws, request)
        facts = wait(aws, self.name, until=("Training", *TERMINAL))
        assert facts["TrainingJobStatus"] == "InProgress", facts.get("FailureReason")
        self.folder = service.home / "jobs" / self.name / "1"
        self.ranks = self._wait_for_ranks()
        record = json.loads((self.folder / "engine.json").read_text())
        self.mark = record["mark"]
        self.processes = self._all_processes()
        self.cgroups_at_start = self.cgroups()

    def agent(self, host):
        """Return the agent of a host."""
        record = json.loads((self.folder / "engine.json").read_text())["agents"][host]
        return ProcessId(record["pid"], record["started"])

    def init(self, host):
        """Return the first process of a host: with it, the kernel ends every other one of the host."""
        for process in killing.descendants(self.agent(host)):
            ids = _status(process).get("NSpid", "").split()
            if len(ids) > 1 and ids[-1] == "1":
                return process
        raise AssertionError(f"{host} of {self.name} has no pid namespace")

    def cgroups(self):
        """Return the cgroups of the job's hosts that exist."""
        family = Path("/sys/fs/cgroup").rglob(f"{cleaning.CGROUP_FAMILY}/*")
        return [str(path) for path in family if self.name in path.name and path.is_dir()]

    def left(self):
        """Return what is there of the job's processes, zombies too, and of its mounts."""
        processes = [f"process {item.pid}" for item in self.processes if _is_in_proc(item)]
        marked = [f"process {item.pid}" for item in killing.with_variable(MARK_VARIABLE, self.mark)]
        return [*dict.fromkeys(processes + marked), *cleaning.mounts_below(self.folder)]

    def watch_the_end(self, died_at_s):
        """Return (seconds to terminal, seconds to all gone, what Describe says), both since `died_at_s`."""
        terminal_s = gone_s = None
        facts = {}
        while time.monotonic() < died_at_s + DEADLINE_S and (terminal_s is None or gone_s is None):
            if terminal_s is None:
                facts = self._aws.sagemaker.describe_training_job(TrainingJobName=self.name)
                if facts["TrainingJobStatus"] in TERMINAL:
                    terminal_s = time.monotonic() - died_at_s
            if gone_s is None and not self.left():
                gone_s = time.monotonic() - died_at_s
            time.sleep(POLL_S)
        assert terminal_s is not None, f"{self.name} is not terminal after {DEADLINE_S} s: {facts}"
        assert gone_s is not None, f"{self.name} has left {self.left()} {DEADLINE_S} s after a death"
        return terminal_s, gone_s, facts

    def _wait_for_ranks(self):
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            ranks = {host: self._ranks_of(host) for host in ("algo-1", "algo-2")}
            # Each says so when it has got as far as its sleep.
            is_complete = all(len(processes) == RANKS_PER_HOST for processes in ranks.values())
            if is_complete and log_of(self._aws, self.name).count("asleep") == NUM_HOSTS * RANKS_PER_HOST:
                return ranks
            time.sleep(5 * POLL_S)
        raise AssertionError(f"{self.name} never had {NUM_HOSTS} x {RANKS_PER_HOST} ranks: {ranks}")

    def _ranks_of(self, host):
        below = killing.descendants(self.agent(host))
        return [item for item in below if any(part.endswith("train.py") for part in killing.command_line(item))]

    def _all_processes(self):
        ready = json.loads((self.folder / "network-ready.json").read_text())
        anchor = ProcessId(ready["pid"], ready["started"])
        agents = [self.agent(host) for host in ("algo-1", "algo-2")]
        tops = [anchor, *agents]
        return [*tops, *(item for top in tops for item in killing.descendants(top))]


def isolation_of(service):
    """Return how the service keeps hosts apart."""
    return Isolation.NAMESPACES if "isolation: namespaces" in (service.home / "service.log").read_text() else None


def _status(process):
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _is_in_proc(process):
    """Whether the process is there, dead but not reaped included."""
    entry = read_entry(process.pid)  # unlike ProcessId, knows zombies
    return entry is not None and str(entry.started_at) == process.started
