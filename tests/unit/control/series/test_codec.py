"""Blocks of series: decoding returns the encoded table, and damaged blocks raise."""

import math
import random
import zlib
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from series_tables import START_MS, measured, plain, rows

from clary.control.series import codec
from clary.control.series.codec import SeriesDamaged, names_in, pack, unpack
from clary.control.series.rollups import fold
from clary.control.series.tables import SeriesTable, joined

FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=False)


@given(
    gaps=st.lists(st.integers(0, 10**7), max_size=40),
    seeds=st.lists(FLOATS, min_size=1, max_size=6),
    num_columns=st.integers(0, 5),
)
def test_a_packed_table_is_unpacked_unchanged(gaps, seeds, num_columns):
    at_ms = array("q")
    for gap in gaps:
        at_ms.append((at_ms[-1] if at_ms else START_MS) + gap)
    columns = {
        f"rank-{index}/x": (array("f", [seeds[(row + index) % len(seeds)] for row in range(len(gaps))]),)
        for index in range(num_columns)
    }
    table = SeriesTable(at_ms=at_ms, columns=columns)
    assert plain(unpack(pack(table))) == plain(table)


@pytest.mark.parametrize("num_rows", [0, 1, 10, 5000])
def test_rows_and_roll_ups_of_any_length_are_unpacked_unchanged(num_rows):
    for table in (measured(num_rows), fold(measured(num_rows), 10_000)):
        assert plain(unpack(pack(table))) == plain(table)


def test_values_that_were_not_measured_stay_missing():
    table = rows({"host/x": [1.5, None, 0.0, None], "host/y": [None] * 4})
    assert plain(unpack(pack(table)))[1] == {"host/x": [[1.5, None, 0.0, None]], "host/y": [[None] * 4]}


def test_one_series_is_read_from_a_large_block_without_inflating_the_others(monkeypatch):
    table = measured(5000, num_ranks=6)
    data = pack(table)
    inflated = []
    inflate = codec._inflated
    monkeypatch.setattr(codec, "_inflated", lambda raw, most: inflated.append(len(raw)) or inflate(raw, most))
    found = unpack(data, wanted=lambda name: name == "rank-3/cpu_percent")
    assert plain(found)[1] == {"rank-3/cpu_percent": plain(table)[1]["rank-3/cpu_percent"]}
    assert len(inflated) == 2  # the header and one column


@pytest.mark.parametrize("place", range(0, 400, 7))
def test_a_block_with_one_wrong_bit_is_reported_as_damaged(place):
    data = bytearray(pack(measured(100)))
    data[place * len(data) // 400] ^= 0x10
    with pytest.raises(SeriesDamaged, match="block 7 of host algo-1 of series is damaged"):
        unpack(bytes(data), place="block 7 of host algo-1")


def test_truncated_and_forged_blocks_are_reported_as_damaged():
    data = pack(measured(50))
    chance = random.Random(3)
    for bad in (b"", b"x", data[:10], data[:-1], b"CLS1" + chance.randbytes(200), data + b"x"):
        with pytest.raises(SeriesDamaged):
            unpack(bad)


def test_a_block_that_inflates_to_more_than_its_rows_is_rejected():
    data = pack(rows({"host/x": [1.0]}))
    length = codec._HEAD.size + codec._HEAD.unpack_from(data)[-1]
    bomb = zlib.compress(bytes(1_000_000))
    forged = bytearray(data[:length] + codec._LENGTH.pack(len(bomb)) + bomb)
    forged[4:8] = codec._LENGTH.pack(zlib.crc32(forged[8:]))
    with pytest.raises(SeriesDamaged, match="longer than its rows"):
        unpack(bytes(forged))


def test_an_hour_of_a_host_takes_less_than_two_bytes_a_value():
    table = measured(7200, num_ranks=8)
    assert len(pack(table)) < 2 * 7200 * len(table.columns)


def test_the_names_of_a_block_are_listed():
    assert names_in(pack(measured(3, num_ranks=1))) == ["host/cpu_percent", "host/memory_bytes", "rank-0/cpu_percent"]


def test_joined_tables_are_sorted_by_time_and_have_all_columns():
    first = rows({"host/x": [1.0, 2.0]})
    late = rows({"host/x": [5.0], "host/y": [6.0]}, start_ms=START_MS + 5_000)
    set_back = rows({"host/y": [3.0]}, start_ms=START_MS + 2_000)
    whole = joined([first, late, set_back])
    assert [moment - START_MS for moment in whole.at_ms] == [0, 500, 2_000, 5_000]
    assert plain(whole)[1] == {"host/x": [[1.0, 2.0, None, 5.0]], "host/y": [[None, None, 3.0, 6.0]]}


def test_nan_is_stored_as_missing():
    assert all(math.isnan(value) for value in unpack(pack(rows({"host/x": [math.nan]}))).columns["host/x"][0])


@given(num_rows=st.integers(0, 12), num_columns=st.integers(0, 12), seed=st.integers(0, 2**32))
def test_bytes_are_grouped_by_position_for_any_number_of_rows_and_columns(num_rows, num_columns, seed):
    """Blocks of earlier releases can be read: a column has the first bytes of all values, then the second bytes ..."""
    chance = random.Random(seed)
    columns = [array("f", [chance.uniform(-1e6, 1e6) for _ in range(num_rows)]) for _ in range(num_columns)]
    expected = b"".join(column.tobytes()[place::4] for column in columns for place in range(4))
    apart = bytes(codec._apart(columns, num_rows))
    assert apart == expected
    is_wanted = [chance.random() < 0.5 for _ in columns]
    found = codec._together(apart, num_rows, is_wanted)
    assert found == [column if wanted else None for column, wanted in zip(columns, is_wanted, strict=True)]


@pytest.mark.parametrize("num_rows", [1, 3, 40])
def test_some_series_are_read_from_a_small_block_of_many(num_rows):
    table = measured(num_rows, num_ranks=30)
    found = unpack(pack(table), wanted=lambda name: name.startswith("rank-2"))
    expected = {name: values for name, values in plain(table)[1].items() if name.startswith("rank-2")}
    assert plain(found)[:2] == (plain(table)[0], expected)
    assert len(expected) == 11
