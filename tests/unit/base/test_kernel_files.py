"""Files of the kernel are read up to a limit."""

import os

import pytest

from clary.base.kernel_files import lines_at_most, read_at_most


def test_a_file_is_read_up_to_the_limit_and_whole_below_it(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"x" * 200_000)
    assert read_at_most(str(file), 200_001) == b"x" * 200_000
    assert len(read_at_most(str(file), 150_000)) == 150_000
    assert read_at_most(str(file), 0) == b""


def test_lines_that_end_within_the_limit_are_yielded(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"one\ntwo\nlast")
    assert list(lines_at_most(str(file), 100)) == [b"one\n", b"two\n", b"last"]
    assert list(lines_at_most(str(file), 8)) == [b"one\n", b"two\n"]
    assert list(lines_at_most(str(file), 6)) == [b"one\n"]


def test_files_of_this_process_are_read():
    assert read_at_most(f"/proc/{os.getpid()}/comm", 100).endswith(b"\n")
    assert any(b"[stack]" in line for line in lines_at_most("/proc/self/maps", 1 << 20))


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_at_most(str(tmp_path / "file"), 1)
    with pytest.raises(FileNotFoundError):
        list(lines_at_most(str(tmp_path / "file"), 1))
