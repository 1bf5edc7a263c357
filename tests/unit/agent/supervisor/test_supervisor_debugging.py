"""Saved tensors on a host: mirrors and rules begin and end with the program, and never delay it."""

import contextlib
from dataclasses import replace

import pytest

from clary.agent.fact_board import FactBoard
from clary.agent.rules import rule_world
from clary.agent.supervisor.host_debugging import END_OF_JOB, HostDebugging
from clary.base.beneath import Folder
from clary.base.clock import SystemClock
from clary.contract.job_rules import MirrorPlan, RulePlan
from clary.testing.launch_plans import make_hosts, make_plan

MIRROR = MirrorPlan(what="tensors", local_path="/opt/ml/output/tensors", s3_uri="s3://b/t/", marks_end=True)
EVENTS = replace(MIRROR, what="events", marks_end=False)
RULE = RulePlan(name="Loss", rule="LossNotDecreasing")


class FakeMirror:
    """Stores no file."""

    num_stored = 3
    error = "the store refused"

    def __init__(self, folder, *, is_complete=True):
        self.folder = folder
        self.is_complete = is_complete
        self.calls = []

    def forget(self, names):
        self.calls.append(f"forget {', '.join(names)}")

    def start(self):
        self.calls.append("start")

    @contextlib.contextmanager
    def opened(self):
        with Folder.at(self.folder) as folder:
            yield folder

    def flush(self):
        self.calls.append("flush")

    def wait_stored(self, timeout_s):
        self.calls.append("wait")
        return self.is_complete

    def finish(self, limit_s, *, longest_s=None):
        self.calls.append("finish")
        return self.is_complete

    def abort(self):
        self.calls.append("abort")

    def join(self, timeout_s):
        return True


class FakeDebuggingSteps:
    """Has mirrors, and no sandbox for rules."""

    def __init__(self, mirrors):
        self.mirrors = mirrors
        self.num_asked = 0

    def open_mirrors(self):
        return self.mirrors

    def rule_world(self):
        self.num_asked += 1
        raise OSError("no room")


@pytest.fixture
def said():
    return []


def debugging(steps, said, *, host="algo-1", mirrors=(), rules=(), num_hosts=1, attempt=1):
    hosts = make_hosts(num_hosts)
    plan = replace(make_plan(hosts=hosts), mirrors=tuple(mirrors), rules=tuple(rules), attempt=attempt)
    board = FactBoard(clock=SystemClock())
    subject = HostDebugging(plan, host=host, board=board, steps=steps, say=said.append)
    subject.board = board
    return subject


def test_a_job_without_tensors_asks_for_nothing(said):
    steps = FakeDebuggingSteps({})
    subject = debugging(steps, said)
    subject.begin(None, None)
    subject.ended()
    assert subject.finish() == ()
    subject.abort()
    assert subject.close()
    assert (steps.num_asked, said) == (0, [])


def test_the_end_mark_is_written_where_trials_read_it(said, tmp_path):
    (tmp_path / "tensors").mkdir()
    (tmp_path / "events").mkdir()
    (tmp_path / "tensors" / END_OF_JOB).touch()  # the mark of an earlier program
    mirrors = {MIRROR: FakeMirror(tmp_path / "tensors"), EVENTS: FakeMirror(tmp_path / "events")}
    subject = debugging(FakeDebuggingSteps(mirrors), said, mirrors=mirrors)
    subject.begin(None, None)
    assert not (tmp_path / "tensors" / END_OF_JOB).exists()
    mirrors[EVENTS].num_stored = 1
    subject.ended()
    assert (tmp_path / "tensors" / END_OF_JOB).exists()
    assert not (tmp_path / "events" / END_OF_JOB).exists()
    assert subject.finish() == ()
    assert said == ["tensors: 3 files are at s3://b/t/", "events: 1 file is at s3://b/t/"]


def test_one_of_several_hosts_marks_only_its_own_end(said, tmp_path):
    mirrors = {MIRROR: FakeMirror(tmp_path)}
    subject = debugging(FakeDebuggingSteps(mirrors), said, host="algo-2", mirrors=mirrors, num_hosts=2)
    subject.begin(None, None)
    subject.ended()
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == [
        "ended/algo-2.try-1.of-2"
    ]
    subject.begin(None, None)
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_an_attempt_deletes_end_marks_of_earlier_attempts_from_the_store(said, tmp_path):
    for num_hosts, names in (
        (1, [END_OF_JOB]),
        (2, [END_OF_JOB, "ended/algo-1.try-1.of-2", "ended/algo-1.try-2.of-2"]),
    ):
        mirrors = {MIRROR: FakeMirror(tmp_path), EVENTS: FakeMirror(tmp_path)}
        subject = debugging(FakeDebuggingSteps(mirrors), said, mirrors=mirrors, num_hosts=num_hosts, attempt=3)
        subject.begin(None, None)
        assert mirrors[MIRROR].calls == [f"forget {', '.join(names)}", "start"]
        assert mirrors[EVENTS].calls == ["start"]


def test_a_hosts_mark_is_not_written_through_a_link(said, tmp_path):
    (tmp_path / "tensors").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "tensors" / "ended").symlink_to(tmp_path / "elsewhere")
    mirrors = {MIRROR: FakeMirror(tmp_path / "tensors")}
    subject = debugging(FakeDebuggingSteps(mirrors), said, mirrors=mirrors, num_hosts=2)
    subject.begin(None, None)
    subject.ended()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_mark_is_not_written_through_a_link(said, tmp_path):
    (tmp_path / "tensors").mkdir()
    mirrors = {MIRROR: FakeMirror(tmp_path / "tensors")}
    subject = debugging(FakeDebuggingSteps(mirrors), said, mirrors=mirrors)
    subject.begin(None, None)
    (tmp_path / "tensors" / END_OF_JOB).symlink_to(tmp_path / "elsewhere")
    subject.ended()
    assert not (tmp_path / "elsewhere").exists()


def test_files_that_were_not_stored_are_noted(said, tmp_path):
    mirrors = {MIRROR: FakeMirror(tmp_path, is_complete=False)}
    subject = debugging(FakeDebuggingSteps(mirrors), said, mirrors=mirrors)
    subject.begin(None, None)
    assert subject.finish() == ("tensors: not everything was stored at s3://b/t/: the store refused",)
    subject.abort()
    assert mirrors[MIRROR].calls == ["start", "finish", "abort"]


def test_rules_run_on_the_first_host_only_and_their_failure_is_only_logged(said):
    first, second = FakeDebuggingSteps({}), FakeDebuggingSteps({})
    debugging(second, said, host="algo-2", rules=[RULE], num_hosts=2).begin(None, None)
    assert second.num_asked == 0
    subject = debugging(first, said, rules=[RULE])
    subject.begin(None, None)
    assert first.num_asked == 1
    assert said == ["saved tensors are neither stored nor checked: OSError: no room"]
    assert subject.finish() == ()
    (facts,) = subject.board.facts.rules
    assert (facts.name, facts.status.value, facts.details) == ("Loss", "Error", "OSError: no room")


def test_a_second_finish_neither_waits_nor_repeats_notes(said, tmp_path):
    mirror = FakeMirror(tmp_path, is_complete=False)
    subject = debugging(FakeDebuggingSteps({MIRROR: mirror}), said, mirrors=[MIRROR])
    subject.begin(None, None)
    assert len(subject.finish(1.0)) == 1
    assert subject.finish(1.0) == ()
    assert mirror.calls == ["start", "finish"]


def test_an_unexpected_error_in_finish_is_only_noted(said, tmp_path, monkeypatch):
    mirror = FakeMirror(tmp_path)
    monkeypatch.setattr(mirror, "finish", lambda limit_s, longest_s: 1 / 0)
    subject = debugging(FakeDebuggingSteps({MIRROR: mirror}), said, mirrors=[MIRROR])
    subject.begin(None, None)
    assert "ZeroDivisionError" in subject.finish(1.0)[0]


def test_rules_read_tensors_of_other_hosts_if_all_hosts_store_them():
    plan = replace(make_plan(hosts=make_hosts(2)), mirrors=(EVENTS, MIRROR))
    assert rule_world._tensors_uri(plan) == "s3://b/t/"
    assert rule_world._tensors_uri(replace(plan, network_isolation=True)) == ""
    assert rule_world._tensors_uri(replace(plan, mirrors=(EVENTS,))) == ""
    assert rule_world._tensors_uri(replace(plan, hosts=make_hosts(1))) == ""


def test_end_marks_of_earlier_attempts_are_deleted_from_a_lasting_folder(said, tmp_path):
    (tmp_path / "ended").mkdir()
    for name in ("END_OF_JOB.ts", "ended/algo-1.try-1.of-2", "ended/algo-2.try-1.of-2", "ended/worker_0.json"):
        (tmp_path / name).touch()
    mirrors = {MIRROR: FakeMirror(tmp_path)}
    debugging(FakeDebuggingSteps(mirrors), said, mirrors=mirrors, num_hosts=2, attempt=2).begin(None, None)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["ended/algo-2.try-1.of-2", "ended/worker_0.json"]


def test_remaining_files_are_waited_for_until_stored_or_no_longer_needed(said, tmp_path):
    for is_complete, is_vain, num_looks in ((True, False, 1), (False, True, 0)):
        mirror = FakeMirror(tmp_path, is_complete=is_complete)
        subject = debugging(FakeDebuggingSteps({MIRROR: mirror}), said, mirrors=[MIRROR])
        subject.begin(None, None)
        subject.ended()
        subject.wait_stored(60.0, is_vain=lambda is_vain=is_vain: is_vain)
        assert mirror.calls == ["start", "flush", *["wait"] * num_looks]
    mirror = FakeMirror(tmp_path, is_complete=False)
    subject = debugging(FakeDebuggingSteps({MIRROR: mirror}), said, mirrors=[MIRROR])
    subject.begin(None, None)
    subject.wait_stored(0.01, is_vain=lambda: False)
    assert "wait" in mirror.calls
