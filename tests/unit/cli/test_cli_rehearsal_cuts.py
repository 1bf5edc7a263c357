"""Overlapping network cuts of a rehearsal: the end of one cut reopens no link that another still cuts."""

from dataclasses import dataclass, field

import pytest

from clary.cli import rehearsal_run
from clary.cli.rehearsal_run import JobWatch
from clary.control.rehearsal.faults import FaultKind, parse_fault

RUNNING = {"status": "InProgress", "secondary_status": "Training", "state": "Running"}


class FakeTime:
    """Replaces the module `time`; moved by the test."""

    def __init__(self):
        self.now_s = 100.0

    def monotonic(self):
        return self.now_s


@dataclass
class FakeConnection:
    """A service with a training job of two hosts; records the orders that it receives."""

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
    """Finds no values in lines."""

    def read_all(self, lines):
        return []


def watch(connection, *faults):
    planned = [parse_fault(FaultKind.PARTITION, text) for text in faults]
    return JobWatch(connection, "job", FakeReader(), lambda text: None, planned)


def follow(watch, clock, seconds):
    for _ in range(seconds):
        watch.look()
        clock.now_s += 1.0


def test_the_end_of_a_short_cut_leaves_an_overlapping_longer_cut(clock):
    connection = FakeConnection()
    job = watch(connection, "algo-2@1s+9s", "algo-1:algo-2@3s+2s")
    follow(job, clock, 8)
    assert connection.struck == [(False, ("algo-2",), False), (False, ("algo-1", "algo-2"), True)]
    follow(job, clock, 5)
    assert connection.struck[2:] == [(True, ("algo-2",), False)]


def test_a_cut_of_an_ended_attempt_does_not_extend_cuts_of_the_next(clock):
    connection = FakeConnection()
    job = watch(connection, "algo-2@1s", "algo-2@5s+2s")
    follow(job, clock, 4)
    connection.attempt = 2
    follow(job, clock, 6)
    assert connection.struck[1:] == [(False, ("algo-2",), False), (True, ("algo-2",), False)]


def test_only_changes_of_the_jobs_state_are_printed():
    said = []
    watch = JobWatch(connection=FakeConnection(), name="job", reader=None, say=said.append)
    watch.look()
    watch.look()
    assert said == ["job: Running (Training)"]
