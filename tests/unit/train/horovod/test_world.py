"""The state of a process: start and end, its place, process sets and timelines of a single rank."""

from __future__ import annotations

import json
import logging
import os
import socket

import pytest

from clary.train.horovod import world
from clary.train.horovod.errors import HorovodInternalError
from clary.train.horovod.places import Layout
from clary.train.horovod.requests import Description, Request, Verb

PLACES = ("HOROVOD_", "OMPI_COMM_WORLD_", "PMI_", "CLARY_HOROVOD_", "CLARY_COLLECTIVE_", "SM_")
NAMES = ("RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Remove all variables that give this process a place, and end its group after the test."""
    for name in list(os.environ):
        if name.startswith(PLACES) or name in NAMES:
            monkeypatch.delenv(name)
    yield
    world.stop()


@pytest.mark.parametrize(
    "call", [world.rank, world.size, world.layout, world.engine, world.set_ranks, world.stop_timeline]
)
def test_every_query_before_the_start_is_refused(call):
    assert not world.is_started()
    with pytest.raises(ValueError, match=r"has not been initialized; use hvd.init\(\)"):
        call()


def test_a_single_process_is_a_world_of_one_rank():
    world.start()
    assert world.is_started()
    assert (world.rank(), world.size()) == (0, 1)
    assert world.layout() == Layout(0, 1, 0, 1, True)
    assert world.set_ranks() == {world.GLOBAL_SET: [0]}
    assert world.ranks_of(world.GLOBAL_SET) == (0,)


def test_a_second_start_and_a_second_end_do_nothing():
    world.start()
    engine = world.engine()
    world.start()
    assert world.engine() is engine
    world.stop()
    world.stop()
    assert not world.is_started()


def test_an_ended_world_can_start_again():
    for _ in range(2):
        world.start()
        request = Request("barrier", Description(Verb.BARRIER), is_nameless=True)
        world.engine().submit([request])
        world.engine().wait([request.handle])
        world.stop()


def test_the_end_fails_operations_of_its_engine():
    world.start()
    engine = world.engine()
    world.stop()
    with pytest.raises(HorovodInternalError, match="has been shut down"):
        engine.submit([Request("barrier", Description(Verb.BARRIER))])


def test_a_rank_that_is_not_among_the_members_is_refused():
    with pytest.raises(ValueError, match=r"rank 0 is not in comm=\[1, 2\]: call init on its ranks alone"):
        world.start([1, 2])
    assert not world.is_started()


def test_a_rank_among_members_gets_a_new_number(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    world.start([3])
    assert (world.rank(), world.size()) == (0, 1)


def test_an_invalid_variable_is_named_and_prevents_the_start(monkeypatch):
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "soon")
    with pytest.raises(ValueError, match="HOROVOD_CYCLE_TIME is 'soon'"):
        world.start()
    assert not world.is_started()


def test_a_group_that_does_not_form_names_the_rank_and_can_be_started_again(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # the port is bound, but not listening
        monkeypatch.setenv("HOROVOD_RANK", "1")
        monkeypatch.setenv("HOROVOD_SIZE", "2")
        monkeypatch.setenv("CLARY_HOROVOD_ADDR", "127.0.0.1")
        monkeypatch.setenv("CLARY_HOROVOD_PORT", str(taken.getsockname()[1]))
        monkeypatch.setenv("CLARY_COLLECTIVE_CONNECT_TIMEOUT_S", "0.5")
        with pytest.raises(HorovodInternalError, match="rank 1 of 2 could not form the group: "):
            world.start()
    assert not world.is_started()
    monkeypatch.delenv("HOROVOD_RANK")
    world.start()
    assert world.size() == 1


def test_variables_without_effect_are_logged(monkeypatch, caplog):
    monkeypatch.setenv("HOROVOD_AUTOTUNE", "1")
    with caplog.at_level(logging.WARNING, "horovod"):
        world.start()
    assert "HOROVOD_AUTOTUNE has no effect" in caplog.text


def test_process_sets_can_be_added_later_only_if_that_was_allowed(monkeypatch):
    world.start()
    with pytest.raises(ValueError, match=r"call init\(process_sets='dynamic'\)"):
        world.add_set([0], is_at_start=False)
    assert world.add_set([0], is_at_start=True) is None  # the global set has these ranks already
    world.stop()
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    world.start()
    assert world.add_set([0], is_at_start=False) is None
    world.stop()
    monkeypatch.delenv("HOROVOD_DYNAMIC_PROCESS_SETS")
    world.start(allows_new_sets=True)
    assert world.add_set([0], is_at_start=False) is None


@pytest.mark.parametrize("ranks", [[], [1], [-1], [0, 0]])
def test_sets_of_unknown_ranks_are_refused(ranks):
    world.start()
    with pytest.raises(ValueError, match="expected distinct ranks from 0 to 0"):
        world.add_set(ranks, is_at_start=True)


def test_an_unknown_set_is_named_and_the_global_set_is_kept():
    world.start()
    with pytest.raises(ValueError, match="process set 7 does not exist"):
        world.ranks_of(7)
    with pytest.raises(ValueError, match="process set 7 does not exist"):
        world.engine(7)
    assert (world.remove_set(7), world.remove_set(world.GLOBAL_SET)) == (False, False)
    assert world.set_ranks() == {world.GLOBAL_SET: [0]}


def test_a_timeline_of_the_environment_is_complete_after_the_end(monkeypatch, tmp_path):
    monkeypatch.setenv("HOROVOD_TIMELINE", str(tmp_path / "timeline.json"))
    world.start()
    assert world.engine().timeline is not None
    world.stop()
    assert json.loads((tmp_path / "timeline.json").read_text())[0]["name"] == "process_name"


@pytest.mark.timeout(20)
def test_an_unwritable_timeline_of_the_environment_is_logged_and_the_training_starts(monkeypatch, tmp_path, caplog):
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", tmp_path / "no-folder" / "timeline.json"):
        monkeypatch.setenv("HOROVOD_TIMELINE", str(place))
        world.start()
        assert world.engine().timeline is None
        world.stop()
        assert f"no timeline is written to HOROVOD_TIMELINE={place}" in caplog.text


def test_a_new_timeline_ends_the_earlier_one(tmp_path):
    world.start()
    world.start_timeline(str(tmp_path / "first.json"), marks_cycles=False)
    world.start_timeline(str(tmp_path / "second.json"), marks_cycles=False)
    assert json.loads((tmp_path / "first.json").read_text())
    world.stop_timeline()
    world.stop_timeline()
    assert json.loads((tmp_path / "second.json").read_text())
    with pytest.raises(OSError, match="no-folder"):
        world.start_timeline(str(tmp_path / "no-folder" / "t.json"), marks_cycles=False)
