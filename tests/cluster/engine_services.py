"""A fixture with one service per engine; a module loads it by `pytest_plugins = ["engine_services"]`.

The fixture `engine` has the values local, slurm and boxes. Clients are this process and its children: the process joins
the network of the service's head for as long as the module's tests of one engine run.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

import box_heads
import pytest
import slurm_heads
from boto3_clients import Clients
from running_service import ROOT, TRAIN_PYTHON, RunningService, start_service

from needs import require

_SETTINGS = f"""
stop_grace_s = 8.0
default_python = "{TRAIN_PYTHON}"
images = {{ "team/bring-your-own:1" = "train" }}
environments = {{ train = "{TRAIN_PYTHON}" }}
"""
_BOXES = f"""
engine = "boxes"
advertise_url = "https://{box_heads.HEAD_ADDRESS}:{box_heads.PORT}"
{_SETTINGS}
"""
_LOCAL = f"""
max_hosts = 3
memory_overcommit = 32.0
visible_folders = "{ROOT / ".venvs"}"
{_SETTINGS}
"""


@dataclass
class EngineService:
    """A service, its clients, and facts about its engine."""

    name: str  # name of the engine
    service: RunningService
    aws: Clients
    num_hosts: int  # that the engine can run at a time
    host_timeout_s: float  # from a host's last message until it counts as lost
    kill_process: Callable[[int], object]  # takes a pid in the pid namespace of the service
    on_machines: Callable[[str], object]  # runs a shell command on each machine with hosts; $FOLDER: folder of hosts

    def kill_service(self):
        """Kill the service with SIGKILL, and start it again."""
        record = json.loads((self.service.home / "run" / "service.json").read_text())
        self.kill_process(record["pid"])
        time.sleep(0.5)
        self.service.clary("up")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            name,
            marks=[
                pytest.mark.xdist_group(f"engines-{name}"),
                pytest.mark.root,
                pytest.mark.skipif(os.geteuid() != 0, reason="machines of a cluster are namespaces: needs root"),
            ],
        )
        for name in ("local", "slurm", "boxes")
    ],
)
def engine(request, leftover_owners, tmp_path_factory):
    """A service on this engine, shared by a module's tests."""
    with {"local": _local, "slurm": _slurm, "boxes": _boxes}[request.param](leftover_owners, tmp_path_factory) as made:
        yield made


def _kill(pid):
    os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def _local(owners, folders):
    home = folders.mktemp("engine-local") / "home"
    service = start_service(home, _LOCAL)
    owners.excuse(str(home), "the service of a module lives as long as its tests")
    try:

        def on_machines(command):
            subprocess.run(["sh", "-ec", f'FOLDER="{home}/jobs"; {command}'], check=True, timeout=30)

        yield EngineService(
            "local",
            service,
            Clients(service),
            num_hosts=3,
            host_timeout_s=3.0,
            kill_process=_kill,
            on_machines=on_machines,
        )
    finally:
        service.clary("down", check=False)
        owners.withdraw(str(home))


@contextlib.contextmanager
def _slurm(owners, folders):
    del folders
    require("slurm")
    with slurm_heads.slurm_service(owners) as made:

        def on_machines(command):
            for node in made.bed.nodes:
                made.bed.run("sh", "-ec", f'FOLDER="{made.bed.scratch}"; {command}', machine=node)

        yield EngineService(
            "slurm",
            made.service,
            made.aws,
            num_hosts=3,
            host_timeout_s=15.0,
            kill_process=_kill,
            on_machines=on_machines,
        )


@contextlib.contextmanager
def _boxes(owners, folders):
    del folders
    with box_heads.box_service(owners, settings=_BOXES, num_boxes=3) as made:
        # Boxes are added as root, because other users of a box cannot read the folder of the jobs' interpreter.
        made.clary("hosts", "add", *(f"root@{box}" for box in made.bed.boxes))

        def kill(pid):
            made.bed.run(box_heads.HEAD, "kill", "-9", str(pid))

        def on_machines(command):
            for box in made.bed.boxes:
                folder = f"{made.bed.folder}/home/root/.clary-node/{box}/scratch"
                made.bed.run(box, "sh", "-ec", f'FOLDER="{folder}"; {command}')

        yield EngineService(
            "boxes", made, made.aws, num_hosts=3, host_timeout_s=15.0, kill_process=kill, on_machines=on_machines
        )
