"""A background thread starts, is flushed, ends in order or at once, and reports its failure."""

from __future__ import annotations

import threading
import time

import pytest

from clary.agent.worker import Worker

WAIT_S = 20.0


class FakeWork(Worker):
    """Counts its rounds; each returns the next configured pause."""

    def __init__(self, pauses: list[float | None] | None = None, *, pause_s: float = 3600.0, last: int = 0) -> None:
        super().__init__("fake-work", failure="the fake work has failed")
        self._pauses = iter(pauses or [])
        self._pause_s = pause_s
        self.num_last = last  # number of rounds still to do after a stop
        self.rounds = 0
        self.failures: list[Exception] = []
        self.ends = 0
        self.begun = threading.Semaphore(0)

    def _round(self) -> float | None:
        self.rounds += 1
        self.begun.release()
        if self.is_stopping:
            self.num_last -= 1
            return 0.0 if self.num_last > 0 else None
        pause = next(self._pauses, self._pause_s)
        if pause is not None and pause < 0:
            raise KeyError("a defect")
        return pause

    def _on_failure(self, error: Exception) -> None:
        self.failures.append(error)

    def _on_end(self) -> None:
        self.ends += 1


def test_rounds_repeat_until_one_returns_that_it_was_the_last():
    work = FakeWork([0.0, 0.0, None])
    work.start()
    assert work.join(WAIT_S)
    assert (work.rounds, work.ends, work.has_ended) == (3, 1, True)


def test_a_flush_ends_the_pause_and_a_flush_during_a_round_is_not_lost():
    work = FakeWork()
    work.flush()  # flush before the start
    work.start()
    for _ in range(3):
        assert work.begun.acquire(timeout=WAIT_S)
        work.flush()
    assert work.begun.acquire(timeout=WAIT_S)
    assert work.close(WAIT_S)


@pytest.mark.parametrize("wake", [Worker.stop, Worker.flush])
def test_a_call_during_a_pause_within_a_round_begins_the_next_round_at_once(wake):
    class Settling(FakeWork):
        def _round(self) -> float | None:
            pause = super()._round()
            if self.rounds == 1:
                self.pause(WAIT_S)
            return pause

    work = Settling()
    work.start()
    assert work.begun.acquire(timeout=WAIT_S)
    wake(work)
    assert work.begun.acquire(timeout=WAIT_S / 2), "the pause within the round has used up the call"
    assert work.close(WAIT_S)


def test_a_round_after_a_stop_may_pause():
    class Settling(FakeWork):
        took_s = 0.0

        def _round(self) -> float | None:
            began_s = time.monotonic()
            if self.is_stopping:
                self.pause(0.05)
                self.took_s = time.monotonic() - began_s
            return super()._round()

    work = Settling()
    work.start()
    assert work.begun.acquire(timeout=WAIT_S)
    assert work.finish(WAIT_S)
    assert work.took_s >= 0.05


def test_stop_completes_the_remaining_rounds():
    work = FakeWork(last=3)
    work.start()
    assert work.begun.acquire(timeout=WAIT_S)
    work.stop()
    assert work.join(WAIT_S)
    assert (work.rounds, work.num_last) == (4, 0)


def test_abort_begins_no_further_round_and_may_be_repeated():
    work = FakeWork(last=1000)
    work.start()
    assert work.begun.acquire(timeout=WAIT_S)
    work.abort()
    work.abort()
    work.stop()
    assert work.join(WAIT_S)
    assert (work.rounds, work.ends) == (1, 1)
    assert not work.pause(3600.0), "nothing waits in a worker that is aborted"


def test_an_exception_in_a_round_ends_the_thread_and_is_logged_and_reported(caplog):
    work = FakeWork([-1.0])
    work.start()
    assert work.join(WAIT_S)
    assert [type(error) for error in work.failures] == [KeyError]
    assert "the fake work has failed" in caplog.text
    assert (work.ends, work.has_ended) == (1, True)


def test_a_join_ends_at_its_deadline_or_when_it_is_vain():
    work = FakeWork()
    work.start()
    assert work.begun.acquire(timeout=WAIT_S)
    began_s = time.monotonic()
    assert not work.join(0.05)
    assert not work.join(WAIT_S, is_vain=lambda: True)
    assert 0.05 <= time.monotonic() - began_s < WAIT_S / 2
    assert work.close(WAIT_S)


def test_close_of_an_unstarted_worker_returns_at_once():
    work = FakeWork()
    assert work.close(WAIT_S)
    assert work.rounds == 0


def test_a_round_may_close_its_own_worker():
    class Closing(FakeWork):
        def _round(self) -> float | None:
            assert self.close(WAIT_S)
            return super()._round()

    work = Closing()
    work.start()
    assert work.join(WAIT_S)
    assert work.rounds == 1
