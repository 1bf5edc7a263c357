"""A service does not start with another engine while jobs hold hosts of the last engine."""

import pytest

from clary.base.errors import EngineError
from clary.control.server.host_source import require_same_engine
from clary.control.state_folder import StateFolder


@pytest.fixture
def folder(tmp_path):
    folder = StateFolder(tmp_path)
    folder.create()
    return folder


def test_the_engine_is_recorded_and_may_change_while_no_job_holds_hosts(folder):
    assert folder.read_engine() == "local"
    require_same_engine(folder, "slurm", [])
    assert folder.read_engine() == "slurm"
    require_same_engine(folder, "boxes", [])
    assert folder.read_engine() == "boxes"


def test_another_engine_is_refused_while_jobs_hold_hosts(folder):
    require_same_engine(folder, "slurm", [])
    require_same_engine(folder, "slurm", ["job-1"])
    with pytest.raises(EngineError, match=r"jobs hold hosts of engine slurm.*job-1, job-2.*clary up --engine slurm"):
        require_same_engine(folder, "local", ["job-1", "job-2"])
    assert folder.read_engine() == "slurm"


def test_a_folder_of_an_older_release_counts_as_engine_local(folder):
    require_same_engine(folder, "local", ["job-1"])
    (folder.root / "run" / "engine").unlink()
    with pytest.raises(EngineError, match="hosts of engine local"):
        require_same_engine(folder, "slurm", ["job-1"])
