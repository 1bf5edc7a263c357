"""Processes of a job are found by their mark, also beside processes that show a huge environment."""

import errno
import subprocess

import pytest

from clary.base.processes import ProcessId
from clary.control.engines.local import killing
from helpers.huge_areas import huge, small_and_fast


def test_marked_processes_are_found_beside_a_stranger_with_a_huge_environment():
    with (
        huge("environ"),
        huge("cmdline"),
        subprocess.Popen(["cat"], stdin=subprocess.PIPE, env={"OF_A_TEST": "mark-of-killing"}) as ours,
    ):
        with small_and_fast():
            assert killing.with_variable("OF_A_TEST", "mark-of-killing") == [ProcessId.of(ours.pid)]
        ours.stdin.close()


def test_a_process_that_makes_its_environment_huge_is_still_found_by_the_mark_in_it():
    with huge("environ", keeps=True, env={"OF_A_TEST": "mark-of-a-hiding-process"}) as ours, small_and_fast():
        assert killing.with_variable("OF_A_TEST", "mark-of-a-hiding-process") == [ProcessId.of(ours.pid)]


@pytest.mark.parametrize("refused", ["folder", "file"])
def test_processes_of_a_cgroup_are_not_taken_for_ended_if_they_cannot_be_listed(tmp_path, monkeypatch, refused):
    assert killing.in_cgroups([str(tmp_path), str(tmp_path / "gone")]) == []

    def refuse(*_arguments, **_options):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        if refused == "folder":
            patch.setattr("os.scandir", refuse)
        else:
            patch.setattr("builtins.open", refuse)
        with pytest.raises(OSError, match="Too many open files"):
            killing.in_cgroups([str(tmp_path)])
