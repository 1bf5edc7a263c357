"""The machine's process list and the tree below one process."""

import os
import subprocess

import pytest

from clary.contract.processes import live_descendants, parse_stat, read_process_list


@pytest.mark.parametrize("name", [b"sh", b"a b", b") R 1 (", b"((", b"x\n)"])
def test_command_names_of_any_form_do_not_shift_the_fields(name):
    fields = [b"S", b"41"] + [b"0"] * 17 + [b"987654"] + [b"0"] * 30
    entry = parse_stat(b"42 (" + name + b") " + b" ".join(fields) + b"\n")
    assert (entry.parent, entry.state, entry.started_at) == (41, "S", 987654)


@pytest.mark.parametrize(("flags", "is_exiting"), [(0x400000, False), (0x400004, True), (0x400200, True)])
def test_a_process_whose_end_has_begun_is_told_by_its_flags(flags, is_exiting):
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
