"""The alarm for a program without progress, and for a program that seems to hang only because it waits for GPUs."""

import threading
from types import SimpleNamespace

import pytest

from clary.agent.supervisor import hang_alarm
from clary.agent.supervisor.hang_alarm import HangAlarm

QUIET = "for 300 s it has computed or waited in a loop"


class FakeWatch:
    """Stands in for the progress watch; the test calls its callbacks."""

    def __init__(self, first_pid, *, num_outputs, limit_s, on_standstill, on_progress, on_quiet=None):
        self.on_standstill, self.on_progress, self.on_quiet = on_standstill, on_progress, on_quiet

    def start(self):
        """Begin to poll; does nothing here."""

    def close(self):
        """End; does nothing here."""


class Host:
    """A host whose program is watched; records log lines, facts and dumps."""

    def __init__(self, *, has_gpus, restart_hung=True):
        self.said, self.told, self.dumps, self.ended = [], [], [], threading.Event()
        plan = SimpleNamespace(hang_timeout_s=300.0, restart_hung=restart_hung)
        self.alarm = HangAlarm(
            plan,
            board=SimpleNamespace(tell=lambda **facts: self.told.append(facts)),
            log=SimpleNamespace(say=self.said.append, num_outputs=0),
            take_dump=self.take_dump,
            on_hung=lambda _: self.ended.set(),
            has_gpus=has_gpus,
        )
        self.alarm.begin(SimpleNamespace(init_pid=1), None)
        self.watch = self.alarm._watch

    def take_dump(self, words):
        self.dumps.append(words)
        is_known = threading.Event()
        is_known.set()
        return is_known


@pytest.fixture(autouse=True)
def no_processes(monkeypatch):
    monkeypatch.setattr(hang_alarm, "ProgressWatch", FakeWatch)
    monkeypatch.setattr(hang_alarm, "_OTHERS_S", 0.05)


def test_a_quiet_program_on_gpus_is_dumped_without_an_alarm_or_an_end():
    host = Host(has_gpus=True)
    host.watch.on_quiet(QUIET)
    host.alarm.abort()
    assert host.dumps == [QUIET]
    assert QUIET in host.said[0]
    assert host.told == []
    assert not host.ended.wait(0.3)


def test_a_silent_host_without_gpus_raises_no_hang_alarm():
    assert Host(has_gpus=False).watch.on_quiet is None


def test_a_program_at_a_standstill_is_dumped_reported_and_ended():
    host = Host(has_gpus=True)
    host.watch.on_standstill("no progress")
    assert host.ended.wait(30.0)
    host.alarm.abort()
    assert (host.dumps, host.told) == (["no progress"], [{"standstill": "no progress"}])
