"""Fixtures of modules that need a real Slurm; such a module says `pytest_plugins = ["slurm_fixtures"]`.

A module has one cluster. Each test leaves it as it was: no job, no process on a node, every node idle.
"""

import shutil
import tempfile
from pathlib import Path

import pytest
from slurm_world import SlurmWorld

from clary.testing.slurm_bed import SlurmBed


@pytest.fixture(scope="module")
def bed(leftover_owners):
    """A cluster for a module."""
    folder = Path(tempfile.mkdtemp(prefix="clary-slurm-bed-"))
    folder.chmod(0o755)
    bed = SlurmBed(folder)
    # Tests power nodes off and on, and restart daemons. Jobs that were left are found by `SlurmWorld.clear`.
    leftover_owners.excuse(folder.name, "machines and daemons of the cluster live as long as its fixture")
    try:
        bed.start()
        yield bed
    finally:
        bed.stop()
        leftover_owners.withdraw(folder.name)
        shutil.rmtree(folder)


@pytest.fixture
def world(bed, tmp_path):
    """The module's cluster with nothing on it; checked to be empty again in the end."""
    world = SlurmWorld(bed, tmp_path)
    yield world
    world.clear()
