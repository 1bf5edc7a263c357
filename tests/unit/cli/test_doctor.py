"""Leftovers in the output of `clary doctor`, and files and processes that it does not report as leftovers."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from clary.base.errors import ClaryError, Fault
from clary.base.processes import ProcessId
from clary.cli import doctor
from clary.cli.main import main
from clary.control import full_disks
from clary.control.engines.local import attempt_leftovers, attempt_record, machine_census
from clary.control.engines.local.network.network_spec import RELEASED_FILE
from clary.control.objects import weed_process
from clary.control.objects.weed_process import PORT_NAMES, StoreRecord
from clary.control.state_folder import ServiceRecord, StateFolder

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(300)"]
PORTS = dict(zip(PORT_NAMES, range(10_001, 10_001 + len(PORT_NAMES)), strict=True))


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("CLARY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CLARY_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("CLARY_ISOLATION", "processes")
    folder = StateFolder(tmp_path / "state")
    folder.create()
    return folder


@pytest.fixture
def sockets(tmp_path, monkeypatch):
    monkeypatch.setattr(weed_process, "SOCKET_PREFIX", f"{tmp_path}/weed-")


def attempt(home, name, *, is_released=True, is_plain=True):
    folder = home.jobs / name / "1"
    (folder / "algo-1").mkdir(parents=True)
    record = attempt_record.create_record(folder)
    if is_plain:
        attempt_record.write_record(folder, replace(record, master_port=7777))
    if is_released:
        (folder / RELEASED_FILE).touch()
    return folder


def lines_of(capsys, label):
    return [line for line in capsys.readouterr().out.splitlines() if line[4:].startswith(label)]


def test_emulated_features_are_listed_and_present_features_are_not_missing(home, sockets, capsys):
    main(["doctor", "--json"])
    findings = json.loads(capsys.readouterr().out)
    emulated = [finding["text"] for finding in findings if finding["name"] == "emulated"]
    assert [text for text in emulated if "FastFile fetches whole objects" in text]
    assert not [finding for finding in findings if "tuning" in finding["text"]]


@pytest.fixture
def nodes(monkeypatch):
    """The capacity page of a service that runs with boxes; a test may change it."""
    page = {"engine": "boxes", "url": "https://head:4571", "kinds": [], "remarks": []}
    record = SimpleNamespace(url="http://127.0.0.1:1", pid=1, version="0", memory_limits="kept by boxes")
    state = {"problems": [], "facts": []}
    running = SimpleNamespace(is_healthy=lambda: True, record=record, get={"capacity": page, "state": state}.get)
    monkeypatch.setattr(doctor, "find_running", lambda settings: running)
    return page


def test_with_boxes_the_report_is_on_boxes_and_not_on_hosts_of_this_machine(home, sockets, capsys, nodes):
    assert main(["doctor"]) == 1
    told = capsys.readouterr().out
    assert "!!  boxes nodes  " in told
    assert "add machines with: clary hosts add USER@HOST" in told
    assert "hosts at once" not in told
    assert "hosts share this machine's CPUs" not in told
    assert "a host has the CPUs, memory and GPUs of its node" in told


def test_nodes_out_of_use_and_settings_without_nodes_are_in_the_report(home, sockets, capsys, nodes):
    kind = {"num_free": 1, "num_nodes": 2, "maps_to": "partition cpu", "out_of_use": "c2 is drained: fan"}
    nodes.update(engine="slurm", kinds=[kind], remarks=['[slurm."ml.b"] selects no node'])
    assert main(["doctor"]) == 1
    told = capsys.readouterr().out
    assert "1 of 2 free: partition cpu (c2 is drained: fan)" in told
    assert '!!  slurm nodes    [slurm."ml.b"] selects no node' in told


def test_an_object_store_without_a_service_is_left_behind_with_its_ports(home, sockets, capsys):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = ProcessId.of(os.getpid())
        StoreRecord(ports=PORTS, process=process).write(home.root / "run" / "seaweed.json")
        main(["doctor"])
        (line,) = lines_of(capsys, "left behind")
        assert line.startswith("!!")
        assert f"process {process.pid}, listens at" in line
        assert str(listener.getsockname()[1]) in line
        assert line.endswith(f"or end it: kill {process.pid}")


def test_the_object_store_of_a_service_that_runs_is_no_leftover(home, sockets, capsys):
    own = ProcessId.of(os.getpid())
    values = {"url": "http://127.0.0.1:9", "tls_url": "", "proxy_url": "", "region": "us-west-2", "version": "0"}
    values["memory_limits"] = "kept by somebody"
    home.load_secrets()
    home.write_service_record(ServiceRecord(pid=own.pid, process_started=own.started, **values))
    StoreRecord(ports=PORTS, process=own).write(home.root / "run" / "seaweed.json")
    main(["doctor"])
    output = capsys.readouterr().out
    assert "left behind" not in output
    assert "memory limits  kept by somebody" in output, "what the service found out, not what this command would"


def test_sockets_of_a_dead_store_are_listed_with_the_command_to_remove_them(home, sockets, capsys):
    StoreRecord(ports=PORTS, process=None).write(home.root / "run" / "seaweed.json")
    path = weed_process.socket_paths(PORTS)[0]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        main(["doctor"])
        assert lines_of(capsys, "left behind") == [], "somebody listens there"
    assert main(["doctor"]) == 1
    (line,) = lines_of(capsys, "left behind")
    assert f"socket {path}; remove it: rm {path}" in line


def test_a_folder_of_a_released_attempt_is_a_leftover_after_its_removal_ended(home):
    folder = attempt(home, "job-a")
    (folder / "algo-1" / "program-x").mkdir()
    (folder / "algo-1" / "agent.log").touch()
    assert attempt_leftovers.leftovers(home.jobs) == [], "it is being removed"
    os.utime(folder / RELEASED_FILE, (0, 0))
    place = folder / "algo-1" / "program-x"
    assert attempt_leftovers.leftovers(home.jobs) == [
        f"Job job-a, attempt 1 is released and its folder {place} is still there; remove it: rm -rf {place}"
    ]


def test_resources_of_a_running_job_are_no_leftovers(home):
    folder = attempt(home, "job-a", is_released=False)
    (folder / "algo-1" / "program-x").mkdir()
    mark = attempt_record.read_record(folder).mark
    with subprocess.Popen(SLEEP, env={**os.environ, "CLARY_ATTEMPT_MARK": mark}) as process:
        assert attempt_leftovers.leftovers(home.jobs) == []
        process.kill()


def test_another_services_job_of_the_same_name_is_not_ours(home, tmp_path):
    attempt(home, "job-a")
    other = StateFolder(tmp_path / "other")
    other.create()
    mark = attempt_record.read_record(attempt(other, "job-a")).mark
    with subprocess.Popen(SLEEP, env={**os.environ, "CLARY_ATTEMPT_MARK": mark}) as process:
        assert attempt_leftovers.leftovers(home.jobs) == []
        assert len(attempt_leftovers.leftovers(other.jobs)) == 1
        process.kill()


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """Make a folder that replaces the machine's /dev/shm."""
    folder = tmp_path / "shm"
    folder.mkdir()
    plain_users, plain_segments = machine_census.shared_memory_users, machine_census.shared_memory
    monkeypatch.setattr(machine_census, "shared_memory_users", lambda pids: plain_users(pids, str(folder)))
    monkeypatch.setattr(machine_census, "shared_memory", lambda: plain_segments(str(folder)))
    return folder


def test_unused_shared_memory_is_listed_with_the_plain_jobs_of_its_time(home, memory, capsys):
    folder = attempt(home, "job-a", is_released=False)
    (memory / "segment").write_bytes(b"x" * 100)
    assert attempt_leftovers.unclaimed_memory(home.jobs) == [], "the job runs"
    (folder / RELEASED_FILE).touch()
    main(["doctor"])
    (line,) = lines_of(capsys, "shared memory")
    assert line.startswith("ok")
    assert "was written while job-a ran as plain processes" in line
    assert line.endswith(f"rm {memory}/segment")


def test_shared_memory_of_an_earlier_attempt_is_listed(home, memory):
    folder = attempt(home, "job-a")
    now = time.time()
    os.utime(folder / attempt_record.RECORD_FILE, (now - 600, now - 600))
    os.utime(folder / RELEASED_FILE, (now - 300, now - 300))
    (folder.parent / "2").mkdir()
    segment = memory / "segment"
    segment.touch()
    os.utime(segment, (now - 400, now - 400))
    (sentence,) = attempt_leftovers.unclaimed_memory(home.jobs)
    assert "was written while job-a ran" in sentence


def test_shared_memory_in_use_or_of_other_times_or_isolated_jobs_is_not_listed(home, memory):
    attempt(home, "isolated", is_plain=False)
    segment = memory / "segment"
    segment.touch()
    assert attempt_leftovers.unclaimed_memory(home.jobs) == []
    attempt(home, "plain")
    with open(segment):
        assert attempt_leftovers.unclaimed_memory(home.jobs) == [], "somebody has it open"
    assert len(attempt_leftovers.unclaimed_memory(home.jobs)) == 1
    an_hour_ago = time.time() - 3600
    os.utime(segment, (an_hour_ago, an_hour_ago))
    assert attempt_leftovers.unclaimed_memory(home.jobs) == []


def test_an_object_store_that_does_not_answer_is_a_problem(home, sockets, capsys, monkeypatch, nodes):
    """A paused store still takes connections, so only its answer shows that it works."""
    nodes["engine"] = "local"
    monkeypatch.setattr(doctor, "STORE_LIMIT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        StoreRecord(ports={**PORTS, "s3": port}).write(home.root / "run" / "seaweed.json")
        assert main(["doctor"]) == 1
        assert f"does not answer at 127.0.0.1:{port} (timed out)" in "".join(lines_of(capsys, "object store"))

        def answer():
            connection, _ = silent.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

        silent.accept()[0].close()  # the connection of the first report
        thread = threading.Thread(target=answer)
        thread.start()
        main(["doctor"])
        thread.join()
        assert lines_of(capsys, "object store")[0].startswith("ok")


def test_a_service_whose_database_is_away_hides_no_other_finding(home, sockets, capsys, monkeypatch):
    def get(_name):
        raise ClaryError("ServiceUnavailable: cannot read from the database", fault=Fault.INFRASTRUCTURE)

    record = SimpleNamespace(url="http://127.0.0.1:1", pid=1, version="0", memory_limits="kept by the kernel")
    running = SimpleNamespace(is_healthy=lambda: True, record=record, get=get)
    monkeypatch.setattr(doctor, "find_running", lambda _: running)
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "!!  state          ServiceUnavailable: cannot read from the database" in said
    assert "emulated" in said


def test_a_disk_that_takes_no_writes_is_a_problem_even_if_much_is_free(home, sockets, capsys, monkeypatch):
    facts = SimpleNamespace(
        f_bavail=1 << 30, f_blocks=1 << 30, f_frsize=4096, f_files=0, f_favail=0, f_flag=os.ST_RDONLY
    )
    monkeypatch.setattr(full_disks.os, "statvfs", lambda _: facts)
    assert main(["doctor"]) == 1
    (line,) = lines_of(capsys, "disk")
    assert line.startswith("!!")
    assert f"the disk of {home.root} is mounted read-only" in line


def test_limits_of_the_machine_that_are_too_low_are_in_the_report(home, sockets, capsys, monkeypatch):
    monkeypatch.setattr(doctor, "low_limits", lambda num, *, pid: [f"only 256 files for {num} of process {pid}"])
    assert main(["doctor"]) == 1
    (line,) = lines_of(capsys, "limits")
    assert line.startswith("!!")
    assert line.endswith("only 256 files for 2048 of process 0")
