"""Installing and probing, as far as they concern files only; test_boxes_over_ssh covers the rest over a real sshd."""

import errno
import fcntl
import json
import os
import shutil

import pytest

from clary.agent.node import installation, probing
from clary.agent.node.box_folder import BoxConfig, BoxFolder, write_json
from clary.agent.node.installation import InstallError, holder, install, installed, own_folder
from clary.agent.node.machine import machine_digest
from clary.agent.node.user_unit import unit_name
from clary.base.plain import to_plain
from clary.base.processes import ProcessId

WANTED = {"name": "box1", "url": "https://head:4571", "ca_pem": "new", "token": "t", "scratch": ""}


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("socket.gethostname", lambda: "box1/../x")
    return tmp_path


def installed_for(home, **changes):
    folder = BoxFolder(own_folder(""))
    folder.root.mkdir(parents=True)
    write_json(folder.config, to_plain(BoxConfig(**{"name": "box1", "url": "https://old:1", "machine": "m"} | changes)))
    folder.authority.write_text("old")
    return folder


def test_machines_that_share_a_home_have_separate_folders_in_it(home, monkeypatch):
    assert own_folder("") == home / ".clary-node" / "box1_.._x"
    monkeypatch.setattr("socket.gethostname", lambda: "box2")
    assert own_folder("") == home / ".clary-node" / "box2"
    digest = machine_digest()
    monkeypatch.setattr("socket.gethostname", lambda: "box3")
    assert machine_digest() != digest


@pytest.mark.parametrize("changes", [{"name": 7}, {"name": "../x"}, {"token": None}, {"scratch": []}])
def test_an_invalid_installation_request_is_refused(home, tmp_path, changes):
    with pytest.raises(InstallError, match="expected name, url, ca_pem, token and scratch as texts"):
        install({**WANTED, **changes}, tmp_path / "node.pyz")
    assert list(home.iterdir()) == []


def test_a_daemon_of_a_running_service_is_left_alone(home, tmp_path, monkeypatch):
    folder = installed_for(home)
    monkeypatch.setattr(installation, "why_no_service", lambda url, ca_pem: "")
    with pytest.raises(InstallError, match="this machine is box box1 of https://old:1, which answers; remove it there"):
        install(WANTED, tmp_path / "node.pyz")
    assert folder.authority.read_text() == "old"
    assert installed("").url == "https://old:1"


@pytest.fixture
def started(home, tmp_path, monkeypatch):
    """Replace the start of daemons; return the list of started daemons."""
    (tmp_path / "node.pyz").write_bytes(b"code")
    monkeypatch.setattr(installation, "why_no_service", lambda url, ca_pem: "no route")
    found = []
    monkeypatch.setattr(installation, "start_daemon", lambda *facts: found.append(facts))
    monkeypatch.setattr(installation, "_await_start", lambda folder: 7)
    monkeypatch.setattr(installation, "who_restarts", lambda: "nobody")
    return found


def test_a_daemon_of_a_service_that_is_gone_is_taken_over(home, tmp_path, started):
    folder = installed_for(home)
    done = install({**WANTED, "scratch": str(tmp_path / "data")}, tmp_path / "node.pyz")
    assert (done["pid"], done["restarts"]) == (7, "nobody")
    assert folder.authority.read_text() == "new"
    assert folder.token.stat().st_mode & 0o777 == 0o600
    assert folder.read_config().scratch == str(tmp_path / "data" / f"clary-node-{os.geteuid()}" / "box1_.._x")
    assert started == [(folder, folder.archive(done["daemon"]), "box1")]


def test_machines_that_share_a_scratch_folder_have_separate_folders_in_it(home, tmp_path, started, monkeypatch):
    found = []
    for name in ("box1", "box2"):
        monkeypatch.setattr("socket.gethostname", lambda name=name: name)
        install({**WANTED, "name": name, "scratch": str(tmp_path / "shared")}, tmp_path / "node.pyz")
        found.append(BoxFolder(own_folder("")).read_config().scratch)
    assert [place.rpartition("/")[2] for place in found] == ["box1", "box2"]


def test_a_repair_keeps_the_scratch_folder_and_knows_those_before(home, tmp_path, started):
    places = []
    for scratch in ("one", "", "two", "two", "one"):
        install({**WANTED, "scratch": scratch and str(tmp_path / scratch)}, tmp_path / "node.pyz")
        config = BoxFolder(own_folder("")).read_config()
        places.append((config.scratch, config.former_scratch))
    one, two = (str(tmp_path / name / f"clary-node-{os.geteuid()}" / "box1_.._x") for name in ("one", "two"))
    assert places == [(one, ()), (one, ()), (two, (one,)), (two, (one,)), (one, (two,))]


def test_an_installation_survives_the_removal_that_an_old_daemon_ends(home, tmp_path, started, monkeypatch):
    folder = installed_for(home)

    def end_the_removal(place):
        shutil.rmtree(place.root)

    monkeypatch.setattr(installation, "_stop", end_the_removal)
    done = install(WANTED, tmp_path / "node.pyz")
    assert folder.archive(done["daemon"]).read_bytes() == b"code"
    assert folder.read_config().name == "box1"


def test_a_daemon_goes_on_if_the_disk_has_no_room_for_the_new_one(home, tmp_path, started, monkeypatch):
    def refuse(path, content, **options):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    stopped = []
    installed_for(home)
    monkeypatch.setattr(installation, "replace_durably", refuse)
    monkeypatch.setattr(installation, "_stop", stopped.append)
    with pytest.raises(InstallError, match="No space left"):
        install(WANTED, tmp_path / "node.pyz")
    assert stopped == []


def test_the_running_daemon_is_found_by_its_lock(home):
    folder = installed_for(home)
    assert holder(folder) is None
    me = ProcessId.of(os.getpid())
    with folder.lock.open("w") as lock:
        assert holder(folder) is None
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert holder(folder) is None, "it has not said who it is yet"
        lock.write(json.dumps({"pid": me.pid, "started": me.started}))
        lock.flush()
        assert holder(folder) == me
        lock.seek(0)
        lock.truncate()
        lock.write(json.dumps({"pid": me.pid, "started": "1"}))
        lock.flush()
        assert holder(folder) is None


def test_units_are_named_after_boxes():
    assert unit_name("box1") == "clary-node-box1.service"


def test_folders_that_cannot_be_written_are_named(home, monkeypatch):
    assert probing._why_not_writable("") == ""
    assert probing._why_not_writable("/proc/nowhere").startswith("/proc/nowhere: ")
    monkeypatch.setattr(probing, "MIN_FREE_BYTES", 1 << 62)
    assert probing._why_not_writable("") == f"{home}: less than 1 GiB is free"


def test_a_probe_reports_all_requested_facts(home):
    found = probing.probe({"url": "http://head", "ca_pem": "", "scratch": ""})
    assert found["facts"]["num_cpus"] > 0
    assert found["why_no_service"] == "expected https://HOST:PORT, got 'http://head'"
    assert (found["why_no_folder"], found["box"], found["service"]) == ("", "", "")
    installed_for(home)
    assert probing.probe({})["box"] == "box1"
