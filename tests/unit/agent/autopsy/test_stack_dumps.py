"""Each request gets one dump, sent until the service accepts it; dumps neither delay nor end their processes."""

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from clary.agent.autopsy import stack_dumps
from clary.agent.autopsy.stack_dumps import StackDumps
from clary.agent.service_client import AttemptOver, ServiceRefused, ServiceUnreachable
from clary.contract.stack_dumps import Frame, ProcessDump, ThreadStack
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


def test_descendants_of_the_first_process_are_dumped(dumps_of):
    sent = []
    dumps = dumps_of(sent.append)
    process = subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "up\n"
        dumps.begin(SimpleNamespace(init_pid=os.getpid(), ranks_by_pid=lambda: {process.pid: 3}), None)
        dumps.ask(1, "")
        wait_for(lambda: sent)
    finally:
        process.kill()
        process.communicate()
    found = next(item for item in sent[0].processes if item.pid == process.pid)
    assert (found.rank, found.parent) == (3, os.getpid())
    assert found.error or "<module>" in [frame.function for thread in found.threads for frame in thread.frames]


def test_a_dump_is_sent_again_until_the_service_is_back(dumps_of):
    sent = []

    def send(dump):
        sent.append(dump)
        if len(sent) < 3:
            raise ServiceUnreachable("away")

    dumps_of(send).ask(1, "")
    wait_for(lambda: len(sent) == 3)


@pytest.mark.parametrize("error", [AttemptOver("over"), RuntimeError("a defect")])
def test_a_dump_that_the_service_rejects_is_not_sent_again(dumps_of, error):
    sent = []

    def send(dump):
        sent.append(dump)
        raise error

    dumps_of(send).ask(1, "")
    wait_for(lambda: sent and not any(thread.name == "stack-dump" for thread in threading.enumerate()))
    assert len(sent) == 1


def test_take_unasked_signals_when_the_service_has_the_dump(dumps_of):
    is_held, sent = threading.Event(), []

    def send(dump):
        assert is_held.wait(WAIT_S)
        sent.append(dump)

    is_over = dumps_of(send).take_unasked("no progress")
    assert not is_over.wait(0.05)
    is_held.set()
    assert is_over.wait(WAIT_S)
    assert (sent[0].number, sent[0].reason) == (stack_dumps.UNASKED, "no progress")


def process_of(rank, *, num_threads=2):
    frames = (Frame(function="f", file="train.py", line=1),)
    threads = tuple(
        ThreadStack(thread=number, name="", is_main=number == 0, frames=frames) for number in range(num_threads)
    )
    return ProcessDump(
        pid=1,
        parent=0,
        rank=rank,
        command="",
        state="S",
        wait_channel="",
        cpu_s=0,
        num_waits=0,
        cpu_used_s=0,
        bytes_moved=0,
        threads=threads,
        sockets=(),
    )


def test_a_dump_too_large_for_the_service_is_shortened_until_it_fits(dumps_of, monkeypatch):
    sent = []

    def send(dump):
        sent.append(dump)
        if len(sent) < 3:
            raise ServiceRefused("too large", details={"status": 413})

    dumps = dumps_of(send)
    whole = replace(stack_dumps.StackDumps._take(dumps, 1, ""), processes=(process_of(0), process_of(None)))
    monkeypatch.setattr(dumps, "_take", lambda number, reason: whole)
    dumps.ask(1, "")
    wait_for(lambda: len(sent) == 3)
    assert [[len(process.threads) for process in dump.processes] for dump in sent] == [[2, 2], [1], []]
    assert [dump.num_left_out for dump in sent] == [0, 1, 2]


def test_an_error_of_the_dump_is_its_content(dumps_of, monkeypatch):
    sent = []

    def fail(*_, **__):
        raise OSError("no /proc here")

    monkeypatch.setattr(stack_dumps, "dump_host", fail)
    dumps = dumps_of(sent.append)
    dumps.begin(SimpleNamespace(init_pid=os.getpid(), ranks_by_pid=dict), None)
    dumps.ask(1, "")
    wait_for(lambda: sent)
    assert sent[0].error == "OSError: no /proc here"
