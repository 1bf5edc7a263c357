"""The census finds real processes, memory, sockets and mounts that these tests make."""

import mmap
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from clary.base.processes import descendants_in, read_process_list
from clary.control.engines.local import machine_census
from clary.control.engines.local.leftover_things import Kind
from clary.testing import census

SLEEP = [sys.executable, "-S", "-c", "print('up', flush=True); import time; time.sleep(300)"]


@pytest.fixture
def child():
    with subprocess.Popen(SLEEP, stdout=subprocess.PIPE, env={**os.environ, "WHOSE": "this test's"}) as process:
        assert process.stdout.readline() == b"up\n"
        yield process
        process.kill()


def test_a_process_is_listed_with_its_command_and_a_zombie_with_its_parent(child):
    (alive,) = census.processes([child.pid])
    assert (alive.kind, alive.name) == (Kind.PROCESS, str(child.pid))
    assert "time.sleep(300)" in alive.detail
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    (dead,) = census.processes([child.pid])
    assert (dead.kind, dead.holder, dead.identity) == (Kind.ZOMBIE, os.getpid(), alive.identity)
    child.wait()
    assert census.processes([child.pid]) == []


def test_descendants_include_zombies_and_grandchildren(child):
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert child.pid in descendants_in(read_process_list(), [os.getppid()])


def test_environment_and_command_of_a_process_that_is_gone_are_empty(child):
    assert census.environment_of(child.pid)["WHOSE"] == "this test's"
    child.kill()
    child.wait()
    assert census.environment_of(child.pid) == {}
    assert census.command_text(child.pid) == ""


def test_processes_in_our_own_network_namespace_hold_none(child):
    assert census.held_namespaces([child.pid]) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes a network namespace")
def test_a_network_namespace_is_listed_with_a_process_that_holds_it():
    with subprocess.Popen(["unshare", "--net", *SLEEP], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"up\n"
        (namespace,) = census.held_namespaces([holder.pid])
        assert namespace.holder == holder.pid
        assert namespace.name == f"net:[{os.stat(f'/proc/{holder.pid}/ns/net').st_ino}]"
        assert namespace.removal == f"kill -9 {holder.pid}"
        holder.kill()


def test_paths_of_mounts_are_unescaped_and_two_mounts_at_one_path_are_listed():
    text = "22 1 0:21 / /a\\040b rw - tmpfs none rw\n23 1 0:22 / /a\\040b rw - ext4 /dev/x rw\n"
    found = census.mounts(text)
    assert [(thing.name, thing.detail) for thing in found] == [("/a b", "tmpfs"), ("/a b", "ext4")]
    assert found[0].key != found[1].key


def test_cgroups_of_the_family_are_found_at_any_depth_and_nothing_below_them(tmp_path):
    (tmp_path / "memory" / "own" / "clary" / "job-1-algo-1" / "inner").mkdir(parents=True)
    (tmp_path / "clary" / "job-2-algo-1").mkdir(parents=True)
    found = {thing.name for thing in census.cgroups("clary", top=str(tmp_path))}
    assert found == {f"{tmp_path}/memory/own/clary/job-1-algo-1", f"{tmp_path}/clary/job-2-algo-1"}


def test_shared_memory_is_listed_with_its_users_and_the_process_in_its_name(tmp_path):
    (tmp_path / "plain").write_bytes(b"x" * 10)
    (tmp_path / "torch_4711_123_0").touch()
    plain, named = machine_census.shared_memory(str(tmp_path))
    assert (plain.owner, plain.detail.split(",")[0]) == ("", "10 bytes")
    assert named.owner == "process 4711"
    assert machine_census.shared_memory_users([os.getpid()], str(tmp_path)) == {}
    with open(tmp_path / "plain", "r+b") as file, mmap.mmap(file.fileno(), 0):
        assert machine_census.shared_memory_users([os.getpid()], str(tmp_path)) == {plain.name: {os.getpid()}}


def test_a_segment_that_replaces_another_of_its_name_is_a_new_one(tmp_path):
    (tmp_path / "a").touch()
    before = machine_census.shared_memory(str(tmp_path))
    (tmp_path / "b").touch()
    (tmp_path / "b").replace(tmp_path / "a")
    assert machine_census.shared_memory(str(tmp_path))[0].key != before[0].key


def test_system_v_memory_is_listed_with_its_creator(tmp_path):
    header = "key shmid perms size cpid lpid nattch uid gid cuid cgid atime dtime ctime rss swap\n"
    (tmp_path / "shm").write_text(header + "0 5 1600 4096 77 0 0 0 0 0 0 0 0 1700000000 4096 0\n")
    (tmp_path / "sem").write_text(
        "key semid perms nsems uid gid cuid cgid otime ctime\n0 6 600 1 0 0 0 0 0 1700000001\n"
    )
    memory, semaphores = census.ipc_things(tmp_path)
    assert (memory.kind, memory.name, memory.owner) == (Kind.IPC_MEMORY, "5", "process 77")
    assert memory.detail == "4096 bytes, user root"
    assert (semaphores.kind, semaphores.name, semaphores.owner) == (Kind.IPC_SEMAPHORES, "6", "")


def test_a_socket_without_a_listener_is_dead(tmp_path):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        assert census.socket_paths([os.getpid()]) >= {path}
        assert machine_census.dead_sockets([path]) == []
    assert [thing.name for thing in machine_census.dead_sockets([path])] == [path]
    Path(path).unlink()
    Path(path).touch()  # not a socket
    assert machine_census.dead_sockets([path]) == []


def test_a_port_is_listed_with_its_listening_process():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert os.getpid() in machine_census.listening_ports([os.getpid()])[listener.getsockname()[1]]


def test_the_loopback_is_a_link_and_a_process_has_the_cgroups_of_its_parent(child):
    assert "lo" in {thing.name for thing in census.links()}
    own = {line.rpartition("/")[2] for line in Path("/proc/self/cgroup").read_text().splitlines()}
    assert census.cgroups_of(child.pid) == own
    assert census.cgroups_of(2**22 + 1) == set()
