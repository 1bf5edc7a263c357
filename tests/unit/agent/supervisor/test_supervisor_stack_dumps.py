"""Dumps are taken once a request, sent until somebody takes them, and never hold or end what they look at."""

import os
import subprocess
import sys
import threading
import time

import pytest

from clary.agent.service_client import AttemptOver, ServiceUnreachable
from clary.agent.supervisor import stack_dumps
from clary.agent.supervisor.stack_dumps import StackDumps
from clary.testing.launch_plans import make_plan

WAIT_S = 30.0
SLEEPER = "import subprocess, sys, time\nprint('up', flush=True)\ntime.sleep(600)\n"


@pytest.fixture
def dumps_of():
    made = []

    def build(send):
        made.append(StackDumps(make_plan().hosts[0], send=send))
        return made[-1]

    yield build
    for dumps in made:
        dumps.close()
    end_s = time.monotonic() + WAIT_S
    while any(thread.name in ("stack-dump", "autopsy") for thread in threading.enumerate()):
        assert time.monotonic() < end_s, "a thread that takes a dump has not ended"
        time.sleep(0.01)


def wait_for(condition):
    end_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_each_request_is_answered_once_and_older_ones_not_at_all(dumps_of):
    sent = []
    dumps = dumps_of(sent.append)
    for number in (5, 5, 4, 6):
        dumps.ask(number, "why")
    wait_for(lambda: len(sent) == 2)
    assert sorted(dump.number for dump in sent) == [5, 6]
    assert {(dump.host, dump.reason, dump.error) for dump in sent} == {
        ("algo-1", "why", "no program runs on this host")
    }


def test_processes_below_the_first_one_are_looked_at(dumps_of):
    sent = []
    dumps = dumps_of(sent.append)
    process = subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "up\n"
        dumps.watch(os.getpid(), lambda: {process.pid: 3})
        dumps.ask(1, "")
        wait_for(lambda: sent)
    finally:
        process.kill()
        process.communicate()
    found = next(item for item in sent[0].processes if item.pid == process.pid)
    assert (found.rank, found.parent, found.state) == (3, os.getpid(), "S")
    assert found.num_waits < 3, "it waits for one thing alone"
    assert found.error or "<module>" in [frame.function for frame in found.threads[0].frames]


def test_a_dump_is_sent_again_until_the_service_is_back(dumps_of):
    sent = []

    def send(dump):
        sent.append(dump)
        if len(sent) < 3:
            raise ServiceUnreachable("away")

    dumps_of(send).ask(1, "")
    wait_for(lambda: len(sent) == 3)


@pytest.mark.parametrize("error", [AttemptOver("over"), RuntimeError("a defect")])
def test_what_nobody_takes_is_given_up(dumps_of, error):
    sent = []

    def send(dump):
        sent.append(dump)
        raise error

    dumps_of(send).ask(1, "")
    wait_for(lambda: sent and not any(thread.name == "stack-dump" for thread in threading.enumerate()))
    assert len(sent) == 1


def test_who_takes_one_unasked_is_told_when_it_is_taken_and_not_when_it_is_sent(dumps_of):
    is_held, sent = threading.Event(), []

    def send(dump):
        assert is_held.wait(WAIT_S)
        sent.append(dump)

    assert dumps_of(send).take_unasked("no progress").wait(WAIT_S)
    assert sent == []
    is_held.set()
    wait_for(lambda: sent)
    assert (sent[0].number, sent[0].reason) == (stack_dumps.UNASKED, "no progress")


def test_a_look_that_fails_is_told_in_the_dump(dumps_of, monkeypatch):
    sent = []

    def fail(*_, **__):
        raise OSError("no /proc here")

    monkeypatch.setattr(stack_dumps, "dump_host", fail)
    dumps = dumps_of(sent.append)
    dumps.watch(os.getpid(), dict)
    dumps.ask(1, "")
    wait_for(lambda: sent)
    assert sent[0].error == "OSError: no /proc here"
