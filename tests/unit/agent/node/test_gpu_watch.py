"""The GPUs of a box, from a tool that may be missing, late, broken or hanging."""

import errno
import os
import subprocess
import time

import pytest

from clary.agent.node import gpu_watch as module
from clary.agent.node.gpu_watch import INTERVAL_S, LIMIT_S, RETRY_S, GpuWatch
from clary.testing.fake_hanging_program import FAKE_PID, FakeHangingProgram

ANSWER = "echo GPU-1; echo GPU-2"


class World:
    """A watch, its tool as a shell script, and a clock that the test advances."""

    def __init__(self, folder, monkeypatch):
        self.tool, self._late_s, self._time = folder / "nvidia-smi", 0.0, time.monotonic
        monkeypatch.setattr(module.time, "monotonic", lambda: self._time() + self._late_s)
        self.watch = GpuWatch((str(self.tool),))

    def write(self, text):
        self.tool.write_text(f"#!/bin/sh\n{text}\n")
        self.tool.chmod(0o755)

    def advance(self, seconds):
        self._late_s += seconds

    def await_end(self):
        """Look until the tool has ended."""
        until_s = self._time() + 30
        self.watch.look()
        while self.watch.children:
            assert self._time() < until_s
            time.sleep(0.01)
            self.watch.look()
        return self.watch.uuids


@pytest.fixture
def world(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch)
    yield world
    world.watch.close()


def test_the_first_answer_is_awaited_for_a_short_time(world):
    world.write(ANSWER)
    world.watch.await_first(30.0)
    assert world.watch.uuids == ("GPU-1", "GPU-2")


def test_a_slow_driver_does_not_hold_up_the_daemon(world):
    world.write(f"sleep 0.5; {ANSWER}")
    world.watch.await_first(0.1)
    assert (world.watch.uuids, len(world.watch.children)) == (None, 1), "not known yet"
    assert world.await_end() == ("GPU-1", "GPU-2")
    assert world.watch.children == ()


def test_a_driver_that_is_loaded_after_the_daemon_started_is_found(world):
    world.watch.await_first(1.0)
    assert world.watch.uuids == ()
    world.write(ANSWER)
    assert world.await_end() == (), "no query is due yet"
    world.advance(INTERVAL_S + 1)
    assert world.await_end() == ("GPU-1", "GPU-2")


def test_gpus_are_dropped_after_two_failures_in_a_row_and_found_again(world):
    world.write(ANSWER)
    world.await_end()
    for _ in range(2):
        world.write("echo 'NVIDIA-SMI has failed'; exit 9")
        world.advance(INTERVAL_S + 1)
        assert world.await_end() == ("GPU-1", "GPU-2"), "a driver may fail once"
        world.write(ANSWER)
        world.advance(RETRY_S + 1)
        assert world.await_end() == ("GPU-1", "GPU-2")
    world.tool.unlink()
    world.advance(INTERVAL_S + 1)
    assert world.await_end() == ("GPU-1", "GPU-2")
    world.advance(RETRY_S + 1)
    assert world.await_end() == ()
    world.write(ANSWER)
    world.advance(RETRY_S + 1)
    assert world.await_end() == (), "the next query is due after a minute"
    world.advance(INTERVAL_S + 1)
    assert world.await_end() == ("GPU-1", "GPU-2")


def test_a_driver_whose_first_answer_is_a_failure_has_unknown_gpus_until_the_second(world):
    world.write("exit 9")
    world.watch.await_first(30.0)
    assert world.watch.uuids is None
    world.advance(RETRY_S + 1)
    assert world.await_end() == ()


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE])
def test_a_machine_that_cannot_start_the_tool_at_the_moment_keeps_its_gpus(world, monkeypatch, number):
    def refuse(*arguments, **options):
        raise OSError(number, os.strerror(number))

    for known in (None, ("GPU-1", "GPU-2")):
        with monkeypatch.context() as patch:
            patch.setattr(module.subprocess, "Popen", refuse)
            told = []
            for _ in range(4):
                told.append(world.watch.look())
                assert world.watch.uuids == known
                world.advance(INTERVAL_S + 1)
        assert [os.strerror(number) in words for words in told] == [True, False, False, False]
        world.write(ANSWER)
        assert world.await_end() == ("GPU-1", "GPU-2")
        world.advance(INTERVAL_S + 1)


def test_a_tool_that_may_not_be_run_is_no_driver(world):
    world.write(ANSWER)
    world.tool.chmod(0o600)
    assert "Permission denied" in world.watch.look()
    assert world.watch.uuids is None
    world.advance(RETRY_S + 1)
    assert world.await_end() == ()


def test_a_driver_that_hangs_from_the_beginning_offers_no_gpus_until_it_answers(world):
    world.write("exec sleep 60")
    world.watch.look()
    world.advance(LIMIT_S + 1)
    assert world.watch.uuids is None
    assert "the driver hangs" in world.watch.look()
    assert world.watch.uuids == ()
    world.write(ANSWER)
    assert world.await_end() == ("GPU-1", "GPU-2")


def test_a_driver_that_refused_is_queried_again(world):
    world.write("exit 9")
    world.await_end()
    world.write(ANSWER)
    world.advance(INTERVAL_S + 1)
    assert world.await_end() == ("GPU-1", "GPU-2")


def test_a_child_of_the_tool_that_holds_its_output_does_not_hold_up_the_daemon(world):
    world.write(f"sleep 5 & {ANSWER}")
    began_s = time.monotonic()
    assert world.await_end() == ("GPU-1", "GPU-2")
    assert time.monotonic() - began_s < 5


def test_a_driver_that_hangs_is_reported_once_and_its_gpus_stay(world, monkeypatch):
    world.write(ANSWER)
    world.await_end()
    with monkeypatch.context() as patch:
        patch.setattr(FakeHangingProgram, "started", started := [])
        patch.setattr(subprocess, "Popen", FakeHangingProgram)
        world.advance(INTERVAL_S + 1)
        assert world.watch.look() == ""
        world.advance(LIMIT_S + 1)
        words = f"nvidia-smi (process {FAKE_PID}) has not answered for 60 s: the driver hangs"
        assert [world.watch.look() for _ in range(3)] == [words, "", ""]
        world.advance(10 * INTERVAL_S)
        assert world.watch.look() == ""
        assert (len(started), started[0].was_killed, world.watch.children) == (1, True, (FAKE_PID,))
        assert world.watch.uuids == ("GPU-1", "GPU-2")
        started[0].may_end = True
    world.write("echo GPU-3")
    assert world.await_end() == ("GPU-3",)
