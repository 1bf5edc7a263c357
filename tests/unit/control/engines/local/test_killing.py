"""Processes of a job are found by their mark, also beside processes that show a huge environment."""

import subprocess

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
