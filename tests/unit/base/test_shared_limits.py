"""Limits of a user namespace."""

from __future__ import annotations

import subprocess
import sys

import pytest

from clary.base import shared_limits


@pytest.fixture
def files(tmp_path, monkeypatch):
    machine, own = tmp_path / "machine", tmp_path / "own"
    monkeypatch.setattr(shared_limits, "_WATCHING", {str(machine): str(own)})
    return machine, own


@pytest.mark.parametrize(("most", "part"), [(128, 32), (40, 16), (8, 8), (2**31 - 1, 2**29 - 1)])
def test_a_namespace_gets_a_quarter_but_enough_for_a_few_programs(files, most, part):
    machine, own = files
    machine.write_text(f"{most}\n")
    shared_limits.enter_limited_users(lambda: None)
    assert own.read_text() == str(part)


def test_limits_that_cannot_be_read_or_written_stay(files):
    machine, own = files
    shared_limits.enter_limited_users(lambda: None)
    machine.write_text("many\n")
    shared_limits.enter_limited_users(lambda: None)
    machine.write_text("128\n")
    own.mkdir()
    shared_limits.enter_limited_users(lambda: None)


def test_nothing_is_imported_in_the_namespace_whose_user_may_not_read_the_interpreter_s_files(tmp_path):
    program = f"""
import sys
from clary.base import shared_limits
shared_limits._WATCHING = {{{str(tmp_path / "machine")!r}: {str(tmp_path / "own")!r}}}
before = set(sys.modules)
shared_limits.enter_limited_users(lambda: None)
assert set(sys.modules) == before, set(sys.modules) - before
"""
    (tmp_path / "machine").write_text("128\n")
    subprocess.run([sys.executable, "-S", "-c", program], check=True, env={"PYTHONPATH": ":".join(sys.path)})
    assert (tmp_path / "own").read_text() == "32"
