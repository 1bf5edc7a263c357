"""Limits of the kernel on the user of the machine that owns hosts: programs of a host do not use them up.

The kernel counts what a user namespace uses for the namespace's owner, too: for root, or the service's user.
"""

import ctypes
import os
import resource
import signal
import subprocess
import sys
import traceback

import pytest
from host_world import DEADLINE_S, NOBODY, PYTHON, HostWorld, python

from clary.agent.host import init
from clary.control.engines.local.network import namespaces

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="makes namespaces as several users")]

PR_SET_DUMPABLE = 4

# Prints how many of each thing it gets, and holds them all.
GREEDY = """
import ctypes, os, resource, signal, sys
libc, most = ctypes.CDLL(None, use_errno=True), int(sys.argv[1]) if sys.argv[1:] else 1 << 20
for kind in (resource.RLIMIT_SIGPENDING, resource.RLIMIT_MSGQUEUE, resource.RLIMIT_NOFILE):
    resource.setrlimit(kind, (resource.getrlimit(kind)[1],) * 2)
class Value(ctypes.Union):
    _fields_ = [("number", ctypes.c_int), ("pointer", ctypes.c_void_p)]
def count(act):
    number = 0
    while number < most and act(number) >= 0:
        number += 1
    return number
signal.pthread_sigmask(signal.SIG_BLOCK, [40])
print("instances", count(lambda _: libc.inotify_init1(0)), flush=True)
print("signals", count(lambda _: libc.sigqueue(os.getpid(), 40, Value(number=1))), flush=True)
print("queues", count(lambda number: libc.mq_open(f"/clary-{os.getpid()}-{number}".encode(), 0o102, 0o600, None)))
print("held", flush=True)
"""


def kernel_number(name):
    with open(f"/proc/sys/{name}", encoding="ascii") as file:
        return int(file.read())


def counts(text):
    return {name: int(number) for name, number in (line.split() for line in text.splitlines() if " " in line)}


def what_root_gets():
    removal = "\nfor number in range(most):\n    libc.mq_unlink(f'/clary-{os.getpid()}-{number}'.encode())"
    command = [sys.executable, "-c", GREEDY + removal, "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE_S)
    return counts(done.stdout)


def test_a_greedy_program_of_a_root_service_leaves_root_what_it_needs():
    world = HostWorld("root")
    try:
        assert what_root_gets() == {"instances": 2, "signals": 2, "queues": 2}
        program, listener = world.start(python(GREEDY + "\nimport time; time.sleep(300)"))
        listener.wait_for("held")
        taken = counts(listener.text())
        assert what_root_gets() == {"instances": 2, "signals": 2, "queues": 2}, taken
        assert 16 <= taken["instances"] <= max(16, kernel_number("fs/inotify/max_user_instances") // 4)
        assert 0 < taken["signals"] <= resource.getrlimit(resource.RLIMIT_SIGPENDING)[0] // 4
        assert program.wait(0) is None
    finally:
        world.close()


@pytest.mark.parametrize("module", [init, namespaces], ids=["host", "anchor"])
def test_a_namespace_of_a_user_without_root_has_a_part_of_the_users_limits(module):
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(int(DEADLINE_S))
            os.setgroups(())
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1)  # as after exec: /proc/self belongs to this user
            before = resource.getrlimit(resource.RLIMIT_SIGPENDING)
            module.enter_own_user_namespace()
            assert resource.getrlimit(resource.RLIMIT_SIGPENDING) == before, "of this process, as before"
            os.dup2(writable, 1)
            os.execv(PYTHON, [PYTHON, "-c", GREEDY])
        except BaseException:  # noqa: BLE001 - printed by the child that ends here
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(writable)
    with open(readable, encoding="ascii") as file:
        taken = counts(file.read())
    assert os.waitpid(child, 0)[1] == 0
    assert taken["instances"] == max(16, kernel_number("fs/inotify/max_user_instances") // 4)
    assert taken["signals"] <= resource.getrlimit(resource.RLIMIT_SIGPENDING)[0] // 4
