"""The id of the machine's boot is never taken for missing because it cannot be read at the moment."""

import errno
from pathlib import Path

import pytest

from clary.base.clock import boot_id


@pytest.fixture(autouse=True)
def _uncached():
    boot_id.cache_clear()
    yield
    boot_id.cache_clear()


def fail_with(monkeypatch, number):
    def refuse(path, **_options):
        raise OSError(number, "no")

    monkeypatch.setattr(Path, "read_text", refuse)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_an_id_that_cannot_be_read_at_the_moment_is_an_error_and_is_read_again(monkeypatch, number):
    with monkeypatch.context() as patch:
        fail_with(patch, number)
        with pytest.raises(OSError, match="no"):
            boot_id()
    assert boot_id()


def test_a_kernel_without_an_id_gives_an_empty_one(monkeypatch):
    fail_with(monkeypatch, errno.ENOENT)
    assert boot_id() == ""
