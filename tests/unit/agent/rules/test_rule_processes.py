"""Rules as processes: their start, the reading of their results, and their end."""

import json
import threading
import time
from datetime import UTC, datetime
from pathlib import PurePosixPath

import pytest

from clary.agent.rules.rule_processes import MODULE, RuleProcesses, RuleWorld, fetch_source, fetch_trial
from clary.base.errors import AgentError, ClaryError
from clary.contract.agent_protocol import ProcessExit
from clary.contract.job_rules import RulePlan
from clary.testing.fake_object_store import FakeObjectStore

LIMIT_S = 60.0
INSIDE = PurePosixPath("/opt/clary/rules")


class FakeStore(FakeObjectStore):
    """An object store that can be closed."""

    def close(self):
        """Do nothing; the interface requires it."""


class FakeRuleHost:
    """Starts no process; tests write statuses and exits."""

    def __init__(self):
        self.ended = []
        self.starved = ""
        self.is_closed = False
        self.processes = None
        self.on_output = None

    def start(self, processes, on_output):
        self.processes, self.on_output = processes, on_output
        return self

    def exits(self):
        return tuple(self.ended)

    def out_of_memory(self):
        return self.starved

    def close(self):
        self.is_closed = True

    def end(self, process, code=0, signal=None):
        self.ended.append(
            ProcessExit(rank=None, local_rank=process, pid=7, exit_code=code, signal=signal, ended_at=datetime.now(UTC))
        )


class Setup:
    def __init__(self, folder):
        self.folder = folder
        self.host = FakeRuleHost()
        self.store = FakeStore()
        self.told = []
        self.said = []

    def rules(self, *plans, start=None):
        world = RuleWorld(
            folder=self.folder,
            inside=INSIDE,
            read=self.read,
            python="/usr/bin/python",
            environment={"A": "b"},
            working_folder="/opt/ml/code",
            tensors_folder="/opt/ml/output/tensors",
            open_store=lambda: self.store,
            start=start or self.host.start,
        )
        return RuleProcesses(plans, world=world, tell=self.told.append, say=self.said.append)

    def read(self, parts, max_bytes):
        try:
            return self.folder.joinpath(*parts).read_bytes()[:max_bytes]
        except FileNotFoundError:
            return None

    def leave(self, index, status, details=""):
        place = self.folder / str(index) / "status.json"
        beside = place.with_name("status.part")
        beside.write_text(json.dumps({"status": status, "details": details}))
        beside.rename(place)

    def wait_until_started(self):
        self.wait_for(lambda: self.host.processes is not None)

    def wait_for(self, condition):
        end_s = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < end_s, (self.told, self.said)
            time.sleep(0.01)

    def last(self):
        return [(facts.status.value, facts.details) for facts in self.told[-1]]


@pytest.fixture
def setup(tmp_path):
    return Setup(tmp_path / "rules")


@pytest.fixture
def run(setup):
    started = []

    def begin(*plans, **options):
        rules = setup.rules(*plans, **options)
        started.append(rules)
        rules.start()
        return rules

    yield begin
    for rules in started:
        rules.abort()
        assert rules.join(LIMIT_S)


def plan(name="Loss", rule="LossNotDecreasing", **members):
    return RulePlan(name=name, rule=rule, **members)


def test_each_rule_gets_an_order_and_a_process_of_its_own(setup, run):
    run(plan(parameters={"num_steps": "5"}), plan("two", "AllZero"))
    setup.wait_until_started()
    first, second = setup.host.processes
    assert first.argv == ("/usr/bin/python", "-m", MODULE, "/opt/clary/rules/0/order.json")
    assert second.argv[-1] == "/opt/clary/rules/1/order.json"
    assert first.environment == {"A": "b"}
    assert json.loads((setup.folder / "0" / "order.json").read_text()) == {
        "name": "Loss",
        "rule": "LossNotDecreasing",
        "source_file": "",
        "parameters": {"num_steps": "5"},
        "tensors_folder": "/opt/ml/output/tensors",
        "other_trials": [],
        "tensors_uri": "",
        "is_marked": False,
        "own_end": "",
        "since": 0.0,
        "status_file": "/opt/clary/rules/0/status.json",
    }


def test_statuses_are_reported_as_they_arrive_and_logged_once(setup, run):
    rules = run(plan("a"), plan("b"))
    setup.wait_until_started()
    setup.leave(0, "InProgress")
    setup.leave(1, "IssuesFound", "step 4: bad")
    setup.wait_for(lambda: setup.last() == [("InProgress", ""), ("IssuesFound", "step 4: bad")])
    assert not setup.host.is_closed
    setup.leave(0, "NoIssuesFound", "3 of 3")
    rules.finish(LIMIT_S)
    assert setup.last() == [("NoIssuesFound", "3 of 3"), ("IssuesFound", "step 4: bad")]
    assert setup.said.count("rule b: IssuesFound: step 4: bad") == 1
    assert setup.host.is_closed


def test_a_rule_that_crashes_is_an_error_with_its_last_line(setup, run):
    rules = run(plan("a"), plan("b"), plan("c"))
    setup.wait_until_started()
    setup.leave(0, "NoIssuesFound")
    setup.wait_for(lambda: setup.last()[0][0] == "NoIssuesFound")
    setup.leave(1, "InProgress")
    setup.host.on_output(1, b"Traceback\n\nMemoryError: no\n\n")
    setup.host.end(1, code=1)
    setup.host.end(2, code=None, signal=9)
    rules.finish(LIMIT_S)
    assert setup.last()[1:] == [
        ("Error", "its process ended with exit code 1: MemoryError: no"),
        ("Error", "its process ended with signal 9"),
    ]


def test_only_a_rule_killed_at_its_memory_limit_names_the_limit(setup, run):
    setup.host.starved = "OutOfMemory: rules on algo-1 used 1.02 GiB"
    rules = run(plan("a"), plan("b"))
    setup.wait_until_started()
    setup.host.end(0, code=None, signal=9)
    setup.host.end(1, code=1)
    rules.finish(LIMIT_S)
    assert setup.last() == [
        ("Error", "OutOfMemory: rules on algo-1 used 1.02 GiB"),
        ("Error", "its process ended with exit code 1"),
    ]


def test_rules_that_exceed_their_time_are_stopped(setup, run):
    rules = run(plan())
    setup.wait_until_started()
    rules.finish(0.3)
    assert rules.join(LIMIT_S)
    assert setup.last() == [("Stopped", "it was stopped before it had read everything that was saved")]
    assert setup.host.is_closed


def test_a_host_that_can_not_be_made_is_an_error_of_each_rule(setup, run):
    def fail(processes, on_output):
        raise AgentError("no room for another host")

    rules = run(plan("a"), plan("b"), start=fail)
    rules.finish(LIMIT_S)
    assert setup.last() == [("Error", "no room for another host")] * 2


def test_a_users_file_is_fetched_and_a_missing_one_fails_only_its_rule(setup, run):
    setup.store.put_bytes("b", "code/mine.py", b"class Mine: pass")
    rules = run(
        plan("absent", "X", source_uri="s3://b/other.py"), plan("mine", "Mine", source_uri="s3://b/code/mine.py")
    )
    setup.wait_until_started()
    (process,) = setup.host.processes
    assert process.argv[-1] == "/opt/clary/rules/1/order.json"
    order = json.loads((setup.folder / "1" / "order.json").read_text())
    assert order["source_file"] == "/opt/clary/rules/1/source/mine.py"
    assert (setup.folder / "1" / "source" / "mine.py").read_bytes() == b"class Mine: pass"
    setup.host.on_output(0, b"last\n")
    setup.host.end(0, code=3)
    rules.finish(LIMIT_S)
    (absent, _), (mine, words) = setup.last()
    assert (absent, mine) == ("Error", "Error")
    assert words == "its process ended with exit code 3: last"


def test_an_invalid_status_file_is_ignored(setup, run):
    rules = run(plan())
    setup.wait_until_started()
    for text in ("", "[]", '{"status": "Fine", "details": ""}', '{"status": []}', "\0"):
        (setup.folder / "0" / "status.json").write_text(text)
        time.sleep(0.05)
    setup.host.end(0, code=0)
    rules.finish(LIMIT_S)
    assert setup.last() == [("Error", "its process ended with exit code 0")]


def test_a_base_trial_is_fetched_whole_and_marked_as_ended(tmp_path):
    store = FakeStore()
    store.put_bytes("b", "t/steps/0/a", b"x")
    store.put_bytes("b", "t/collections/w", b"y")
    store.put_bytes("b", "t2/z", b"no")
    fetch_trial("s3://b/t", tmp_path / "other_0", store=store)
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert names == ["other_0/END_OF_JOB.ts", "other_0/collections/w", "other_0/steps/0/a"]
    with pytest.raises(ClaryError, match="there are no tensors at s3://b/none"):
        fetch_trial("s3://b/none", tmp_path / "other_1", store=store)


def test_keys_that_lead_out_of_the_folder_are_left_out(tmp_path):
    store = FakeStore()
    store.put_bytes("b", "t/../../evil", b"x")
    store.put_bytes("b", "t/good", b"x")
    fetch_trial("s3://b/t/", tmp_path / "a" / "b", store=store)
    assert not (tmp_path / "evil").exists()
    assert (tmp_path / "a" / "b" / "good").exists()


def test_a_file_that_is_no_python_file_is_refused_as_a_rule(tmp_path):
    with pytest.raises(AgentError, match="is not a Python file"):
        fetch_source("s3://b/rules.zip", tmp_path, store=FakeStore())


def test_nothing_is_left_running_when_it_is_ended_at_once(setup, run):
    rules = run(plan())
    rules.abort()
    assert rules.join(LIMIT_S)
    assert setup.last()[0][0] == "Stopped"
    assert not any(thread.name == "rules" for thread in threading.enumerate())
