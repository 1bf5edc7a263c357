"""Fixtures for modules that need a real Slurm; a module loads them by `pytest_plugins = ["slurm_fixtures"]`.

The tests of a module share one cluster. Each test leaves it empty: no job, no process on a node, every node idle.
"""

import shutil
import tempfile
from pathlib import Path

import pytest
from slurm_world import SlurmWorld

from clary.testing.slurm_bed import SlurmBed


@pytest.fixture(scope="module")
def bed(leftover_owners):
    """A cluster, shared by a module's tests."""
    folder = Path(tempfile.mkdtemp(prefix="clary-slurm-bed-"))
    folder.chmod(0o755)
    bed = SlurmBed(folder)
    # Tests power nodes off and on, and restart daemons. `SlurmWorld.clear` finds jobs that a test has left.
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
    """The module's cluster, empty; after the test it is checked to be empty again."""
    world = SlurmWorld(bed, tmp_path)
    yield world
    world.clear()
