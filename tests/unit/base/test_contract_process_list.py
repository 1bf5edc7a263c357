"""The machine's process list, and the tree below one process."""

import os
import resource
import subprocess
import sys
import time

import pytest

from clary.base.processes import (
    has_variable,
    live_descendants,
    parse_stat,
    read_arguments,
    read_environment,
    read_process_list,
    read_variable,
)
from helpers.huge_areas import huge, small_and_fast


@pytest.mark.parametrize("name", [b"sh", b"a b", b") R 1 (", b"((", b"x\n)"])
def test_command_names_of_any_form_do_not_shift_the_fields(name):
    fields = [b"S", b"41"] + [b"0"] * 17 + [b"987654"] + [b"0"] * 30
    entry = parse_stat(b"42 (" + name + b") " + b" ".join(fields) + b"\n")
    assert (entry.parent, entry.state, entry.started_at) == (41, "S", 987654)


@pytest.mark.parametrize(("flags", "is_exiting"), [(0x400000, False), (0x400004, True), (0x400200, True)])
def test_an_exiting_process_is_recognised_by_its_flags(flags, is_exiting):
    fields = [b"R", b"41"] + [b"0"] * 4 + [str(flags).encode()] + [b"0"] * 12 + [b"987654"] + [b"0"] * 30
    assert parse_stat(b"42 (sh) " + b" ".join(fields) + b"\n").is_exiting is is_exiting


def test_own_entry_names_the_real_parent():
    assert read_process_list()[os.getpid()].parent == os.getppid()


def test_descendants_are_found_through_every_generation_and_zombies_are_not():
    script = "sh -c 'sleep 600 & echo $!; exec sleep 600' & echo $!; wait"
    shell = subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE, text=True)
    dead = subprocess.Popen(["/bin/true"])
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
    try:
        pids = {int(shell.stdout.readline()) for _ in range(2)}
        assert set(live_descendants(shell.pid)) == pids
        assert pids | {shell.pid} <= set(live_descendants(os.getpid()))
        assert read_process_list()[dead.pid].state == "Z"
        assert dead.pid not in live_descendants(os.getpid())
    finally:
        for pid in sorted(live_descendants(shell.pid), reverse=True):
            os.kill(pid, 9)
        shell.wait()
        shell.stdout.close()
        dead.wait()


def test_programs_that_were_just_started_have_their_arguments_and_variables():
    """The parent continues before exec has set them: without a wait, four of five reads found nothing here."""
    command = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()", "marked"]
    for _ in range(50):
        with subprocess.Popen(command, stdin=subprocess.PIPE, env={"OF_A_TEST": "yes"}) as process:
            assert read_arguments(process.pid) == command
            process.stdin.close()
        with subprocess.Popen(command, stdin=subprocess.PIPE, env={"OF_A_TEST": "yes"}) as process:
            assert has_variable(process.pid, "OF_A_TEST", "yes")
            process.stdin.close()


def test_a_scan_does_not_wait_for_processes_that_never_have_arguments():
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    before = time.monotonic()
    assert read_arguments(ended.pid) == []
    for pid, entry in read_process_list().items():
        if entry.is_kernel_thread:
            assert read_arguments(pid) == []
            assert read_environment(pid) == b""
    assert time.monotonic() - before < 0.5
    ended.wait()
    assert read_arguments(ended.pid) == []


def test_a_command_line_of_hundreds_of_megabytes_is_read_in_part():
    with huge("cmdline") as stranger, small_and_fast():
        assert set(read_arguments(stranger.pid)) == {""}


def test_the_beginning_of_a_huge_command_line_is_read():
    with huge("cmdline", keeps=True, words=["--host", "algo-1"]) as stranger, small_and_fast():
        assert [part for part in read_arguments(stranger.pid) if part][-2:] == ["--host", "algo-1"]


def test_an_environment_of_hundreds_of_megabytes_is_read_in_part():
    with huge("environ", keeps=True, env={"OF_A_TEST": "yes"}) as stranger, small_and_fast():
        assert has_variable(stranger.pid, "OF_A_TEST", "yes")
        assert read_variable(stranger.pid, "OF_A_TEST") == "yes"
        assert not has_variable(stranger.pid, "OF_A_TEST", "no")
        assert read_variable(stranger.pid, "OF_ANOTHER_TEST") is None


def test_the_last_variable_of_the_largest_environment_that_the_kernel_starts_is_found():
    """A process that changed nothing is found, also with the largest environment."""
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    if resource.getrlimit(resource.RLIMIT_STACK)[1] != resource.RLIM_INFINITY:
        pytest.skip("the limit of the stack, on which variables depend, cannot be raised here")
    piece = "x" * (128 * 1024 - 16)  # a variable has at most 128 KiB
    environment = {**{f"V{number:03}": piece for number in range(46)}, "OF_A_TEST": "yes"}  # 47 do not fit
    with subprocess.Popen(
        ["cat"],
        stdin=subprocess.PIPE,
        env=environment,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, unlimited),
    ) as process:
        assert has_variable(process.pid, "OF_A_TEST", "yes")
        assert len(read_environment(process.pid)) > 5.5 * 1024 * 1024
        process.stdin.close()


@pytest.mark.parametrize("environment", [{"OF_A_TEST": "yes!"}, {"NOT_OF_A_TEST": "yes"}, {"A": "OF_A_TEST=yes"}])
def test_a_variable_is_found_only_as_a_whole(environment):
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=environment) as process:
        assert not has_variable(process.pid, "OF_A_TEST", "yes")
        process.stdin.close()
