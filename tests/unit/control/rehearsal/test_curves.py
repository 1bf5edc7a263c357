"""Losses of twin and rehearsal as curves: steps that count and repeated steps, in a bounded number of points."""

import math

from rehearsal_runs import NUM_STEPS, READER, attempt, loss_of, run, twin

from clary.control.rehearsal.curves import MAX_POINTS, curves_of
from clary.control.rehearsal.history import Attempt


def test_undone_steps_are_separated_from_the_steps_that_count():
    found = curves_of(twin(), run(attempt(1, 1, 18, end="reclaimed"), attempt(2, 16, NUM_STEPS)))
    assert found["steps"] is True
    assert [step for step, _ in found["twin"]] == list(range(1, NUM_STEPS + 1))
    assert found["rehearsal"] == found["twin"]
    assert found["undone"] == [[(step, round(loss_of(step), 6)) for step in (16, 17, 18)]]
    assert found["resumes"] == [16]


def test_a_rehearsal_that_was_never_run_has_no_curve():
    found = curves_of(twin(), run())
    assert (len(found["twin"]), found["rehearsal"], found["undone"]) == (NUM_STEPS, [], [])
    assert curves_of(run(), run())["twin"] == []


def test_long_curves_keep_their_ends_and_stay_short():
    many = attempt(1, 1, 3000)
    points = curves_of(run(many), run())["twin"]
    assert len(points) == MAX_POINTS
    assert (points[0][0], points[-1][0]) == (1, 3000)


def test_steps_that_restart_in_each_epoch_are_counted_on():
    lines = [f"epoch {epoch} step {step} loss {epoch + step / 10:.2f}" for epoch in (1, 2) for step in (1, 2, 3)]
    read = Attempt(number=1, readings=tuple(READER.read_all(lines)))
    found = curves_of(run(read), run(read))
    assert found["steps"] is False
    assert [place for place, _ in found["twin"]] == [0, 1, 2, 3, 4, 5]


def test_losses_that_are_no_numbers_are_left_out():
    broken = attempt(1, 1, 4, loss=lambda step: math.nan if step == 2 else loss_of(step))
    assert [step for step, _ in curves_of(run(broken), run())["twin"]] == [1, 3, 4]
