"""The next host of a pool gets ready after a program, or while it runs: as root and as plain processes."""

import contextlib
import dataclasses
import time
from pathlib import Path

import pytest
from host_world import DEADLINE_S, PACKAGE_FOLDER, PATH, PYTHON, HostWorld, Listener, eventually, process
from host_worlds import world_of

from clary.agent.host.sandbox import Bind
from clary.agent.supervisor.standby_keeping import PLACES_FOLDER, StandbyKeeper
from clary.agent.zygote.interpreter_start import RANK_SHIM
from clary.contract.limits.cgroup_names import host_cgroup_name, next_cgroup_name
from clary.testing.launch_plans import make_plan

HOST = "algo-1"
WAITS = "import sys, time; print('runs', flush=True); time.sleep(60)"
LEAVES = "open('left', 'w').close(); print('ended')"

# The folders that a keeper makes are its own user's, so that `user` would need an agent that is not root.
MODES = (pytest.param("root", marks=pytest.mark.root), "plain")

world = world_of(MODES, lambda mode: KeeperWorld(mode))


class KeeperWorld(HostWorld):
    """One host of a pool, whose attempts are programs of one line."""

    def __init__(self, mode):
        super().__init__(mode)
        self.pool = self.folder("pool")
        self.folder(f"pool/{HOST}")
        self.keeper = StandbyKeeper(HOST)
        self._example = self.sandbox(HOST)

    def plan(self, **changes):
        return make_plan(
            pool="pool-1", pool_folder=str(self.pool), cache_folder="", shares_hosts=True, **{"hosts": (), **changes}
        )

    def attempt(self, plan, script):
        """Start the program of an attempt as an agent does; return it with its output and its folder."""
        place = self.keeper.folder_for(plan)
        folder = place or self.folder(f"attempt-{time.monotonic_ns()}")
        ml_folder = folder / "ml"
        ml_folder.mkdir(exist_ok=True)
        sandbox = dataclasses.replace(self._example, host_folder=str(folder), ml_folder=str(ml_folder))
        code = str(ml_folder) if self.mode == "plain" else "/opt/ml"
        (ml_folder / "train.py").write_text(script)
        rank = process(
            *(PYTHON, RANK_SHIM, "train.py"),
            environment={"PATH": PATH, "PYTHONPATH": f"{code}:{PACKAGE_FOLDER}"},
            working_folder=code,
        )
        listener = Listener()
        program = self.keeper.start(plan, sandbox, (rank,), on_output=listener)
        self._programs.append(program)
        return program, listener, folder

    def ready_place(self):
        """Return the folder of the host that stands by, or None."""
        ready = self.keeper._ready
        return ready.place if ready is not None else None

    def close(self):
        with contextlib.ExitStack() as left:
            left.callback(super().close)
            left.callback(eventually, lambda: not any((self.pool / HOST).glob(f"{PLACES_FOLDER}/*")))
            left.callback(self.keeper.close)


def finish(program, listener):
    """Wait for a program's end."""
    result = program.wait(DEADLINE_S)
    assert result is not None, listener.text()
    program.close()


def test_the_next_host_gets_ready_while_the_program_runs_if_another_job_is_sure_to_come(world):
    plan = world.plan(has_standby_early=True)
    program, listener, first_folder = world.attempt(plan, WAITS)
    listener.wait_for("runs")
    eventually(lambda: world.ready_place() is not None)
    place = world.ready_place()
    assert place != first_folder
    assert program.wait(0) is None, "the program still runs"
    program.close()
    world.keeper.prepare()
    assert world.ready_place() == place, "what is ready stays"
    second, listener, folder = world.attempt(plan, LEAVES)
    assert (folder, second.num_forked, second.why_not_forked) == (place, 1, "")
    finish(second, listener)
    assert listener.text() == "ended\n"


def test_two_hosts_that_live_at_once_have_cgroups_of_their_own_and_every_other_has_the_same(world):
    plan = world.plan(has_standby_early=True)
    first = host_cgroup_name("pool-1", 1, host=HOST, work_folder=str(world.pool))
    names = []
    for _ in range(4):
        program, listener, _ = world.attempt(plan, LEAVES)
        eventually(lambda: world.ready_place() is not None)
        names.append(world.keeper._ready.host.sandbox.cgroup_name)
        finish(program, listener)
        world.keeper.prepare()
    assert names == [first, next_cgroup_name(first)] * 2


def test_without_a_job_that_is_sure_to_come_the_next_host_gets_ready_at_the_end(world):
    plan = world.plan()
    program, listener, _ = world.attempt(plan, WAITS)
    listener.wait_for("runs")
    assert world.ready_place() is None
    program.close()
    world.keeper.prepare()
    assert world.ready_place() is not None


def test_files_of_an_attempt_that_was_given_up_before_its_program_are_in_no_later_attempt(world):
    plan = world.plan(has_standby_early=True)
    program, listener, _ = world.attempt(plan, LEAVES)
    finish(program, listener)
    world.keeper.prepare()
    spoiled = world.keeper.folder_for(plan)
    (spoiled / "ml" / "secret").write_text("of the attempt that was given up")
    world.keeper.prepare()
    program, listener, folder = world.attempt(plan, "import os; print(os.path.exists('secret'))")
    assert folder not in (None, spoiled)
    finish(program, listener)
    assert listener.text() == "False\n"
    eventually(lambda: not spoiled.exists())


def test_the_place_of_an_attempt_goes_at_its_end_and_that_of_the_next_one_stays(world):
    plan = world.plan(has_standby_early=True)
    finish(*world.attempt(plan, LEAVES)[:2])
    world.keeper.prepare()
    program, listener, used = world.attempt(plan, LEAVES)
    eventually(lambda: world.ready_place() is not None)
    finish(program, listener)
    world.keeper.prepare()
    eventually(lambda: [path.name for path in (world.pool / HOST / PLACES_FOLDER).iterdir()] == ["2"])
    assert not (used / "ml" / "left").exists()


def test_a_host_that_gets_ready_as_the_keeper_closes_is_taken_away(world):
    plan = world.plan(has_standby_early=True)
    program, listener, _ = world.attempt(plan, WAITS)
    world.keeper.close()
    world.keeper._making.join(DEADLINE_S)
    assert world.ready_place() is None
    eventually(lambda: not any((world.pool / HOST / PLACES_FOLDER).glob("*")))
    listener.wait_for("runs")
    program.close()


def test_an_attempt_of_another_pool_leaves_the_host_that_stands_by_alone(world):
    plan = world.plan(has_standby_early=True)
    finish(*world.attempt(plan, LEAVES)[:2])
    world.keeper.prepare()
    other = dataclasses.replace(plan, pool="pool-2", pool_folder=str(Path(plan.pool_folder).with_name("other")))
    assert world.keeper.folder_for(other) is None


@pytest.mark.parametrize("has_standby_early", [True, False])
def test_nothing_stands_by_where_the_settings_forbid_it(world, has_standby_early):
    plan = world.plan(has_standby=False, has_standby_early=has_standby_early)
    finish(*world.attempt(plan, LEAVES)[:2])
    world.keeper.prepare()
    assert world.ready_place() is None


def test_a_host_whose_binds_are_not_wanted_any_more_is_given_up_and_the_program_still_runs(world):
    if world.mode == "plain":
        return  # plain processes have no binds
    extra = world.folder("extra")
    world._example = dataclasses.replace(world._example, binds=(Bind(source=str(extra), target=str(extra)),))
    plan = world.plan(has_standby_early=True)
    finish(*world.attempt(plan, LEAVES)[:2])
    world.keeper.prepare()
    world._example = dataclasses.replace(world._example, binds=())
    program, listener, _ = world.attempt(plan, LEAVES)
    finish(program, listener)
    assert listener.text() == "ended\n"
    assert program.num_forked == 0
