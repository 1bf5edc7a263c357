"""The next host of a pool gets ready after a program, or while it runs: as root and as plain processes."""

import dataclasses
from pathlib import Path

import pytest
from host_world import DEADLINE_S, eventually
from host_worlds import world_of
from keeper_world import HOST, LEAVES, SERIES, WAITS, KeeperWorld, finish

from clary.agent.host.sandbox import Bind
from clary.agent.supervisor.standby_keeping import PLACES_FOLDER
from clary.contract.limits.cgroup_names import host_cgroup_name, next_cgroup_name

# The folders that a keeper makes are its own user's, so that `user` would need an agent that is not root.
MODES = (pytest.param("root", marks=pytest.mark.root), "plain")

world = world_of(MODES, lambda mode: KeeperWorld(mode))


def test_the_next_host_gets_ready_while_the_program_runs_if_another_job_is_sure_to_come(world):
    plan = world.plan(series=SERIES)
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
    world.keeper._leaves_traces = True  # no host lasts
    plan = world.plan(series=SERIES)
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
    plan = world.plan(series=SERIES)
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
    world.keeper._leaves_traces = True  # no host lasts
    plan = world.plan(series=SERIES)
    finish(*world.attempt(plan, LEAVES)[:2])
    world.keeper.prepare()
    program, listener, used = world.attempt(plan, LEAVES)
    eventually(lambda: world.ready_place() is not None)
    finish(program, listener)
    world.keeper.prepare()
    eventually(lambda: [path.name for path in (world.pool / HOST / PLACES_FOLDER).iterdir()] == ["2"])
    assert not (used / "ml" / "left").exists()


def test_a_host_that_gets_ready_as_the_keeper_closes_is_taken_away(world):
    plan = world.plan(series=SERIES)
    program, listener, _ = world.attempt(plan, WAITS)
    world.keeper.close()
    world.keeper._making.join(DEADLINE_S)
    assert world.ready_place() is None
    eventually(lambda: not any((world.pool / HOST / PLACES_FOLDER).glob("*")))
    listener.wait_for("runs")
    program.close()


def test_an_attempt_of_another_pool_leaves_the_host_that_stands_by_alone(world):
    plan = world.plan(series=SERIES)
    finish(*world.attempt(plan, LEAVES)[:2])
    world.keeper.prepare()
    other = dataclasses.replace(plan, pool="pool-2", pool_folder=str(Path(plan.pool_folder).with_name("other")))
    assert world.keeper.folder_for(other) is None


@pytest.mark.parametrize("series", [SERIES, ""])
def test_nothing_stands_by_where_the_settings_forbid_it(world, series):
    plan = world.plan(has_standby=False, series=series)
    finish(*world.attempt(plan, LEAVES)[:2])
    world.keeper.prepare()
    assert world.ready_place() is None


def test_a_host_whose_binds_are_not_wanted_any_more_is_given_up_and_the_program_still_runs(world):
    if world.mode == "plain":
        return  # plain processes have no binds
    extra = world.folder("extra")
    world._example = dataclasses.replace(world._example, binds=(Bind(source=str(extra), target=str(extra)),))
    plan = world.plan(series=SERIES)
    finish(*world.attempt(plan, LEAVES)[:2])
    world.keeper.prepare()
    world._example = dataclasses.replace(world._example, binds=())
    program, listener, _ = world.attempt(plan, LEAVES)
    finish(program, listener)
    assert listener.text() == "ended\n"
    assert program.num_forked == 0
