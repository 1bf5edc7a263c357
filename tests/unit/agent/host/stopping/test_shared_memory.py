"""Shared memory of a plain program: recorded while the program runs, removed when no process uses it."""

import contextlib
import mmap
import os
import subprocess
import sys

import pytest

from clary.agent.host.stopping.shared_memory import ProgramMemory

HOLDER = """
import mmap, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.truncate(descriptor, 4096)
access = mmap.ACCESS_WRITE if sys.argv[2] == "write" else mmap.ACCESS_READ
memory = mmap.mmap(descriptor, 4096, access=access)
os.close(descriptor)
print("mapped", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def holder(path, how="write"):
    """Start a process that maps the segment until the block ends."""
    command = [sys.executable, "-S", "-c", HOLDER, str(path), how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"mapped\n"
        yield process


def test_a_segment_that_the_program_wrote_is_removed_after_its_end(tmp_path):
    memory = ProgramMemory(str(tmp_path), "/nonexistent")
    with holder(tmp_path / "psm_1") as process:
        memory.look([process.pid])
    assert memory.remove_unused() == [str(tmp_path / "psm_1")]
    assert not (tmp_path / "psm_1").exists()
    assert memory.remove_unused() == []


def test_a_segment_that_was_there_before_the_program_stays(tmp_path):
    (tmp_path / "dataset").touch()
    memory = ProgramMemory(str(tmp_path), "/nonexistent")
    with holder(tmp_path / "dataset") as process:
        memory.look([process.pid])
    assert memory.remove_unused() == []
    assert (tmp_path / "dataset").exists()


def test_a_segment_that_the_program_only_read_stays(tmp_path):
    memory = ProgramMemory(str(tmp_path), "/nonexistent")
    with holder(tmp_path / "dataset", "read") as process:
        memory.look([process.pid])
    assert memory.remove_unused() == []
    assert (tmp_path / "dataset").exists()


@pytest.mark.parametrize("way", ["mapped", "open"])
def test_a_segment_that_another_process_uses_stays(tmp_path, way):
    memory = ProgramMemory(str(tmp_path), "/nonexistent")
    with holder(tmp_path / "shared") as process, open(tmp_path / "shared", "r+b") as file:
        memory.look([process.pid])
        mapping = mmap.mmap(file.fileno(), 0) if way == "mapped" else contextlib.nullcontext()
        process.stdin.close()
        process.wait()
        with mapping:
            assert memory.remove_unused() == []
    assert (tmp_path / "shared").exists()


def test_a_segment_that_took_the_name_of_the_programs_own_stays(tmp_path):
    memory = ProgramMemory(str(tmp_path), "/nonexistent")
    with holder(tmp_path / "name") as process:
        memory.look([process.pid])
    (tmp_path / "other").touch()
    (tmp_path / "other").replace(tmp_path / "name")
    assert memory.remove_unused() == []
    assert (tmp_path / "name").exists()


MAKER = """
import ctypes, sys
print(ctypes.CDLL(None).shmget(0, 4096, 0o600 | 0o1000), flush=True)  # IPC_PRIVATE, IPC_CREAT
sys.stdin.read()
"""


@pytest.mark.skipif(not os.path.exists("/proc/sysvipc/shm"), reason="this kernel has no System V shared memory")
def test_a_system_v_segment_belongs_to_the_process_that_made_it(tmp_path):
    memory = ProgramMemory(str(tmp_path))
    command = [sys.executable, "-S", "-c", MAKER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        number = int(process.stdout.readline())
        memory.look([os.getpid()])
        assert memory.remove_unused() == [], "somebody else's"
        memory.look([process.pid])
    assert memory.remove_unused() == [str(number)]
    with open("/proc/sysvipc/shm") as table:
        assert all(int(row.split()[1]) != number for row in list(table)[1:])
