"""Progress read from a program's output: bars, steps, epochs; and the remaining time."""

from __future__ import annotations

import json
import time
import tracemalloc
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.agent.training import progress_watch
from clary.agent.training.progress_watch import ProgressWatch, RateEstimate
from clary.agent.training.progress_words import may_hold_progress, of_trainer_state, sign_in
from clary.testing.fake_clock import FakeClock


@pytest.fixture
def clock():
    return FakeClock(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("line", "kind", "done", "total"),
    [
        (" 45%|####5     | 450/1000 [00:12<00:15, 36.5it/s]", "bar", 450, 1000),
        ("Epoch 3:  45%|####5     | 450/1000 [00:12<00:15, 36.5it/s, loss=0.1]", "bar", 450, 1000),
        (" 10%|\u2588         | 1.2k/12k [1:00:12<09:15:00, 3.5it/s]", "bar", 1200, 12000),
        ("Epochs:  30%|###       | 3/10 [00:12<00:15, 1.0s/it]", "epoch", 3, 10),
        ("Epoch 3/10 loss=0.5", "epoch", 3, 10),
        ("step 120/1000 loss 0.5", "step", 120, 1000),
        ("[Step 120 / 1000]", "step", 120, 1000),
        ("iter: 120 of 1000", "step", 120, 1000),
        ("Epoch [2/3], Step [120/1000], Loss: 0.3", "step", 120, 1000),
    ],
)
def test_usual_forms_are_read(line, kind, done, total):
    assert may_hold_progress(line)
    found = sign_in(line)
    assert found is not None
    assert (found.kind, found.done, found.total) == (kind, done, total)


@pytest.mark.parametrize(
    "line",
    [
        "loss: 0.5",
        "{'loss': 0.5, 'epoch': 0.12}",
        "Downloading shards:  45%|####5     | 450/1000 [00:12<00:15, 36.5it/s]",
        "Loading checkpoint shards: 100%|##########| 3/3 [00:01<00:00]",
        "Map:  45%|####5     | 450/1000 [00:12<00:15]",
        "Evaluating:  45%|####5     | 450/1000 [00:12<00:15]",
        "step 1200/1000",
        "45% of 3/4 are done",
        "  0%|          | 0/0 [00:00<?, ?it/s]",
        "reading /data/step/3/4",
    ],
)
def test_output_other_than_training_is_no_progress(line):
    assert sign_in(line) is None


@given(st.text(max_size=600))
def test_hostile_lines_never_raise(line):
    found = sign_in(line)
    assert found is None or found.total is None or 0 <= found.done <= found.total


@pytest.mark.parametrize(
    "line",
    [
        "50%|##| 500000000000G/999999999999999G [00:01<00:02]",
        "Epoch 1/999999999 50%|##| 500000000000/999999999999999 [00:01<00:02]",
        "Epoch 7/999999999 step 3/999999999999999",
    ],
)
def test_progress_never_exceeds_the_services_limits(clock, line):
    watch = ProgressWatch(clock)
    watch.feed([line], rank=0)
    current = watch.current()
    assert current is None or current.total < 10**15


def test_an_error_in_reading_progress_does_not_affect_the_output(clock, monkeypatch, caplog):
    def fail(line):
        raise KeyError(line)

    monkeypatch.setattr(progress_watch, "sign_in", fail)
    watch = ProgressWatch(clock)
    for _ in range(3):
        watch.feed(["step 1/2"], rank=0)
    assert watch.current() is None
    assert caplog.text.count("are not read for progress") == 1


def test_an_absurdly_long_remaining_time_is_not_reported():
    rate = RateEstimate()
    for second in range(5):
        rate.add(float(second), second * 1e-6)
    assert rate.eta_s(1e14) is None


def test_hostile_lines_do_not_take_long():
    began_s = time.process_time()
    for text in (
        "%|" * 5000,
        "1" * 5000,
        "9%|" + "|" * 5000,
        "step " * 2000,
        "Epoch " + "1/" * 3000,
        " " * 5000 + "%|",
    ):
        sign_in(text)
    assert time.process_time() - began_s < 5.0


def feed(watch, clock, lines, *, every_s=2.0):
    for line in lines:
        watch.feed([line], rank=0)
        clock.advance(every_s)
        watch.current()


def test_the_time_left_is_known_after_a_few_points_and_follows_the_rate(clock):
    watch = ProgressWatch(clock)
    assert watch.current() is None
    watch.feed(["  1%|#  | 10/1000 [00:02<00:15, 5it/s]"], rank=0)
    assert watch.current().eta_s is None, "nobody knows the rate yet"
    clock.advance(2.0)
    feed(watch, clock, [f"  1%|#  | {step}/1000 [00:02<00:15, 5it/s]" for step in range(20, 101, 10)])
    progress = watch.current()
    assert (progress.done, progress.total, progress.percent) == (100, 1000, 10.0)
    assert progress.eta_s == pytest.approx(900 / 5, rel=0.01)


def test_one_slow_step_does_not_change_the_time_left(clock):
    watch = ProgressWatch(clock)
    feed(watch, clock, [f"step {step}/1000" for step in range(10, 101, 10)])
    clock.advance(60.0)  # one slow step, as at a checkpoint
    feed(watch, clock, [f"step {step}/1000" for step in range(110, 151, 10)])
    assert watch.current().eta_s == pytest.approx(850 / 5, rel=0.35)


def test_bars_of_epochs_add_up_to_the_whole_training(clock):
    watch = ProgressWatch(clock)
    feed(watch, clock, ["Epoch 2/4", " 50%|#####     | 50/100 [00:12<00:15, 36.5it/s]"])
    progress = watch.current()
    assert (progress.done, progress.total, progress.epoch, progress.max_epoch) == (150, 400, 2, 4)
    assert (progress.step_in_epoch, progress.steps_per_epoch) == (50, 100)


def test_an_outer_bar_of_epochs_says_which_epoch_the_inner_bar_is_of(clock):
    watch = ProgressWatch(clock)
    feed(watch, clock, ["Epochs:  25%|##| 1/4 [00:30<01:30]", " 50%|#####     | 50/100 [00:12<00:15, 36.5it/s]"])
    assert (watch.current().done, watch.current().total, watch.current().epoch) == (150, 400, 2)


def test_a_bar_that_continues_past_an_epoch_counts_the_whole_training(clock):
    watch = ProgressWatch(clock)
    feed(watch, clock, ["Epoch 1/2", " 40%|####      | 40/100 [00:12<00:15]", "Epoch 2/2"])
    feed(watch, clock, [" 60%|######    | 60/100 [00:12<00:15]"])
    assert (watch.current().done, watch.current().total) == (60, 100)
    feed(watch, clock, ["global step 70/100"])


def test_a_short_bar_does_not_replace_the_progress_of_the_training(clock):
    watch = ProgressWatch(clock)
    feed(watch, clock, [f"  1%|#  | {step}/1000 [{step // 60:02}:{step % 60:02}<00:15]" for step in range(60, 120, 10)])
    feed(watch, clock, ["saved: 100%|##########| 3/3 [00:01<00:00]", "batches 100%|##########| 7/7 [00:01<00:00]"])
    assert watch.current().total == 1000


def test_other_ranks_are_ignored_and_epochs_alone_are_progress(clock):
    watch = ProgressWatch(clock)
    watch.feed(["step 500/1000"], rank=3)
    assert watch.current() is None
    feed(watch, clock, ["Epoch 3/10"])
    progress = watch.current()
    assert (progress.done, progress.total, progress.unit, progress.percent) == (3, 10, "epochs", 30.0)


def test_the_output_of_a_verbose_program_is_sampled(clock):
    watch = ProgressWatch(clock)
    for step in range(1, 1000):
        watch.feed([f"step {step}/1000"], rank=None)
    assert watch.current().done < 100
    clock.advance(1.0)
    watch.feed(["step 999/1000"], rank=None)
    assert watch.current().done == 999


def test_a_state_file_of_transformers_is_progress():
    state = {"global_step": 30, "max_steps": 90, "num_train_epochs": 3, "epoch": 1.0, "log_history": []}
    progress = of_trainer_state(json.dumps(state).encode(), at_ms=5)
    assert (progress.done, progress.total, progress.epoch, progress.max_epoch) == (30, 90, 2, 3)
    assert (progress.step_in_epoch, progress.steps_per_epoch, progress.source) == (0, 30, "trainer_state")
    for wrong in (b"", b"[]", b"{}", b'{"global_step": 5, "max_steps": 0}', b'{"global_step": NaN, "max_steps": 4}'):
        assert of_trainer_state(wrong, at_ms=5) is None


def test_a_state_of_more_values_than_a_training_writes_is_not_parsed():
    began = b'{"global_step": 10, "max_steps": 30, "log_history": ['
    assert of_trainer_state(began + b'{"loss": 1.5, "step": 2},' * 50_000 + b"{}]}", at_ms=5).done == 10
    tracemalloc.start()
    try:
        assert of_trainer_state(began + b"{}," * 1_000_000 + b"{}]}", at_ms=5) is None
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 16 * 1024 * 1024


@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e9)), max_size=40))
def test_a_rate_is_never_negative(points):
    estimate, at_s = RateEstimate(), 0.0
    for wait_s, done in points:
        at_s += wait_s
        estimate.add(at_s, done)
    eta_s = estimate.eta_s(10.0)
    assert eta_s is None or eta_s > 0


def test_a_rate_restarts_when_a_counter_falls():
    estimate = RateEstimate()
    for second in range(10):
        estimate.add(float(second), second * 10.0)
    assert estimate.eta_s(100.0) == pytest.approx(10.0)
    estimate.add(11.0, 1.0)
    assert estimate.eta_s(100.0) is None
