"""`clary down`: its message about the service and its jobs once the service has ended."""

import fcntl
from types import SimpleNamespace

import pytest

from clary.cli import down
from clary.cli.main import main
from clary.control.server.succession import TURN
from clary.control.state_folder import StateFolder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder whose service ends as soon as it is told to."""
    monkeypatch.setenv("CLARY_HOME", str(tmp_path))
    folder = StateFolder(tmp_path)
    folder.create()
    process = SimpleNamespace(pid=1, terminate=lambda timeout_s: True)
    running = SimpleNamespace(folder=folder, record=SimpleNamespace(process=process))
    monkeypatch.setattr(down, "find_running", lambda _: running)
    return folder


def test_a_service_that_has_ended_with_its_jobs_is_down(folder, capsys):
    assert main(["down"]) == 0
    assert "jobs that ran are stopped" in capsys.readouterr().out


def test_jobs_that_run_on_are_told(folder, capsys):
    folder.service_record_path.write_text("{}")
    assert main(["down"]) == 1
    assert "jobs run on without it" in capsys.readouterr().err


@pytest.mark.parametrize("name", [TURN, "service.lock"])
def test_a_service_that_takes_the_place_meanwhile_is_told(folder, capsys, name):
    folder.service_record_path.write_text("{}")
    with (folder.root / "run" / name).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["down"]) == 1
    said = capsys.readouterr().err
    assert "takes its place, and jobs run on; run clary down again" in said
    assert "without it" not in said
