"""A window as a strip of cells: each cell shows its largest part; windows of any length are covered to both ends."""

import pytest
from trace_events import event, trace_of

from clary.control.traces.rank_summary import summarize
from clary.control.traces.strips import NUM_CELLS, strip


def test_each_cell_shows_the_part_that_took_most_of_it():
    end = float(NUM_CELLS)
    found = strip({"c": [(0.0, 10.0)], "x": [(10.0, 10.4), (20.0, 30.0)], "d": [(30.0, end)]}, begin=0.0, end=end)
    assert len(found) == NUM_CELLS
    assert found[:32] == "c" * 10 + "." * 10 + "x" * 10 + "dd"
    assert set(found[30:]) == {"d"}


def test_many_short_times_add_up_within_a_cell():
    times = [(index / 10, index / 10 + 0.06) for index in range(10 * NUM_CELLS)]
    assert set(strip({"c": times}, begin=0.0, end=float(NUM_CELLS))) == {"c"}


def test_times_beyond_the_window_do_not_count():
    assert set(strip({"c": [(-50.0, -1.0), (20.0, 90.0)]}, begin=0.0, end=10.0)) == {"."}


@pytest.mark.parametrize("end", [0.0, -1.0])
def test_a_window_without_length_has_no_strip(end):
    assert strip({"c": [(0.0, 1.0)]}, begin=0.0, end=end) == ""


def test_a_rank_has_a_strip_and_the_bounds_of_its_steps():
    found = summarize(trace_of([event("aten::mm", 0, 50)], bounds=(0, 50, 100)))
    half = NUM_CELLS // 2
    assert found["strip"] == "c" * half + "." * half
    assert found["bounds_ms"] == [0.0, pytest.approx(50, abs=0.01), pytest.approx(100, abs=0.01)]
    timed = summarize(trace_of([event("aten::mm", 0, 50)], by_time=True))
    assert timed["bounds_ms"] == []
