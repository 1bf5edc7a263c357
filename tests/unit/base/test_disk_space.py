"""Errors of full disks are translated; other errors pass unchanged."""

from __future__ import annotations

import errno
import os

import pytest

from clary.base.disk_space import disk_errors_named, free_bytes, require_space, where_full
from clary.base.errors import AgentError, Fault


def test_free_space_is_known_for_paths_that_do_not_exist_yet(tmp_path):
    assert free_bytes(tmp_path / "not/there/yet") > 0


def test_more_than_the_disk_holds_is_refused_with_both_numbers(tmp_path):
    with pytest.raises(AgentError, match=rf"{tmp_path}.*{1 << 60} bytes needed, \d+ bytes free") as caught:
        require_space(tmp_path, needed_bytes=1 << 60)
    assert caught.value.fault is Fault.USER
    assert caught.value.details["needed_bytes"] == 1 << 60
    require_space(tmp_path, needed_bytes=0)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_errors_of_full_disks_are_translated(tmp_path, number):
    with (
        pytest.raises(AgentError, match="unknown number of bytes needed"),
        disk_errors_named(tmp_path, needed_bytes=None),
    ):
        raise OSError(number, "full")


def test_other_errors_pass(tmp_path):
    with pytest.raises(PermissionError), disk_errors_named(tmp_path, needed_bytes=1):
        raise PermissionError(errno.EACCES, "no")


def test_a_message_of_a_full_disk_is_followed_by_the_place_and_the_machine(tmp_path):
    told = where_full("OSError: [Errno 28] No space left on device", tmp_path)
    assert told.startswith("OSError: [Errno 28] No space left on device (")
    assert f" bytes are free at {tmp_path} on {os.uname().nodename}; free space there)" in told
    assert where_full("OSError: [Errno 2] No such file", tmp_path) == "OSError: [Errno 2] No such file"


def test_a_limit_of_the_kernel_with_the_same_number_is_no_full_disk(tmp_path):
    told = "OSError: [Errno 28] unshare 0x10000000: No space left on device"  # over user.max_user_namespaces
    assert where_full(told, tmp_path) == told
