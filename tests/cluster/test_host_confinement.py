"""What the kernel refuses to programs of a host: system calls, keys, and everything of the machine's own users."""

import json
import os

import pytest
from host_world import DEADLINE_S, HostWorld, python

from clary.agent.host.call_filter import refused_calls
from clary.agent.host.support import supports
from clary.contract.launch_plan import Isolation

CALLS = """
import ctypes, errno, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
said = {}
for name, (number, *arguments) in json.loads(sys.argv[1]).items():
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(argument) for argument in arguments])
    if result == 0 and name in ("clone",):
        os._exit(0)
    said[name] = errno.errorcode.get(ctypes.get_errno(), "?") if result < 0 else "done"
print(json.dumps(said))
"""
NEW_USER_NAMESPACE = 0x10000000


@pytest.fixture(params=[pytest.param("root", marks=pytest.mark.root), "user"])
def world(request):
    if request.param == "root" and os.geteuid() != 0:
        pytest.skip("needs root")
    if reason := supports(Isolation.NAMESPACES):
        pytest.skip(reason)
    world = HostWorld(request.param)
    yield world
    world.close()


def outcome(world, script, *arguments, sandbox=None):
    """Run a script of Python in a host; returns what it printed, read as JSON."""
    spec = python(script)
    spec = type(spec)(**{**vars(spec), "argv": (*spec.argv, *arguments)})
    program, listener = world.start(spec, sandbox=sandbox)
    result = program.wait(DEADLINE_S)
    assert result is not None, listener.text()
    assert result.exits[0].exit_code == 0, listener.text()
    program.close()
    return json.loads(listener.text())


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers below are x86-64's")
def test_system_calls_that_containers_refuse_are_refused(world):
    calls = {name: [number, -1, 0, 0, 0, 0] for name, number in refused_calls("x86_64").items()}
    calls |= {"clone3": [435, 0, 0], "newer than the table": [471], "x32": [0x40000000 | 39]}
    calls |= {"unshare": [272, NEW_USER_NAMESPACE], "clone": [56, NEW_USER_NAMESPACE | 17, 0, 0, 0, 0]}
    calls |= {"vsock": [41, 40, 1, 0], "tcp": [41, 2, 1, 0], "unshare files": [272, 0x400], "getpid": [39]}
    said = outcome(world, CALLS, json.dumps(calls))
    allowed = {name: said.pop(name) for name in ("tcp", "unshare files", "getpid")}
    assert set(allowed.values()) == {"done"}
    missing = {name: said.pop(name) for name in ("clone3", "newer than the table", "x32")}
    assert set(missing.values()) == {"ENOSYS"}
    assert {name: word for name, word in said.items() if word != "EPERM"} == {}
    assert len(said) > 45


def test_programs_of_plain_python_go_on_under_the_filter(world):
    script = (
        "import json, multiprocessing, subprocess, threading\n"
        "box = []; thread = threading.Thread(target=lambda: box.append(1)); thread.start(); thread.join()\n"
        "process = multiprocessing.get_context('fork').Process(target=print, args=('',)); process.start()\n"
        "process.join(); said = subprocess.run(['uname'], capture_output=True, text=True).stdout.strip()\n"
        "print(json.dumps([box, process.exitcode, said]))"
    )
    assert outcome(world, script) == [[1], 0, "Linux"]
