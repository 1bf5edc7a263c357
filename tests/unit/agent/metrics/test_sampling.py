"""The thread that measures: punctual, robust against broken sources, and never a delay for other threads."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.agent.metrics.row_store import RowStore
from clary.agent.metrics.sampling import Sampling, next_beat_s
from clary.base.clock import SystemClock

DEADLINE_S = 20.0


class FakeSource:
    """Counts its reads, and raises when a test sets it to."""

    def __init__(self, name: str = "host/cpu_percent", *, breaks_at: int = 0) -> None:
        self.name = name
        self.num_asked = 0
        self.num_closed = 0
        self._breaks_at = breaks_at

    def read(self, now_s: float) -> dict[str, float]:
        self.num_asked += 1
        if self.num_asked == self._breaks_at:
            raise OSError("the disk is gone")
        return {self.name: float(self.num_asked)}

    def close(self) -> None:
        self.num_closed += 1


class FakeSteppedClock:
    """A time of day that steps while monotonic time passes."""

    def __init__(self) -> None:
        self.offset_s = 0.0
        self.now_s = 1000.0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now_s + self.offset_s)

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def sampling_of():
    made: list[Sampling] = []

    def build(*sources: FakeSource, store: RowStore, interval_s: float = 0.01, **options: object) -> Sampling:
        made.append(Sampling(list(sources), store=store, clock=SystemClock(), interval_s=interval_s, **options))
        made[-1].start()
        return made[-1]

    yield build
    for sampling in made:
        sampling.abort()
        assert sampling.join(DEADLINE_S)


def wait_until(holds) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def test_every_row_has_the_values_of_every_source_and_the_marks(sampling_of):
    store, one, other = RowStore(), FakeSource(), FakeSource("rank-0/cpu_percent")
    sampling = sampling_of(one, other, store=store, marks=lambda: {"host/phase": 2.0})
    wait_until(lambda: store.end >= 3)
    sampling.abort()
    assert sampling.join(DEADLINE_S)
    batch = store.batch()
    assert batch.names == ("host/phase", "host/cpu_percent", "rank-0/cpu_percent")
    assert batch.columns[1] == batch.columns[2] == tuple(float(n + 1) for n in range(len(batch.at_ms)))
    assert one.num_closed == other.num_closed == 1


def test_a_source_that_fails_is_left_out_and_the_others_are_read(sampling_of, caplog):
    store, good, bad = RowStore(), FakeSource(), FakeSource("gpu-0/power_w", breaks_at=2)
    sampling_of(bad, good, store=store)
    wait_until(lambda: good.num_asked > 5)
    assert bad.num_asked == 2
    assert bad.num_closed == 1
    assert "FakeSource is not read any more" in caplog.text


def test_a_source_can_be_added_and_removed_during_measurement(sampling_of):
    class FakeProgramSource(FakeSource):
        pass

    store, source = RowStore(), FakeProgramSource()
    sampling = sampling_of(store=store)
    sampling.add(lambda: source)
    wait_until(lambda: source.num_asked > 1)
    sampling.remove(FakeProgramSource)
    wait_until(lambda: source.num_closed)
    asked = source.num_asked
    before = store.end
    wait_until(lambda: store.end > before + 2)
    assert source.num_asked == asked


def test_a_source_that_cannot_be_made_does_not_stop_the_measurement(sampling_of, caplog):
    store = RowStore()
    sampling = sampling_of(store=store)

    def make() -> FakeSource:
        raise ProcessLookupError("the program has ended already")

    sampling.add(make)
    before = store.end
    wait_until(lambda: store.end > before + 2)
    assert "could not be made" in caplog.text


def test_closing_does_not_wait_for_a_source_that_hangs(sampling_of):
    held = threading.Event()

    class FakeHungSource(FakeSource):
        def read(self, now_s: float) -> dict[str, float]:
            held.wait(DEADLINE_S)
            return {}

    sampling = sampling_of(FakeHungSource(), store=RowStore())
    sampling.abort()
    assert not sampling.join(0.05)
    held.set()


def test_an_expensive_source_is_read_less_often(sampling_of):
    class FakeDearSource(FakeSource):
        def read(self, now_s: float) -> dict[str, float]:
            until_s = time.thread_time() + 0.02
            while time.thread_time() < until_s:
                pass
            return super().read(now_s)

    source, began_s = FakeDearSource(), time.monotonic()
    sampling_of(source, store=RowStore(), interval_s=0.01)
    wait_until(lambda: source.num_asked >= 3)
    assert time.monotonic() - began_s >= 2 * 0.02 / 0.04, "each costs 20 ms, of which one core may give 4 %"


def test_times_of_rows_never_go_back_and_follow_the_clock_forward():
    clock = FakeSteppedClock()
    sampling = Sampling([], store=RowStore(), clock=clock, interval_s=1.0)
    times = []
    for offset_s in (0.0, -3600.0, -3600.0, 0.0, 7200.0, 7200.0):
        clock.offset_s = offset_s
        clock.now_s += 1
        times.append(sampling._time_ms())
    steps = [after - before for before, after in pairwise(times)]
    assert steps == [1000, 1000, 1000, 7_201_000, 1000]


@given(st.floats(0, 1e6), st.floats(0, 1e4), st.floats(0.1, 60))
def test_the_next_beat_is_ahead_by_one_interval_at_most(beat_s, late_s, interval_s):
    now_s = beat_s + late_s
    due_s = next_beat_s(beat_s, now_s=now_s, interval_s=interval_s)
    assert now_s < due_s or now_s == pytest.approx(due_s)
    assert due_s - now_s <= interval_s * 1.000001 + 1e-6


def test_missed_beats_are_skipped_and_the_rhythm_is_kept():
    assert next_beat_s(10.0, now_s=10.1, interval_s=0.5) == 10.5
    assert next_beat_s(10.0, now_s=12.2, interval_s=0.5) == pytest.approx(12.5)


def test_a_new_interval_takes_effect_at_once(sampling_of):
    store = RowStore()
    sampling = sampling_of(FakeSource(), store=store, interval_s=3600.0)
    wait_until(lambda: store.end >= 1)
    sampling.measure_every(0.01)
    wait_until(lambda: store.end >= 5)
    sampling.measure_every(0.01)  # setting the same interval again changes nothing
