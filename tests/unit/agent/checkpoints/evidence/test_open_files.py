"""Processes that hold a file for writing are named, and one with very many maps is searched in part."""

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

from clary.agent.checkpoints.evidence import open_files
from clary.agent.checkpoints.evidence.open_files import file_id, find_holders
from helpers.huge_areas import small_and_fast

# Arguments: the file; how it is held; a file with a long name that is mapped before, and how often.
_PROGRAM = """
import ctypes, fcntl, os, sys
path, how, long_path, num_maps = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
SHARED, READ, WRITE = 1, 1, 2
top = int(open("/proc/self/maps").readline().split("-")[0], 16) // 2  # far below all other maps
descriptor = os.open(path, os.O_RDWR)
if how in ("open", "locked"):
    for at in range(0, 20_000, 2) if how == "locked" else ():
        fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, at)
elif how == "mapped":
    libc.mmap(None, 4096, READ | WRITE, SHARED, descriptor, 0)
    os.close(descriptor)
else:
    os.close(descriptor)
    os.open(path, os.O_RDONLY)
if num_maps:
    many = os.open(long_path, os.O_RDONLY)
    for number in range(num_maps):
        assert libc.mmap(top - number * 8192, 4096, READ, SHARED, many, 0) not in (None, ctypes.c_void_p(-1).value)
print("holds", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(path, how, long_path="", num_maps=0):
    """Yield a process that holds a file."""
    command = [sys.executable, "-S", "-c", _PROGRAM, str(path), how, str(long_path), str(num_maps)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "holds\n"
        yield process
        process.kill()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 4096)
    return path


def holders_of(path, process):
    with path.open("rb") as opened:
        return [one.pid for found in find_holders([file_id(opened.fileno())], [process.pid]).values() for one in found]


@pytest.mark.parametrize(("how", "is_held"), [("open", True), ("mapped", True), ("locked", True), ("read", False)])
def test_a_process_holds_a_file_that_it_has_open_or_mapped_for_writing(file, how, is_held):
    with holder(file, how) as process:
        assert holders_of(file, process) == [process.pid] * is_held


def test_a_process_with_many_maps_of_long_names_is_searched_in_part(file, tmp_path):
    folder, name = tmp_path, "n" * 250
    while len(str(folder)) < 3600:
        folder /= name
    folder.mkdir(parents=True)
    long_path = folder / "long"
    long_path.write_bytes(b"x" * 4096)
    num_maps = 20_000
    assert num_maps * len(str(long_path)) > 2 * open_files.MAX_MAPS_BYTES
    with holder(file, "open", long_path, num_maps) as process, small_and_fast():
        assert holders_of(file, process) == [process.pid]
    assert os.path.exists(long_path)
