"""A real service whose hosts come from a real Slurm; modules say `pytest_plugins = ["slurm_service"]`.

The service runs on the cluster's head, and this process joins the head's network for as long as the module runs.
"""

import contextlib
import ctypes
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from boto3_clients import Clients
from running_service import TRAIN_PYTHON, start_service
from slurm_bed import HEAD, HEAD_ADDRESS, SlurmBed

TLS_PORT = 4571
_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)


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


@contextlib.contextmanager
def network_of(pid):
    """Let this thread and its children use the network of a process."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    other = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _join(other)
        yield
    finally:
        _join(own)
        os.close(own)
        os.close(other)


def _join(namespace):
    if _LIBC.setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


@pytest.fixture(scope="module")
def cluster():
    """A cluster with a service on its head, for a module."""
    folder = Path(tempfile.mkdtemp(prefix="clary-slurm-service-"))
    folder.chmod(0o755)
    bed = SlurmBed(folder)
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
            service = start_service(folder / "home", settings, CLARY_TLS_PORT=str(TLS_PORT), PATH=path)
            try:
                yield SlurmService(bed, service)
            finally:
                service.clary("down", check=False)
    finally:
        bed.stop()
        shutil.rmtree(folder, ignore_errors=True)
