"""Roll-ups: least, greatest, mean, number and last of spans of time, of rows and of roll-ups."""

import math
import random

import pytest
from series_tables import START_MS, measured, plain, rows

from clary.control.series.rollups import fold
from clary.control.series.tables import between, joined


def test_each_span_says_what_was_in_it():
    table = rows({"host/x": [3.0, 1.0, 2.0, 10.0], "host/y": [None, 4.0, None, None]}, step_ms=4_000)
    folded = fold(table, 10_000)
    assert list(folded.at_ms) == [START_MS, START_MS + 10_000]
    assert plain(folded)[1] == {
        "host/x": [[1.0, 10.0], [3.0, 10.0], [2.0, 10.0], [3.0, 1.0], [2.0, 10.0]],
        "host/y": [[4.0, None], [4.0, None], [4.0, None], [1.0, 0.0], [4.0, None]],
    }


def test_spans_without_rows_are_left_out():
    table = joined([rows({"host/x": [1.0]}), rows({"host/x": [2.0]}, start_ms=START_MS + 3_600_000)])
    assert list(fold(table, 10_000).at_ms) == [START_MS, START_MS + 3_600_000]


@pytest.mark.parametrize("seed", range(20))
def test_roll_ups_of_roll_ups_are_those_of_the_rows(seed):
    """Whatever is missing, and wherever the rows were cut before they were folded."""
    chance = random.Random(seed)
    values = [None if chance.random() < 0.3 else chance.uniform(-5, 5) for _ in range(900)]
    table = rows({"host/x": values}, start_ms=START_MS + chance.randrange(10_000), step_ms=700)
    cut_ms = START_MS + chance.randrange(900 * 700)
    halves = [between(table, 0, cut_ms), between(table, cut_ms, 2**60)]
    fine = joined([fold(half, 10_000) for half in halves])
    at_ms, columns, _ = plain(fold(fine, 300_000))
    expected_at_ms, expected, _ = plain(fold(table, 300_000))
    assert at_ms == expected_at_ms
    for part, expected_part in zip(columns["host/x"], expected["host/x"], strict=True):
        assert part == pytest.approx(expected_part, abs=1e-5)


def test_what_is_folded_is_what_python_computes():
    table = measured(500)
    folded = fold(table, 60_000)
    values = list(table.columns["host/cpu_percent"][0])[:120]
    least, greatest, mean, count, last = (part[0] for part in folded.columns["host/cpu_percent"])
    assert (least, greatest, count, last) == (min(values), max(values), 120, values[-1])
    assert mean == pytest.approx(math.fsum(values) / 120)
