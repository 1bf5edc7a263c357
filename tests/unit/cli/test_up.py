"""Problems that `clary up` reports: the same for a new and a running service, and in JSON."""

import argparse
import errno
import json
from types import SimpleNamespace

import pytest

from clary.base.errors import ClaryError
from clary.cli import up
from clary.cli.main import main
from clary.control.server.ownership import sole_owner
from clary.control.state_folder import StateFolder

RECORD = SimpleNamespace(url="http://127.0.0.1:1", tls_url="", pid=1, version="0", memory_limits="soft")


class FakeConnection:
    """A service that reports one problem."""

    record = RECORD

    def __init__(self, folder):
        self.folder = SimpleNamespace(root=folder)

    def get(self, page):
        return {"problems": ["a disk is full"]}

    def is_healthy(self):
        return True


@pytest.fixture
def say(tmp_path, monkeypatch, capsys):
    """Return a function that runs `clary up` on a machine without torch and returns its output."""
    monkeypatch.setenv("CLARY_HOME", str(tmp_path))
    monkeypatch.setattr(up, "why_default_fails", lambda settings, probe: "no torch; run: pip install torch")
    connection = FakeConnection(tmp_path)

    def say(*, is_running, is_json):
        monkeypatch.setattr(up, "find_running", lambda settings: connection if is_running else None)
        monkeypatch.setattr(up, "start_service", lambda settings, folder, options: connection)
        options = argparse.Namespace(foreground=False, json=is_json, new_database=False, new_keys=False, engine=None)
        assert up.run(options) == 0
        return capsys.readouterr().out

    return say


@pytest.mark.parametrize("is_running", [True, False])
def test_a_missing_torch_is_reported_each_time_with_the_command_to_install_it(say, is_running):
    text = say(is_running=is_running, is_json=False)
    told = "AWS's PyTorch images without an environment of their own are refused: no torch; run: pip install torch"
    assert f"  !!     {told}\n" in text
    assert "  note   a disk is full\n" in text
    facts = json.loads(say(is_running=is_running, is_json=True))
    assert facts["was_running"] is is_running
    assert facts["problems"] == [told, "a disk is full"]


@pytest.mark.parametrize(("engine", "told"), [("local", ""), ("boxes", "with engine local, not boxes")])
def test_up_with_another_engine_than_the_running_services_is_an_error(tmp_path, monkeypatch, engine, told):
    monkeypatch.setenv("CLARY_HOME", str(tmp_path))
    monkeypatch.setenv("CLARY_ENGINE", "local")  # variables that the command sets must not outlive the test
    monkeypatch.setattr(up, "why_default_fails", lambda settings, probe: "")
    monkeypatch.setattr(up, "find_running", lambda settings: FakeConnection(tmp_path))
    options = argparse.Namespace(foreground=False, json=False, new_database=False, new_keys=False, engine=engine)
    if not told:
        assert up.run(options) == 0
        return
    with pytest.raises(ClaryError, match=f"{told}; run: clary down"):
        up.run(options)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--new-keys", "with the keys that it has; run: clary down, and then: clary up --new-keys"),
        ("--new-database", "with the database that it has; run: clary down, and then: clary up --new-database"),
        (
            "--new-keys --new-database --engine boxes",
            "with engine local, not boxes, and with the database that it has, and with the keys that it has; "
            "run: clary down, and then: clary up --engine boxes --new-database --new-keys",
        ),
    ],
)
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_an_option_that_a_running_service_cannot_follow_is_an_error(
    tmp_path, monkeypatch, capsys, arguments, told, form
):
    monkeypatch.setenv("CLARY_HOME", str(tmp_path))
    monkeypatch.setenv("CLARY_ENGINE", "local")
    monkeypatch.setattr(up, "find_running", lambda settings: FakeConnection(tmp_path))
    assert main(["up", *arguments.split(), *form]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"clary: clary already runs at http://127.0.0.1:1 {told}\n"


def test_a_service_in_the_foreground_prints_no_json(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CLARY_HOME", str(tmp_path / "new"))
    monkeypatch.setattr(up.os, "execv", lambda *arguments: pytest.fail("it was started"))
    assert main(["up", "--foreground", "--json"]) == 2
    assert "--foreground" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("is_json", "told"), [(False, "clary already runs at http://127.0.0.1:1"), (True, "true")])
def test_up_is_content_with_a_service_that_another_command_has_started_meanwhile(
    tmp_path, monkeypatch, capsys, is_json, told
):
    """As after a `clary up` that was killed while its service started."""
    monkeypatch.setenv("CLARY_HOME", str(tmp_path))
    monkeypatch.setattr(up, "why_default_fails", lambda settings, probe: "")
    looks = iter([None, None, FakeConnection(tmp_path)])  # it is still starting when the own service has ended
    monkeypatch.setattr(up, "find_running", lambda settings: next(looks))

    def start(settings, folder, options):
        raise ClaryError("another service runs")

    monkeypatch.setattr(up, "start_service", start)
    options = argparse.Namespace(foreground=False, json=is_json, new_database=False, new_keys=False, engine=None)
    with sole_owner(StateFolder(tmp_path)):
        assert up.run(options) == 0
    found = capsys.readouterr().out
    assert (str(json.loads(found)["was_running"]).lower() if is_json else found).startswith(told)


def test_up_tells_why_the_service_ended_if_no_other_one_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("CLARY_HOME", str(tmp_path))
    monkeypatch.setattr(up, "find_running", lambda settings: None)
    monkeypatch.setattr(up, "OTHER_LIMIT_S", 0.2)

    def start(settings, folder, options):
        raise ClaryError("the service ended")

    monkeypatch.setattr(up, "start_service", start)
    options = argparse.Namespace(foreground=False, json=False, new_database=False, new_keys=False, engine=None)
    with pytest.raises(ClaryError, match="the service ended"):
        up.run(options)
    with sole_owner(StateFolder(tmp_path)), pytest.raises(ClaryError, match="the service ended"):
        up.run(options)  # the other one does not become ready


def test_up_tells_why_the_service_ended_if_the_lock_cannot_be_read(tmp_path, monkeypatch):
    def refuse(folder):
        raise OSError(errno.ENOLCK, "No locks available")

    def start(settings, folder, options):
        raise ClaryError("the service ended")

    monkeypatch.setenv("CLARY_HOME", str(tmp_path))
    monkeypatch.setattr(up, "find_running", lambda settings: None)
    monkeypatch.setattr(up, "is_owned", refuse)
    monkeypatch.setattr(up, "start_service", start)
    options = argparse.Namespace(foreground=False, json=False, new_database=False, new_keys=False, engine=None)
    with pytest.raises(ClaryError, match="the service ended"):
        up.run(options)
