"""A real service whose hosts come from a real Slurm; modules say `pytest_plugins = ["slurm_service"]`.

The service runs on the cluster's head, and this process joins the head's network for as long as the module runs. A
module may have `CLUSTER_BED`, arguments of the bed, and `SERVICE_VARIABLES`, a function of the service's home.
"""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from boto3_clients import Clients
from running_service import TRAIN_PYTHON, start_service

from clary.testing.joined_network import network_of
from clary.testing.slurm_bed import HEAD, HEAD_ADDRESS, SlurmBed

TLS_PORT = 4571


class SlurmService:
    """A cluster, the service on its head, and its clients."""

    def __init__(self, bed, service):
        self.bed = bed
        self.service = service
        self.aws = Clients(service)

    def queue(self):
        """Return the jobs that Slurm lists and that are not over, as NUMBER STATE."""
        return self.bed.run("squeue", "--noheader", "--format=%A %T").splitlines()

    def processes(self):
        """Return the processes of jobs on all nodes."""
        return [process for node in self.bed.nodes for process in self.bed.processes(node)]


@pytest.fixture(scope="module")
def cluster(request, leftover_owners):
    """A cluster with a service on its head, for a module."""
    folder = Path(tempfile.mkdtemp(prefix="clary-slurm-service-"))
    folder.chmod(0o755)
    leftover_owners.excuse(str(folder), "daemons of a module's cluster: tests end some and start them again")
    bed = SlurmBed(folder, **getattr(request.module, "CLUSTER_BED", {}))
    try:
        bed.start()
        with network_of(bed.first_process(HEAD)):
            settings = "\n".join(
                (
                    'engine = "slurm"',
                    f'advertise_url = "https://{HEAD_ADDRESS}:{TLS_PORT}"',
                    f'node_scratch = "{bed.scratch}"',
                    "stop_grace_s = 8.0",
                    'slurm = { "*" = { partition = "train", spot_partition = "spot" } }',
                    'images = { "team/bring-your-own:1" = "train" }',
                    f'environments = {{ train = "{TRAIN_PYTHON}" }}',
                )
            )
            path = f"{bed.environment['PATH']}:{os.environ['PATH']}"
            variables = getattr(request.module, "SERVICE_VARIABLES", lambda home: {})(folder / "home")
            service = start_service(folder / "home", settings, CLARY_TLS_PORT=str(TLS_PORT), PATH=path, **variables)
            try:
                yield SlurmService(bed, service)
            finally:
                service.clary("down", check=False)
    finally:
        bed.stop()
        leftover_owners.withdraw(str(folder))
        shutil.rmtree(folder, ignore_errors=True)
