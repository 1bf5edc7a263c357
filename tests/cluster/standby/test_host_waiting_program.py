"""Programs that wait in a standby host until they may begin: as root, in a user namespace and as plain processes."""

import os
import pickle
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from host_world import DEADLINE_S, Listener, eventually, pids_with
from host_worlds import EVERY_MODE, world_of
from standby_world import IS_FORKED, PRELOADED, StandbyWorld, finished

from clary.base.processes import live_descendants

world = world_of(EVERY_MODE, lambda mode: StandbyWorld(mode))


class Ready:
    """A program of two ranks that waits, and its facts."""

    def __init__(self, world, *, script=IS_FORKED, ahead=2, forks=True):
        self.marker = f"missing_{uuid.uuid4().hex}"
        self.sandbox = world.sandbox()
        self.standby = world.prepare(self.sandbox, preload=(PRELOADED, self.marker), ahead=ahead)
        variables = {} if forks else {"OMP_NUM_THREADS": "3"}  # read at the start of an interpreter
        touches = f"open('ran', 'w').close()\n{script}"
        self.ranks = [world.rank(self.sandbox, touches, rank=rank, **variables) for rank in range(2)]
        self.listener = Listener()
        self.program = self.standby.make_ready(self.ranks, waits=True, on_output=self.listener)
        world._programs.append(self.program)
        if forks:
            # The interpreter that forked the ranks has ended, and they are at their gate.
            eventually(lambda: len(self.pids) == 2)

    @property
    def has_run(self):
        return (Path(self.sandbox.ml_folder) / "ran").exists()

    @property
    def pids(self):
        """Interpreters that stand ready, and ranks; a rank in a user namespace cannot show its own command line."""
        names = (self.marker, *(rank.argv[2] for rank in self.ranks))
        return sorted({pid for name in names for pid in pids_with(name)})


@pytest.mark.parametrize("ahead", [2, 1, 0])
def test_ranks_wait_at_their_gate_until_the_program_begins(world, ahead):
    ready = Ready(world, ahead=ahead)
    assert not ready.has_run
    assert ready.listener.text() == ""
    program = ready.program.begin()
    assert finished(program, ready.listener) == ([(0, None)] * 2, "forked\n")
    assert ready.has_run
    assert program.num_forked == 2


def test_processes_that_cannot_be_forked_start_only_when_the_program_begins(world):
    ready = Ready(world, forks=False)
    assert not pids_with(ready.ranks[0].argv[2])
    assert finished(ready.program.begin(), ready.listener) == ([(0, None)] * 2, "executed\n")


def test_a_program_that_is_given_up_has_no_effect_and_leaves_no_process(world):
    ready = Ready(world)
    ready.program.close()
    eventually(lambda: not ready.pids)
    assert not ready.has_run
    assert os.listdir(ready.sandbox.host_folder) == []
    ready.program.close()


def test_a_rank_that_was_killed_while_it_waited_ends_the_program_as_its_own_failure(world):
    ready = Ready(world, script="import time; time.sleep(0.2)")
    victim, other = ready.pids
    os.kill(victim, signal.SIGKILL)
    program = ready.program.begin()
    exits, _ = finished(program, ready.listener)
    assert sorted(exits, key=str) == [(0, None), (None, signal.SIGKILL)]
    assert other in [end.pid for end in program.exits()]


def test_ranks_that_a_signal_from_outside_has_ended_while_they_waited_did_not_fail(world):
    ready = Ready(world)
    init = ready.program._program.init_pid
    for pid in {init, *live_descendants(init)}:
        os.kill(pid, signal.SIGTERM)
    program = ready.program.begin()
    eventually(lambda: program.was_signalled)
    exits = program.wait(DEADLINE_S).exits
    assert [(end.signal, end.is_consequence) for end in exits] == [(signal.SIGTERM, True)] * 2
    assert program.first_failure() is None
    assert not ready.has_run


def test_the_processes_start_in_a_new_host_if_the_waiting_one_has_ended(world):
    ready = Ready(world)
    ready.program._program._first_process.end()
    program = ready.program.begin()
    world._programs.append(program)
    assert finished(program, ready.listener) == ([(0, None)] * 2, "executed\n")


def test_a_program_that_waits_ends_with_its_agent(world):
    if world.mode == "user" and os.geteuid() == 0:
        return  # the agent below would have to become another user; the other modes show the same code
    sandbox = world.sandbox()
    rank = world.rank(sandbox, "open('ran', 'w').close()")
    agent = f"""
import pickle, time
from clary.agent.host.standby import StandbyHost
sandbox, rank = pickle.loads(bytes.fromhex({pickle.dumps((sandbox, rank)).hex()!r}))
standby = StandbyHost.prepare(sandbox, python=rank.argv[0], environment=rank.environment, preload=(), num_ahead=1)
ready = standby.make_ready([rank], waits=True, on_output=print)
print("waits", flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", agent], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"waits\n"
        eventually(lambda: pids_with(rank.argv[2]))
        process.kill()
    eventually(lambda: not pids_with(rank.argv[2]) and not pids_with(sandbox.ml_folder))
    assert not (Path(sandbox.ml_folder) / "ran").exists()
    world.expect_no_cgroup_of(sandbox)
