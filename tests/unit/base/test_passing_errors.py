"""Errors of the machine that pass differ from errors that describe a file or a process."""

import errno

import pytest

from clary.base.errors import ContractError
from clary.base.passing_errors import is_passing


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EIO, errno.ENOMEM, errno.EINTR, errno.ESTALE])
def test_a_refusal_of_the_machine_passes(number):
    assert is_passing(OSError(number, "x"))


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ELOOP, errno.ESRCH])
def test_what_a_file_or_process_is_does_not_pass(number):
    assert not is_passing(OSError(number, "x"))
    assert not is_passing(ContractError("damaged"))
