"""The agent of a pool's host: one attempt after another, and the conditions of its exit."""

import threading
import time

import pytest

from clary.agent.service_client import AttemptOver, ServiceUnreachable
from clary.agent.supervisor.pool_agent import PoolAgent
from clary.agent.supervisor.supervisor import EXIT_FAILED, EXIT_RELEASED, EXIT_TERMINATED
from clary.contract.agent_protocol import PoolAssignment

LIMIT_S = 20.0


class FakeAssignments:
    """Returns or raises the items of a list; after the last item it blocks until the wait is broken off."""

    def __init__(self, answers):
        self.answers = list(answers)
        self.asked = []
        self.broken_off = threading.Event()

    def next_assignment(self, after, *, wait_s):
        self.asked.append(after)
        if not self.answers:
            assert self.broken_off.wait(LIMIT_S)
            raise ServiceUnreachable("broken off")
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def break_off(self):
        self.broken_off.set()


class FakeAttempt:
    """Ends with a code, or when it is terminated."""

    def __init__(self, assignment, code, *, is_last):
        self.assignment = assignment
        self.is_last = is_last
        self.code = code
        self.began = threading.Event()
        self.told = threading.Event()

    def run(self):
        self.began.set()
        if self.code is None:
            assert self.told.wait(LIMIT_S)
            return EXIT_TERMINATED
        return self.code

    def terminate(self, why):
        self.why = why
        self.told.set()


class FakeBetween:
    """Counts calls."""

    def __init__(self):
        self.num_prepared = self.num_closed = 0

    def prepare(self):
        self.num_prepared += 1

    def close(self):
        self.num_closed += 1


def assignment(job):
    return PoolAssignment(job=job, attempt=1, token=f"token of {job}")


def serve(answers, codes=(EXIT_RELEASED,) * 9, *, last="", **options):
    assignments, attempts = FakeAssignments(answers), []
    left = list(codes)

    def make_attempt(found):
        attempts.append(FakeAttempt(found, left.pop(0), is_last=found.job == last))
        return attempts[-1]

    between = options.pop("between", FakeBetween())
    agent = PoolAgent(assignment("a"), assignments, make_attempt=make_attempt, between=lambda: between, **options)
    return agent, assignments, attempts


def test_attempts_are_served_in_order_and_each_request_names_the_previous_one():
    over = AttemptOver("the pool has ended")
    between = FakeBetween()
    agent, assignments, attempts = serve([None, assignment("b"), over], between=between)
    assert agent.run() == EXIT_RELEASED
    assert (between.num_prepared, between.num_closed) == (2, 1)
    assert [attempt.assignment.job for attempt in attempts] == ["a", "b"]
    assert assignments.asked == ["a:1", "a:1", "b:1"]


@pytest.mark.parametrize(("last", "asked", "num_prepared"), [("a", [], 0), ("b", ["a:1"], 1)])
def test_a_host_exits_with_its_last_attempt_without_preparing_for_another(last, asked, num_prepared):
    between = FakeBetween()
    agent, assignments, attempts = serve([assignment("b")], last=last, between=between)
    assert agent.run() == EXIT_RELEASED
    assert attempts[-1].assignment.job == last
    assert assignments.asked == asked
    assert between.num_prepared == between.num_closed == num_prepared


def test_a_request_to_an_unreachable_service_is_retried():
    away = ServiceUnreachable("away")
    agent, _, attempts = serve([away, away, assignment("b"), AttemptOver("over")])
    assert agent.run() == EXIT_RELEASED
    assert len(attempts) == 2


def test_a_service_that_stays_unreachable_ends_the_agent():
    agent, _, attempts = serve([ServiceUnreachable("away")] * 50, orphan_s=0.0)
    assert agent.run() == EXIT_RELEASED
    assert len(attempts) == 1


@pytest.mark.parametrize("code", [EXIT_FAILED, EXIT_TERMINATED])
def test_a_host_whose_attempt_failed_serves_no_other_attempt(code):
    agent, assignments, attempts = serve([assignment("b")], codes=[code])
    assert agent.run() == code
    assert len(attempts) == 1
    assert assignments.asked == []


def test_a_signal_reaches_the_attempt_that_runs():
    agent, _, attempts = serve([], codes=[None])
    codes = []
    thread = threading.Thread(target=lambda: codes.append(agent.run()), daemon=True)
    thread.start()
    deadline_s = time.monotonic() + LIMIT_S
    while not (attempts and attempts[0].began.is_set()) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    agent.terminate("SIGUSR1")
    thread.join(LIMIT_S)
    assert codes == [EXIT_TERMINATED]
    assert attempts[0].told.is_set()
    assert attempts[0].why == "SIGUSR1"


def test_sigterm_ends_a_host_that_waits():
    agent, assignments, _ = serve([])
    codes = []
    thread = threading.Thread(target=lambda: codes.append(agent.run()), daemon=True)
    thread.start()
    deadline_s = time.monotonic() + LIMIT_S
    while not assignments.asked and time.monotonic() < deadline_s:
        time.sleep(0.01)
    agent.terminate()
    thread.join(LIMIT_S)
    assert codes == [EXIT_TERMINATED]
