"""A program without a cgroup that exceeds its memory limit is ended by its agent, with one cause."""

import os
import resource
from pathlib import Path

import pytest
from host_world import DEADLINE_S, HostWorld, eventually, python, shell

from clary.agent.host import first_process
from clary.agent.host.host_command import run_in_host
from clary.agent.host.limits.cgroups import CgroupTree, HostCgroup
from clary.agent.host.limits.process_limits import process_limits
from clary.agent.metrics.memory_watch import watch_memory
from clary.agent.rules.rule_world import RulesHost
from clary.agent.supervisor.host_program import HostProgram
from clary.base.errors import Fault

MIB = 1024 * 1024
GROWING = """
import time
kept = []
while True:
    kept.append(bytearray(b"x" * (8 << 20))); time.sleep(0.005)
"""

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="namespaces of several users need root")]


class FakeMachineWithoutCgroups(CgroupTree):
    """Cgroups as seen by a user without rights to them: no hierarchy."""

    def mountinfo(self):
        return ""

    def membership(self):
        return ""


@pytest.fixture(params=["root", "user", "plain"])
def world(request, monkeypatch):
    create = HostCgroup.create
    monkeypatch.setattr(
        first_process.HostCgroup,
        "create",
        lambda name, resources: create(name, resources, tree=FakeMachineWithoutCgroups()),
    )
    world = HostWorld(request.param)
    yield world
    world.close()


def host_program(world, *processes, memory_bytes):
    sandbox = world.sandbox(memory_bytes=memory_bytes)
    program, listener = world.start(*processes, sandbox=sandbox)
    return listener, HostProgram(
        program,
        sandbox,
        num_processes=len(processes),
        places={},
        feeders=(),
    )


def test_a_program_without_a_cgroup_has_a_limit_on_its_number_of_processes(world):
    soft, hard = world.run("grep 'Max processes' /proc/self/limits").split()[2:4]
    if world.mode == "plain":
        assert (soft, hard) == tuple(Path("/proc/self/limits").read_text().split("Max processes")[1].split()[:2])
    else:
        own = resource.getrlimit(resource.RLIMIT_NPROC)[1]  # a program's limit stays below this one
        most = process_limits(CgroupTree().most_processes()).of_all
        assert soft == hard == str(most if own == resource.RLIM_INFINITY else min(own, most))


def test_program_without_a_cgroup_is_ended_at_its_memory_limit(world):
    _, program = host_program(world, python(GROWING), shell("exec sleep 60", rank=1), memory_bytes=150 * MIB)
    exits = [*program.wait_for_exits(DEADLINE_S)]
    while len(exits) < 2:
        exits += program.wait_for_exits(DEADLINE_S)
    assert all(end.is_consequence for end in exits)
    trouble = program.trouble()
    assert trouble.fault is Fault.ALGORITHM
    assert not trouble.retryable
    assert trouble.message.startswith("OutOfMemory: algo-1 used 0.")
    assert "its memory limit is 0.15 GiB" in trouble.message
    assert "(rank 0)" in trouble.message
    program.close()


def test_command_without_a_cgroup_is_ended_at_its_memory_limit(world):
    sandbox = world.sandbox(memory_bytes=150 * MIB)
    result = run_in_host(python(GROWING), sandbox, check=lambda: None, watch_memory=watch_memory)
    assert result.exit_code != 0
    assert result.starved.startswith("OutOfMemory: algo-1 used 0.")
    assert "its memory limit is 0.15 GiB" in result.starved
    assert "python" in result.starved


def test_command_without_a_cgroup_within_its_limit_is_left_alone(world):
    command = python("x = bytearray(b'x' * (40 << 20)); print(len(x))")
    result = run_in_host(command, world.sandbox(memory_bytes=150 * MIB), check=lambda: None, watch_memory=watch_memory)
    assert (result.exit_code, result.output.strip(), result.starved) == (0, str(40 << 20), "")


def test_rules_without_a_cgroup_are_ended_at_their_memory_limit(world):
    sandbox = world.sandbox(memory_bytes=150 * MIB)
    program, _ = world.start(python(GROWING), sandbox=sandbox)
    rules = RulesHost(program, sandbox)
    eventually(rules.exits)
    assert rules.out_of_memory().startswith("OutOfMemory: rules on algo-1 used 0.")
    rules.close()


def test_program_without_a_cgroup_within_its_limit_is_left_alone(world):
    _, program = host_program(world, python("x = bytearray(b'x' * (40 << 20))"), memory_bytes=150 * MIB)
    assert [end.exit_code for end in program.wait_for_exits(DEADLINE_S)] == [0]
    program.close()
    assert program.trouble() is None
    assert "The agent watches the host's processes instead" in " ".join(program.not_isolated)


@pytest.mark.parametrize("world", ["root", "user"], indirect=True)  # plain processes share the machine's /dev/shm
def test_files_in_a_hosts_own_shared_memory_count(world):
    script = "exec 2>&1; head -c 100M /dev/zero > /dev/shm/a; head -c 100M /dev/zero > /dev/shm/b; sleep 60"
    _, program = host_program(
        world,
        python("import time; x = bytearray(b'x' * (70 << 20)); time.sleep(60)"),
        shell(script, rank=1),
        memory_bytes=150 * MIB,
    )
    program.wait_for_exits(DEADLINE_S)
    assert program.trouble().message.startswith("OutOfMemory: algo-1 used 0.")
    assert "files in /dev/shm 0." in program.trouble().message
    program.close()
