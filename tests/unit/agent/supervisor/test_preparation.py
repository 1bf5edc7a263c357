"""Parts of the preparation that read the object store, while it does not answer for a moment."""

from __future__ import annotations

import threading
import time

import pytest
from fake_steps import FakeSteps

from clary.agent.supervisor import preparation
from clary.agent.supervisor.preparation import Preparation
from clary.base.errors import AgentError, Fault, ObjectStoreError


class Prepared:
    """A preparation that has begun, with its sentences and its outcome."""

    def __init__(self, steps: FakeSteps) -> None:
        self.sentences: list[str] = []
        self.timings: dict[str, float] = {}
        self.error: Exception | None = None
        self.is_done = threading.Event()
        self.preparation = Preparation(
            steps, on_timing=self.timings.__setitem__, on_done=self._end, on_wait=self.sentences.append
        )
        self.preparation.start()

    def _end(self, error: Exception | None) -> None:
        self.error = error
        self.is_done.set()


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch):
    """Return a function that makes steps which fail in some parts, a number of times or for ever."""
    monkeypatch.setattr(preparation, "_PAUSE_S", 0.01)

    def build(error: Exception, *, times: dict[str, int]) -> FakeSteps:
        left = dict(times)
        steps = FakeSteps(channels=["training"])

        def on_step(name: str) -> None:
            if left.get(name, 0):
                left[name] -= 1
                raise error

        steps.on_step = on_step
        return steps

    return build


def test_parts_are_fetched_again_while_the_store_does_not_answer(fails) -> None:
    error = ObjectStoreError("GET s3://bucket/x: no answer.", retryable=True)
    host = Prepared(fails(error, times={"channel:training": 3, "code": 1}))
    assert host.is_done.wait(10)
    assert host.error is None
    assert {"channel:training", "code"} <= set(host.timings)
    assert sorted(host.sentences) == [
        f"{part} could not be fetched yet, and is fetched again for 120 s: GET s3://bucket/x: no answer."
        for part in ("channel:training", "code")
    ]


def test_a_store_that_stays_away_ends_the_preparation_after_a_while(fails, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "FETCH_PATIENCE_S", 0.2)
    error = ObjectStoreError("GET s3://bucket/x: no answer.", retryable=True)
    began_s = time.monotonic()
    host = Prepared(fails(error, times={"channel:training": 1000}))
    assert host.is_done.wait(10)
    assert host.error is error
    assert time.monotonic() - began_s >= 0.2


@pytest.mark.parametrize(
    "error", [ObjectStoreError("S3 answered 404.", fault=Fault.USER), AgentError("full", retryable=True)]
)
def test_other_errors_end_the_preparation_at_once(fails, error: Exception) -> None:
    host = Prepared(fails(error, times={"channel:training": 1}))
    assert host.is_done.wait(10)
    assert (host.error, host.sentences) == (error, [])


def test_an_abort_ends_the_repetitions(fails, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "_PAUSE_S", 30.0)
    error = ObjectStoreError("GET s3://bucket/x: no answer.", retryable=True)
    host = Prepared(fails(error, times={"code": 1000}))
    deadline_s = time.monotonic() + 10
    while not host.sentences and time.monotonic() < deadline_s:
        time.sleep(0.01)
    host.preparation.abort()
    assert host.preparation.join(5)
    assert not host.is_done.is_set()
