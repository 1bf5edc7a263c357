"""The file with a process's count of steps, and reads of it during writes."""

import struct

import pytest

from clary.contract.step_counts import (
    HEADER_BYTES,
    NUM_ROWS,
    ROW_BYTES,
    CountsHeader,
    StepCounts,
    counts_at,
    offset_of,
    pack_header,
    pack_row,
    read_header,
    read_rows,
)

HEADER = CountsHeader(2, 1000, StepCounts(40, 30, 9, -1))


def ring(*numbers: int) -> bytes:
    """Return the rows of a process whose step N has begun at time 10 * N."""
    data = bytearray(NUM_ROWS * ROW_BYTES)
    for number in numbers:
        row = pack_row(number, 10 * number, (number, number, -1, -1))
        at = offset_of(number) - HEADER_BYTES
        data[at : at + ROW_BYTES] = row
    return bytes(data)


def test_a_header_is_read_back_and_other_bytes_are_refused() -> None:
    packed = pack_header(HEADER)
    assert len(packed) == HEADER_BYTES
    assert read_header(packed) == HEADER
    assert read_header(packed[:-1]) is None
    assert read_header(b"x" + packed[1:]) is None
    assert read_header(pack_header(CountsHeader(-1, 0, StepCounts()))) is None
    assert read_header(pack_header(CountsHeader(0, 0, StepCounts(3, 4)))) is None, "more steps of a phase than steps"


def test_rows_are_read_in_order_without_torn_and_impossible_ones() -> None:
    data = bytearray(ring(*range(1, 6)))
    struct.pack_into("<q", data, offset_of(3) - HEADER_BYTES, 7)  # half overwritten by another row
    struct.pack_into("<q", data, offset_of(4) - HEADER_BYTES + 16, -9)
    assert [row.number for row in read_rows(bytes(data))] == [1, 2, 5]
    assert [row.number for row in read_rows(bytes(data)[: 2 * ROW_BYTES - 1])] == [1]
    again = pack_row(1, 10, (9, 9, -1, -1))
    assert [row.number for row in read_rows(ring(1) + again)] == [1, 1], "whatever a program has written"
    around = read_rows(ring(*range(3, NUM_ROWS + 3)))
    assert [around[0].number, around[-1].number, len(around)] == [3, NUM_ROWS + 2, NUM_ROWS]


@pytest.mark.parametrize(
    ("at_ns", "expected"), [(9, HEADER.before), (10, 1), (29, 2), (30, 3), (1 << 60, 3)], ids=lambda value: str(value)
)
def test_the_count_at_a_time_is_the_last_step_begun_before_it(at_ns: int, expected: StepCounts | int) -> None:
    counts = StepCounts(expected, expected) if isinstance(expected, int) else expected
    assert counts_at(HEADER, read_rows(ring(1, 2, 3)), at_ns) == counts


def test_a_time_before_all_rows_gives_the_oldest_count() -> None:
    assert counts_at(HEADER, read_rows(ring(*range(5, 9))), 20).total == 5
    assert counts_at(HEADER, [], 20) == HEADER.before
