"""Errors of full disks are translated; other errors pass unchanged."""

from __future__ import annotations

import errno

import pytest

from clary.base.disk_space import disk_errors_named, free_bytes, require_space
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
