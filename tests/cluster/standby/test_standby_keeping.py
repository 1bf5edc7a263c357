"""Preparation of a pool's next host, after a program or while it runs: as root and as plain processes."""

import dataclasses
from pathlib import Path

import pytest
from host_world import DEADLINE_S, eventually
from host_worlds import world_of
from keeper_world import HOST, LEAVES, SERIES, WAITS, KeeperWorld, finish

from clary.agent.host.sandbox import Bind
from clary.agent.supervisor.standby_keeping import PLACES_FOLDER
from clary.contract.limits.cgroup_names import host_cgroup_name, next_cgroup_name

# A keeper's folders belong to its own user, so that mode `user` would need an agent that is not root.
MODES = (pytest.param("root", marks=pytest.mark.root), "plain")

world = world_of(MODES, lambda mode: KeeperWorld(mode))


def test_in_a_series_the_next_host_gets_ready_while_the_program_runs(world):
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


def test_successive_hosts_alternate_between_two_cgroup_names(world):
    world.keeper._leaves_traces = True  # so no host is reused
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


def test_without_a_series_the_next_host_gets_ready_after_the_program(world):
    plan = world.plan()
    program, listener, _ = world.attempt(plan, WAITS)
    listener.wait_for("runs")
    assert world.ready_place() is None
    program.close()
    world.keeper.prepare()
    assert world.ready_place() is not None


def test_files_of_an_attempt_that_started_no_program_are_in_no_later_attempt(world):
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


def test_an_attempts_folder_is_removed_at_its_end_and_the_next_ones_folder_stays(world):
    world.keeper._leaves_traces = True  # so no host is reused
    plan = world.plan(series=SERIES)
    finish(*world.attempt(plan, LEAVES)[:2])
    world.keeper.prepare()
    program, listener, used = world.attempt(plan, LEAVES)
    eventually(lambda: world.ready_place() is not None)
    finish(program, listener)
    world.keeper.prepare()
    eventually(lambda: [path.name for path in (world.pool / HOST / PLACES_FOLDER).iterdir()] == ["2"])
    assert not (used / "ml" / "left").exists()


def test_a_host_that_gets_ready_while_the_keeper_closes_is_removed(world):
    plan = world.plan(series=SERIES)
    program, listener, _ = world.attempt(plan, WAITS)
    world.keeper.close()
    world.keeper._making.join(DEADLINE_S)
    assert world.ready_place() is None
    eventually(lambda: not any((world.pool / HOST / PLACES_FOLDER).glob("*")))
    listener.wait_for("runs")
    program.close()


def test_an_attempt_of_another_pool_does_not_get_the_standby_host(world):
    plan = world.plan(series=SERIES)
    finish(*world.attempt(plan, LEAVES)[:2])
    world.keeper.prepare()
    other = dataclasses.replace(plan, pool="pool-2", pool_folder=str(Path(plan.pool_folder).with_name("other")))
    assert world.keeper.folder_for(other) is None


@pytest.mark.parametrize("series", [SERIES, ""])
def test_no_standby_host_is_prepared_if_the_settings_forbid_it(world, series):
    plan = world.plan(has_standby=False, series=series)
    finish(*world.attempt(plan, LEAVES)[:2])
    world.keeper.prepare()
    assert world.ready_place() is None


def test_a_standby_host_with_unneeded_binds_is_replaced_and_the_program_still_runs(world):
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


def test_a_program_that_waits_in_the_standby_host_is_the_one_that_starts(world):
    plan = world.plan()
    finish(*world.attempt(plan, LEAVES)[:2])
    world.keeper.prepare()
    place = world.ready_place()
    program, listener, folder = world.attempt(plan, LEAVES, is_ready=True)
    assert (folder, program.num_forked) == (place, 1)
    finish(program, listener)
    assert listener.text() == "ended\n"
    world.keeper.prepare()
    assert world.ready_place() not in (None, place)
    eventually(lambda: not place.exists())


def test_a_program_that_was_planned_anew_replaces_the_one_that_waits(world):
    plan = world.plan()
    finish(*world.attempt(plan, LEAVES)[:2])
    world.keeper.prepare()
    script = "import os; print(os.environ.get('NEW')); open(f'ran-{os.getpid()}', 'w').close()"
    program, listener, folder = world.attempt(plan, script, is_ready=True, changes={"NEW": "1"})
    finish(program, listener)
    assert listener.text() == "1\n"
    assert len(list((folder / "ml").glob("ran-*"))) == 1
    assert program.num_forked == 0


@pytest.mark.parametrize("end", ["prepare", "close"])
def test_a_program_that_never_starts_ends_with_its_attempt(world, end):
    plan = world.plan()
    finish(*world.attempt(plan, LEAVES)[:2])
    world.keeper.prepare()
    place = world.keeper.folder_for(plan)
    sandbox, rank = world.program_in(place, "open('ran', 'w').close()")
    world.keeper.make_ready(plan, sandbox, (rank,), on_output=lambda *_: None)
    assert world.keeper._waiting is not None
    getattr(world.keeper, end)()
    assert world.keeper._waiting is None
    eventually(lambda: not place.exists())
    assert (world.ready_place() is None) == (end == "close")


def test_no_program_waits_in_a_host_that_lasts(world):
    plan = world.plan(series=SERIES)
    finish(*world.attempt(plan, LEAVES)[:2])
    world.keeper.prepare()
    program, listener, _ = world.attempt(plan, LEAVES, is_ready=True)
    finish(program, listener)
    assert (listener.text(), program.num_forked) == ("ended\n", 1)
