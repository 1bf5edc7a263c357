"""A real service on the head of a real Slurm, for as long as a block lasts."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from boto3_clients import Clients
from running_service import TRAIN_PYTHON, start_service

from clary.testing.joined_network import network_of
from clary.testing.slurm_bed import HEAD, HEAD_ADDRESS, SlurmBed

TLS_PORT = 4571
SETTINGS = f"""
engine = "slurm"
advertise_url = "https://{HEAD_ADDRESS}:{TLS_PORT}"
stop_grace_s = 8.0
slurm = {{ "*" = {{ partition = "train", spot_partition = "spot" }} }}
images = {{ "team/bring-your-own:1" = "train" }}
environments = {{ train = "{TRAIN_PYTHON}" }}
"""


class SlurmService:
    """A cluster, the service on its head, and its clients."""

    def __init__(self, bed, service):
        self.bed = bed
        self.service = service
        self.aws = Clients(service)

    def queue(self):
        """Return the jobs in Slurm's queue that have not ended, as NUMBER STATE."""
        return self.bed.run("squeue", "--noheader", "--format=%A %T").splitlines()

    def processes(self):
        """Return the processes of jobs on all nodes."""
        return [process for node in self.bed.nodes for process in self.bed.processes(node)]


@contextlib.contextmanager
def slurm_service(owners, *, bed_options=None, settings=SETTINGS, variables=None):
    """Run a cluster with a service on its head; this thread joins the head's network until the block ends."""
    folder = Path(tempfile.mkdtemp(prefix="clary-slurm-service-"))
    folder.chmod(0o755)
    owners.excuse(str(folder), "daemons of a module's cluster: tests end some and start them again")
    bed = SlurmBed(folder, **(bed_options or {}))
    try:
        bed.start()
        with network_of(bed.first_process(HEAD)):
            path = f"{bed.environment['PATH']}:{os.environ['PATH']}"
            made = (variables or (lambda home: {}))(folder / "home")
            text = f'node_scratch = "{bed.scratch}"\n{settings}'
            service = start_service(folder / "home", text, CLARY_TLS_PORT=str(TLS_PORT), PATH=path, **made)
            try:
                yield SlurmService(bed, service)
            finally:
                service.clary("down", check=False)
    finally:
        bed.stop()
        owners.withdraw(str(folder))
        shutil.rmtree(folder, ignore_errors=True)
