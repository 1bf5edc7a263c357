"""Roll-ups: minimum, maximum, mean, count and last value of spans of time, computed from rows and from roll-ups."""

import math
import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from series_tables import START_MS, measured, plain, rows

from clary.control.series.rollups import fold
from clary.control.series.tables import SeriesTable, between, joined


def test_each_span_summarises_its_rows():
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
def test_roll_ups_of_roll_ups_equal_those_of_the_rows(seed):
    """Values are missing at random, and the rows are cut at a random time before they are folded."""
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


def test_folded_values_equal_those_that_python_computes():
    table = measured(500)
    folded = fold(table, 60_000)
    values = list(table.columns["host/cpu_percent"][0])[:120]
    least, greatest, mean, count, last = (part[0] for part in folded.columns["host/cpu_percent"])
    assert (least, greatest, count, last) == (min(values), max(values), 120, values[-1])
    assert mean == pytest.approx(math.fsum(values) / 120)


def _straightforward(at_ms, values, step_ms):
    """Return start -> minimum, maximum, mean, count and last value, computed straightforwardly from the definition."""
    found = {}
    for moment in dict.fromkeys(moment // step_ms * step_ms for moment in at_ms):
        own = [
            value
            for at, value in zip(at_ms, values, strict=True)
            if at // step_ms * step_ms == moment and not math.isnan(value)
        ]
        mean = math.fsum(own) / len(own) if own else math.nan
        found[moment] = (min(own), max(own), mean, len(own), own[-1]) if own else (None, None, None, 0, None)
    return found


@given(
    gaps=st.lists(st.integers(0, 9_000), min_size=1, max_size=60),
    values=st.lists(st.one_of(st.floats(width=32, allow_infinity=False), st.sampled_from([0.0, 7.5])), min_size=1),
    is_level=st.booleans(),
)
def test_columns_with_gaps_constant_columns_and_others_are_folded_by_the_definition(gaps, values, is_level):
    at_ms = array("q")
    for gap in gaps:
        at_ms.append((at_ms[-1] if at_ms else START_MS) + gap)
    column = array("f", [values[0 if is_level else row % len(values)] for row in range(len(gaps))])
    folded = fold(SeriesTable(at_ms=at_ms, columns={"host/x": (column,)}), 10_000)
    expected = _straightforward(at_ms, column, 10_000)
    assert list(folded.at_ms) == list(expected)
    least, greatest, mean, count, last = plain(folded)[1]["host/x"]
    wanted = list(zip(*expected.values(), strict=True))
    assert [least, greatest, count, last] == [list(wanted[part]) for part in (0, 1, 3, 4)]
    assert mean == pytest.approx(list(wanted[2]), rel=1e-6, abs=1e-30)


def test_a_series_that_is_missing_in_some_blocks_is_folded_from_the_others():
    first = fold(rows({"host/x": [1.0, 3.0], "host/y": [5.0, 6.0]}), 1_000)
    second = fold(rows({"host/x": [7.0]}, start_ms=START_MS + 1_000), 1_000)
    _, columns, _ = plain(fold(joined([first, second]), 10_000))
    assert columns == {
        "host/x": [[1.0], [7.0], [pytest.approx(11 / 3)], [3.0], [7.0]],
        "host/y": [[5.0], [6.0], [5.5], [2.0], [6.0]],
    }
