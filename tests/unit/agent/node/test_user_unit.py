"""The daemon's unit for a user's systemd, with fakes of systemctl and loginctl; no real systemd is started."""

import sys

import pytest

from clary.agent.node import user_unit
from clary.agent.node.box_folder import BoxFolder
from clary.agent.node.user_unit import BY_HAND, has_user_systemd, remove_unit, start_daemon, stop_unit, who_restarts


class FakeSystemd:
    """Fake programs that record their arguments and return configured answers."""

    def __init__(self, folder, monkeypatch):
        self.calls, self.answers, self.started = [], {}, []
        monkeypatch.setenv("HOME", str(folder))
        monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
        monkeypatch.setattr(user_unit.shutil, "which", lambda name: f"/usr/bin/{name}")
        monkeypatch.setattr(user_unit, "_run", self._run)
        monkeypatch.setattr(user_unit.subprocess, "Popen", lambda command, **options: self.started.append(command))
        self.unit = folder / ".config/systemd/user/clary-node-box1.service"

    def _run(self, *command):
        self.calls.append(" ".join(command))
        return next((answer for words, answer in self.answers.items() if words in self.calls[-1]), "")


@pytest.fixture
def systemd(tmp_path, monkeypatch):
    made = FakeSystemd(tmp_path, monkeypatch)
    made.answers = {"--property=Version": "252", "show-user": "yes"}
    return made


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "node 100%").mkdir()
    return BoxFolder(tmp_path / "node 100%")


def test_a_daemon_is_a_unit_where_the_user_has_a_systemd(systemd, folder):
    start_daemon(folder, folder.archive("d"), "box1")
    text = systemd.unit.read_text()
    place = str(folder.root).replace("%", "%%")
    assert f'ExecStart="{sys.executable}" -I -S "{place}/node-d.pyz" run "{place}"\n' in text
    assert "KillMode=process\n" in text, "leases outlive their daemon"
    assert "Restart=on-failure\n" in text, "a removed box leaves with 0"
    assert systemd.calls[1:] == [
        "systemctl --user daemon-reload",
        "systemctl --user enable clary-node-box1.service",
        "systemctl --user restart clary-node-box1.service",
    ]
    assert systemd.started == []


@pytest.mark.parametrize("answers", [{"--property=Version": None}, {"--property=Version": ""}])
def test_without_a_users_systemd_a_daemon_gets_a_session_of_its_own(systemd, folder, answers):
    systemd.answers = answers
    start_daemon(folder, folder.archive("d"), "box1")
    assert systemd.started == [[sys.executable, "-I", "-S", str(folder.archive("d")), "run", str(folder.root)]]
    assert not systemd.unit.exists()
    assert not has_user_systemd()
    assert who_restarts() == BY_HAND


def test_a_systemd_that_refuses_the_unit_is_no_error(systemd, folder):
    systemd.answers["restart"] = None
    start_daemon(folder, folder.archive("d"), "box1")
    assert len(systemd.started) == 1


def test_the_report_names_what_starts_the_daemon_after_a_reboot(systemd):
    assert who_restarts() == "systemd of the user, at every boot"
    systemd.answers["show-user"] = "no"
    assert who_restarts().endswith("at every boot after: loginctl enable-linger")


def test_an_existing_unit_is_stopped_and_removed(systemd, folder):
    stop_unit("box1")
    remove_unit("box1")
    assert systemd.calls == []
    start_daemon(folder, folder.archive("d"), "box1")
    stop_unit("box1")
    remove_unit("box1")
    assert systemd.calls[-3:] == [
        "systemctl --user stop clary-node-box1.service",
        "systemctl --user disable clary-node-box1.service",
        "systemctl --user daemon-reload",
    ]
    assert not systemd.unit.exists()
