"""Tables: the rows of a batch that are stored, and the joining of tables."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from series_tables import START_MS, plain, rows

from clary.contract.metric_samples import SampleBatch
from clary.control.series.tables import MOST, joined, table_of

VALUES = st.one_of(st.none(), st.floats(), st.floats(width=32), st.sampled_from([3.5e38, -3.5e38, 0.0, MOST, -MOST]))


@given(column=st.lists(VALUES, max_size=8))
def test_a_value_that_no_32_bit_float_holds_is_stored_as_missing(column):
    batch = SampleBatch(
        first_row=0,
        at_ms=tuple(range(START_MS, START_MS + len(column))),
        names=("host/x",),
        columns=(tuple(column),),
    )
    (kept,) = table_of(batch).columns["host/x"]
    assert len(kept) == len(column)
    for value, given_value in zip(kept, column, strict=True):
        if given_value is not None and -MOST <= given_value <= MOST:
            assert value == pytest.approx(given_value, rel=1e-6, abs=1e-44)
        else:
            assert math.isnan(value)


@given(
    tables=st.lists(
        st.tuples(st.integers(0, 5), st.integers(-3, 3), st.sets(st.sampled_from("abc"), min_size=1)),
        min_size=1,
        max_size=6,
    )
)
def test_joined_tables_keep_each_value_at_its_time_whatever_columns_and_clocks(tables):
    made, expected, number = [], [], 0.0
    for num_rows, shift, names in tables:
        start_ms = START_MS + 2_000 * (len(made) + shift)
        made.append(
            rows({f"host/{name}": [number + row for row in range(num_rows)] for name in names}, start_ms=start_ms)
        )
        expected += [(at, {f"host/{name}": number + row for name in names}) for row, at in enumerate(made[-1].at_ms)]
        number += 100
    at_ms, columns, _ = plain(joined(made))
    found = [
        (at, {name: column[0][row] for name, column in columns.items() if column[0][row] is not None})
        for row, at in enumerate(at_ms)
    ]
    assert found == sorted(expected, key=lambda row: row[0])
