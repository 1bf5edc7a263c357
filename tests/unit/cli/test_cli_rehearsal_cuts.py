"""Cuts of a rehearsal that overlap: the end of one opens nothing that another one still cuts."""

from dataclasses import dataclass, field

import pytest

from clary.cli import rehearsal_run
from clary.cli.rehearsal_run import JobWatch
from clary.control.rehearsal.faults import FaultKind, parse_fault

RUNNING = {"status": "InProgress", "secondary_status": "Training", "state": "Running"}


class FakeTime:
    """The module `time`, moved by the test."""

    def __init__(self):
        self.now_s = 100.0

    def monotonic(self):
        return self.now_s


@dataclass
class FakeConnection:
    """A service whose job of two hosts trains; keeps the orders that it gets."""

    attempt: int = 1
    struck: list = field(default_factory=list)

    def job_page(self, name, page="", query=None):
        if page == "logs":
            return {"lines": [], "tokens": {}}
        hosts = [{"name": f"algo-{number}", "phase": "running"} for number in (1, 2)]
        return {**RUNNING, "attempt": self.attempt, "hosts": hosts}

    def post_job_page(self, name, page, body):
        self.struck.append((body["is_over"], tuple(body["hosts"]), body.get("between", False)))


@pytest.fixture
def clock(monkeypatch):
    made = FakeTime()
    monkeypatch.setattr(rehearsal_run, "time", made)
    return made


class FakeReader:
    """Finds nothing in lines."""

    def read_all(self, lines):
        return []


def watch(connection, *faults):
    planned = [parse_fault(FaultKind.PARTITION, text) for text in faults]
    return JobWatch(connection, "job", FakeReader(), lambda text: None, planned)


def follow(watch, clock, seconds):
    for _ in range(seconds):
        watch.look()
        clock.now_s += 1.0


def test_a_cut_between_two_that_ends_first_leaves_the_longer_one_alone(clock):
    connection = FakeConnection()
    job = watch(connection, "algo-2@1s+9s", "algo-1:algo-2@3s+2s")
    follow(job, clock, 8)
    assert connection.struck == [(False, ("algo-2",), False), (False, ("algo-1", "algo-2"), True)]
    follow(job, clock, 5)
    assert connection.struck[2:] == [(True, ("algo-2",), False)]


def test_a_cut_of_an_attempt_that_is_gone_keeps_none_of_the_next(clock):
    connection = FakeConnection()
    job = watch(connection, "algo-2@1s", "algo-2@5s+2s")
    follow(job, clock, 4)
    connection.attempt = 2
    follow(job, clock, 6)
    assert connection.struck[1:] == [(False, ("algo-2",), False), (True, ("algo-2",), False)]


def test_what_is_said_of_a_job_is_its_state():
    said = []
    watch = JobWatch(connection=FakeConnection(), name="job", reader=None, say=said.append)
    watch.look()
    watch.look()
    assert said == ["job: Running (Training)"]
