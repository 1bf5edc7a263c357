"""Limits of the service's process: raised as far as it may, and named with the remedy if they are too low."""

import os
import resource
import subprocess
import sys

import pytest

from clary.control.process_limits import LEAST_CONNECTIONS, connections_within, low_limits

MIB = 1 << 20


def told_with(limits, *, act=""):
    """Return the result of `low_limits` in a process with these limits; a limit is soft, or soft and hard."""
    lines = [f"resource.setrlimit(resource.RLIMIT_{name}, {pair})" for name, pair in limits.items()]
    program = "\n".join(
        [
            "import resource",
            "from clary.control.process_limits import low_limits, raise_limits",
            *lines,
            act,
            "print(*low_limits(2048), sep='\\n')",
        ]
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return [line for line in run.stdout.splitlines() if line]


@pytest.mark.parametrize(
    ("name", "limit", "words"),
    [
        ("NOFILE", 256, "only 256 files may be open at once (ulimit -n), so the service takes 16 connections"),
        ("FSIZE", 20 * MIB, "no file may be larger than 20971520 bytes (ulimit -f)"),
        ("NPROC", 200, "this user may have 200 processes and threads (ulimit -u)"),
    ],
)
def test_a_low_limit_is_named_with_its_remedy(name, limit, words):
    (told,) = told_with({name: (limit, limit)})
    assert told.startswith(words)
    assert "clary up" in told


def test_a_limit_of_address_space_is_named():
    (told,) = told_with({"AS": (8192 * MIB, resource.RLIM_INFINITY)})
    assert "(ulimit -v)" in told


def test_soft_limits_are_raised_to_the_hard_ones():
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    printed = "raise_limits(); print(resource.getrlimit(resource.RLIMIT_FSIZE)[0])"
    told = told_with({"FSIZE": (20 * MIB, hard)}, act=printed)
    assert told[0] == str(hard)


def test_the_limits_of_a_service_that_has_ended_are_not_named():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert low_limits(2048, pid=process.pid) == []


def test_enough_open_files_allow_the_wanted_connections():
    assert connections_within(resource.RLIM_INFINITY, 2048) == 2048
    assert connections_within(2048 * 2 + 256, 2048) == 2048
    assert connections_within(256, 2048) == LEAST_CONNECTIONS
    assert low_limits(4, pid=os.getpid()) == []
