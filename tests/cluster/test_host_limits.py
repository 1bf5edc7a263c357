"""Limits of a host on memory, processors and processes: enforced, counted, and removed with the host."""

import glob
import os
import signal

import pytest
from host_world import DEADLINE_S, HostWorld, python, shell

from clary.agent.host.limits.cgroups import CgroupTree, HostCgroup, find_place
from clary.base.errors import AgentError
from clary.contract.launch_plan import Isolation, Resources

MIB = 1024 * 1024

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="cgroups need root or a delegation"),
]


@pytest.fixture(autouse=True)
def _needs_cgroups():
    cgroup = HostCgroup.create("test-whether-possible", Resources(num_cpus=0.5, memory_bytes=64 * MIB))
    cgroup.remove()
    if cgroup.not_enforced:
        pytest.skip(" ".join(cgroup.not_enforced))


@pytest.fixture(params=["root", "user", "plain"])
def world(request):
    world = HostWorld(request.param)
    yield world
    world.close()


def test_memory_limit_kills_and_is_counted(world):
    sandbox = world.sandbox(memory_bytes=96 * MIB)
    program, _ = world.start(
        python("print('ok')"),
        python("x = bytearray(600 << 20)", rank=1),
        shell("exec sleep 1", rank=2),
        sandbox=sandbox,
    )
    result = program.wait(DEADLINE_S)
    assert [(end.exit_code, end.signal) for end in result.exits] == [(0, None), (None, signal.SIGKILL), (0, None)]
    assert result.oom_kills == 1
    assert 90 * MIB < result.peak_memory_bytes <= 97 * MIB
    assert program.first_failure().rank == 1


def test_a_program_within_its_limit_is_left_alone(world):
    program, _ = world.start(python("x = bytearray(40 << 20)"), sandbox=world.sandbox(memory_bytes=128 * MIB))
    result = program.wait(DEADLINE_S)
    assert (result.exits[0].exit_code, result.oom_kills) == (0, 0)
    assert result.peak_memory_bytes > 40 * MIB
    assert not [sentence for sentence in program.not_isolated if "imited" in sentence]


def test_shared_memory_counts_against_the_limit():
    world = HostWorld("root")
    try:
        program, listener = world.start(
            shell("head -c 500M /dev/zero > /dev/shm/x; echo ended"), sandbox=world.sandbox(memory_bytes=64 * MIB)
        )
        program.wait(DEADLINE_S)
        assert "No space left" in listener.text() or program.wait(0).oom_kills >= 1
    finally:
        world.close()


def test_processor_time_is_limited(world):
    script = """
import time
began_s = time.process_time()  # the interpreter's start took half a second of it where the processor is emulated
deadline = time.monotonic() + 1.0
while time.monotonic() < deadline:
    pass
print(time.process_time() - began_s)
"""
    program, listener = world.start(python(script), sandbox=world.sandbox(num_cpus=0.25))
    assert program.wait(DEADLINE_S).exits[0].exit_code == 0
    assert float(listener.text()) < 0.6


def test_programs_see_their_own_limit():
    world = HostWorld("root")
    try:
        output = world.run(
            "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null; "
            "echo 1 > /sys/fs/cgroup/memory/memory.limit_in_bytes; grep -c test- /proc/self/cgroup",
            sandbox=world.sandbox(memory_bytes=256 * MIB),
        )
        assert output.split()[0] == str(256 * MIB)
        assert output.split()[-1] == "0"
    finally:
        world.close()


def test_cgroups_are_gone_after_close(world):
    sandbox = world.sandbox(memory_bytes=64 * MIB, num_cpus=0.5)
    program, _ = world.start(shell("(setsid sleep 600 &); exec sleep 600"), sandbox=sandbox)
    place = find_place("memory", mountinfo=CgroupTree().mountinfo(), membership=CgroupTree().membership())
    assert glob.glob(f"{place.own}/clary/{sandbox.cgroup_name}")
    program.close()
    assert glob.glob(f"/sys/fs/cgroup/**/{sandbox.cgroup_name}", recursive=True) == []


def test_cgroup_left_by_a_dead_agent_is_taken_over():
    resources = Resources(num_cpus=1, memory_bytes=64 * MIB)
    left = HostCgroup.create("test-left-behind", resources)
    again = HostCgroup.create("test-left-behind", resources)
    assert again.not_enforced == ()
    assert again.remove() is None
    assert left.remove() is None


def test_cgroup_that_is_in_use_is_not_taken_over():
    world = HostWorld("plain")
    try:
        sandbox = world.sandbox()
        world.start(shell("exec sleep 600"), sandbox=sandbox)
        with pytest.raises(AgentError, match="holds processes already"):
            world.start(shell("exec sleep 600"), sandbox=sandbox)
        assert world.isolation is Isolation.PROCESSES
    finally:
        world.close()
