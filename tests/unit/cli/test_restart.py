"""`clary restart`: refusals before the service ends, and the report afterwards."""

import json
from types import SimpleNamespace

import pytest

from clary.base.errors import ClaryError
from clary.base.processes import ProcessId
from clary.cli import restart
from clary.cli.main import main
from clary.control.kept_settings import keep_settings
from clary.control.settings import Settings
from clary.control.state_folder import StateFolder


class FakeConnection:
    """A running service with jobs that hold hosts."""

    hosts_of = ()  # jobs of which only the page of hosts tells

    def __init__(self, folder, *holders, pid=1):
        self.folder = folder
        self.settings = Settings(home=str(folder.root))
        process = ProcessId(pid, "0")
        self.record = SimpleNamespace(url="http://127.0.0.1:4570", pid=pid, version="0.2", process=process)
        self.holders = holders

    def get(self, page, query=None):
        if page == "state":
            return {"problems": []}
        if page == "hosts":
            return {"hosts": [{"job": name} for name in self.hosts_of]}
        jobs = [{"name": name} for name in self.holders] if query["state"] == "Running" else []
        return {"jobs": jobs, "next": None}

    def is_healthy(self):
        return True


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CLARY_HOME", str(tmp_path))
    monkeypatch.delenv("CLARY_ENGINE", raising=False)
    folder = StateFolder(tmp_path)
    folder.create()
    return folder


@pytest.fixture
def running(folder, monkeypatch):
    """Make a service run, with the given jobs; return the list of options with which a next one was started."""
    started = []

    def run(*holders, after=None, settings=None, is_supervised=False):
        keep_settings(folder, settings or Settings(home=str(folder.root)), is_supervised=is_supervised)
        monkeypatch.setattr(restart, "find_running", lambda _: FakeConnection(folder, *holders))

        def start(settings, folder, options, *more):
            started.append(more)
            return FakeConnection(folder, *(holders if after is None else after), pid=2)

        monkeypatch.setattr(restart, "start_service", start)
        return started

    return run


def test_the_next_service_takes_the_place_of_the_one_that_runs(running, folder, capsys):
    started = running("a", "b")
    (folder.root / "settings.toml").write_text("max_hosts = 9\n")
    assert main(["restart"]) == 0
    assert started == [("--succeed=1:0",)]
    said = capsys.readouterr().out
    assert "setting max_hosts (0 -> 9)" in said
    assert "2 jobs (a, b) go on" in said


def test_json_names_the_jobs_that_go_on_and_those_that_have_ended(running, capsys):
    running("a", "b", after=["b", "c"])
    assert main(["restart", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["go_on"], facts["ended"], facts["pid"], facts["changed"]) == (["b"], ["a"], 2, [])


def test_a_setting_that_has_to_stay_for_running_jobs_is_refused(running, folder, capsys):
    started = running("a")
    (folder.root / "settings.toml").write_text('isolation = "processes"\nmax_hosts = 3\n')
    assert main(["restart"]) == 2
    said = capsys.readouterr().err
    assert started == []
    assert "1 job (a) still has hosts" in said
    assert 'isolation ("auto" -> "processes"): the hosts of running jobs are isolated as it said' in said
    assert "CLARY_ISOLATION" in said
    assert "max_hosts" not in said


def test_hosts_of_a_job_between_two_attempts_and_of_warm_pools_count_too(running, folder, monkeypatch, capsys):
    started = running()
    monkeypatch.setattr(FakeConnection, "hosts_of", ("again", "again", "warm"))
    (folder.root / "settings.toml").write_text('isolation = "processes"\n')
    assert main(["restart"]) == 2
    assert started == []
    assert "2 jobs (again, warm) still have hosts" in capsys.readouterr().err


def test_the_same_setting_may_change_while_no_job_has_hosts(running, folder):
    started = running()
    (folder.root / "settings.toml").write_text('isolation = "processes"\n')
    assert main(["restart"]) == 0
    assert len(started) == 1


def test_settings_that_cannot_be_read_leave_the_service_alone(running, folder, capsys):
    started = running("a")
    (folder.root / "settings.toml").write_text('max_hosts = "many"\n')
    assert main(["restart"]) == 2
    assert started == []
    assert "max_hosts" in capsys.readouterr().err


def test_a_service_in_the_foreground_is_left_to_whoever_started_it(running, capsys):
    started = running(is_supervised=True)
    assert main(["restart"]) == 2
    assert started == []
    assert "kill -USR1 1" in capsys.readouterr().err


def test_without_a_service_the_command_says_how_to_start_one(folder, capsys):
    assert main(["restart"]) == 2
    assert "start one with: clary up" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("is_alive", "told"),
    [
        (True, "the service that ran before runs on, and nothing has changed"),
        (False, "no service runs now; 1 job (a) goes on without a service; mend the cause, and then run: clary up"),
    ],
)
def test_a_service_that_does_not_come_up_is_told_with_what_holds_then(running, monkeypatch, capsys, is_alive, told):
    running("a")

    def fail(*_):
        raise ClaryError("the service ended")

    monkeypatch.setattr(restart, "start_service", fail)
    monkeypatch.setattr(ProcessId, "is_alive", lambda _: is_alive)
    assert main(["restart"]) == 1
    said = capsys.readouterr().err
    assert "the service ended" in said
    assert told in said


def test_a_service_of_another_command_that_took_the_place_is_named(running, folder, monkeypatch, capsys):
    running("a")

    def fail(*_):
        raise ClaryError("another service takes its place already")

    monkeypatch.setattr(restart, "start_service", fail)
    monkeypatch.setattr(restart, "other_service", lambda settings, folder: FakeConnection(folder, pid=3))
    assert main(["restart"]) == 1
    said = capsys.readouterr().err
    assert "a service that another command has started takes its place at http://127.0.0.1:4570" in said
    assert "no service runs" not in said


def test_a_service_that_is_about_to_leave_does_not_count_as_running_on(running, monkeypatch, capsys):
    running("a")
    alive = iter([True, True])

    def fail(*_):
        raise ClaryError("the service ended")

    monkeypatch.setattr(restart, "start_service", fail)
    monkeypatch.setattr(ProcessId, "is_alive", lambda _: next(alive, False))
    monkeypatch.setattr(FakeConnection, "is_healthy", lambda _: False)
    assert main(["restart"]) == 1
    assert "no service runs now" in capsys.readouterr().err


def test_an_interrupted_command_says_what_runs(running, monkeypatch, capsys):
    running("a")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(restart, "start_service", interrupt)
    assert main(["restart"]) == 130
    assert "1 job (a) goes on without a service; run: clary up" in capsys.readouterr().err
