"""Records of collectives: written records are read, torn or forged records are left out."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.contract.collective_records import (
    DTYPES,
    ENTERED,
    FAILED,
    FILE_BYTES,
    FINISHED,
    GROUP_BYTES,
    NO_PEER,
    NUM_ROWS,
    NUM_SLOTS,
    NUMBER,
    OPERATIONS,
    ROW_BYTES,
    SLOT_BYTES,
    STATES,
    CallRow,
    GroupFacts,
    pack_group,
    pack_header,
    pack_row,
    read_record,
    slot_offset,
)
from clary.train._native.interface import Dtype, Kind

WORLD = GroupFacts("0", "gloo", 4, 1, range(4))


def row(number, **changes):
    facts = {"started_ns": 1000 + number, "finished_ns": 0, "num_elements": 4, "peer": NO_PEER}
    return CallRow(**{"number": number, **facts, "operation": 1, "dtype": 1, "state": ENTERED, **changes})


def file_of(*groups, rank=3, process=77):
    """Return the bytes of a file with groups; each group is (facts, rows, generation)."""
    data = bytearray(pack_header(rank, process).ljust(FILE_BYTES, b"\0"))
    for index, (facts, rows, generation) in enumerate(groups):
        begin = slot_offset(index)
        data[begin : begin + GROUP_BYTES] = pack_group(facts, generation)
        for one in rows:
            place = begin + GROUP_BYTES + one.number % NUM_ROWS * ROW_BYTES
            data[place : place + ROW_BYTES] = pack_row(one)
    return bytes(data)


def read(data, again=None):
    return read_record(data, data if again is None else again)


def test_written_rows_are_read_newest_first():
    rows = [row(number, finished_ns=5000, state=FINISHED) for number in range(1, 4)]
    record = read(file_of((WORLD, rows, 1)))
    assert (record.rank, record.process, record.num_left_out) == (3, 77, 0)
    assert record.groups == ((WORLD, tuple(reversed(rows))),)


@pytest.mark.parametrize(
    "ranks", [(), (0,), (5,), (0, 1, 2, 3), (1, 3, 5, 7), tuple(range(0, 4096, 8)), (0, 1, 5), (9, 2, 4)]
)
def test_ranks_of_groups_survive_writing_and_reading(ranks):
    facts = GroupFacts("g", "nccl", len(ranks), 0, ranks)
    (group,) = read(file_of((facts, [], 1))).groups
    assert tuple(group.facts.ranks) == ranks


def test_ranks_that_are_too_many_and_not_evenly_spaced_are_not_known():
    ranks = tuple(number * number for number in range(20))
    (group,) = read(file_of((GroupFacts("g", "nccl", 20, 0, ranks), [], 1))).groups
    assert (group.facts.size, group.facts.ranks) == (20, ())


def test_names_are_cut_and_stay_different():
    names = ["n" * 100 + end for end in "ab"] + ["é" * 30]
    found = read(file_of(*((GroupFacts(name, "gloo", 2), [], 1) for name in names))).groups
    assert len({group.facts.name for group in found}) == 3
    digest = "0123456789" * 4
    assert read(file_of((GroupFacts(digest, "gloo", 2), [], 1))).groups[0].facts.name == digest


def test_of_groups_with_one_name_the_newest_is_used():
    again = WORLD._replace(size=2, ranks=(0, 1))
    (group,) = read(file_of((WORLD, [row(9)], 1), (again, [row(1)], 2))).groups
    assert (group.facts.size, [one.number for one in group.rows]) == (2, [1])
    messages = WORLD._replace(is_point_to_point=True)
    assert len(read(file_of((WORLD, [], 1), (messages, [], 2))).groups) == 2, "sends are a group of their own"


def test_a_row_that_changed_between_two_reads_is_left_out():
    first = file_of((WORLD, [row(1), row(2)], 1))
    (group,) = read(first, file_of((WORLD, [row(1), row(2, state=FINISHED, finished_ns=9)], 1))).groups
    assert [one.number for one in group.rows] == [1]


def test_a_row_whose_writer_was_killed_during_the_write_is_left_out():
    data = bytearray(file_of((WORLD, [row(1), row(2)], 1)))
    place = slot_offset(0) + GROUP_BYTES + 2 * ROW_BYTES
    data[place : place + NUMBER.size] = NUMBER.pack(10)  # operation 10 has begun to overwrite this row
    (group,) = read(bytes(data)).groups
    assert [one.number for one in group.rows] == [1]


def test_a_row_with_a_time_of_its_end_is_finished_unless_it_failed():
    rows = [row(1, finished_ns=5000), row(2, finished_ns=5000, state=FAILED), row(3)]
    (group,) = read(file_of((WORLD, rows, 1))).groups
    assert [one.state for one in group.rows] == [ENTERED, FAILED, FINISHED]


def test_a_group_that_is_being_described_is_left_out():
    whole = file_of((WORLD, [row(1)], 1))
    half = bytearray(whole)
    half[slot_offset(0) : slot_offset(0) + NUMBER.size] = NUMBER.pack(0)
    assert read(bytes(half)).groups == ()
    assert read(whole, bytes(half)).groups == ()


@pytest.mark.parametrize(
    "impossible",
    [{"num_elements": -1}, {"started_ns": -5}, {"finished_ns": -1}, {"state": len(STATES)}, {"number": -8}],
)
def test_impossible_rows_are_left_out(impossible):
    (group,) = read(file_of((WORLD, [row(8, **impossible) if "number" not in impossible else row(-8)], 1))).groups
    assert group.rows == ()


def test_other_bytes_are_no_record():
    whole = file_of((WORLD, [row(1)], 1))
    assert read(b"") is None
    assert read(whole[:-1]) is None
    assert read(b"X" + whole[1:]) is None
    assert read(file_of(rank=-1)) is None
    assert read(whole, whole[:-1]) is None


@given(st.integers(min_value=0, max_value=2**32), st.integers(min_value=1, max_value=400))
def test_hostile_bytes_are_read_without_an_error(seed, amount):
    generator = random.Random(seed)
    data = bytearray(file_of((WORLD, [row(1)], 1)))
    for _ in range(amount):
        data[generator.randrange(32, len(data))] = generator.randrange(256)
    record = read(bytes(data))
    assert record is not None
    assert len(record.groups) <= NUM_SLOTS
    for group in record.groups:
        assert len(group.facts.ranks) <= 1 << 16
        assert all(one.number > 0 and one.num_elements >= 0 for one in group.rows)


def test_codes_of_the_compiled_core_are_one_less():
    assert [name.lower() for name in Dtype.__members__] == list(DTYPES[1 : 1 + len(Dtype)])
    words = ["recv" if kind is Kind.RECEIVE else kind.name.lower() for kind in Kind]
    assert words == list(OPERATIONS[1 : 1 + len(words)])


def test_the_layout_matches_its_documentation():
    assert (slot_offset(0), slot_offset(1)) == (64, 576)
    assert (GROUP_BYTES, ROW_BYTES, SLOT_BYTES % 8) == (128, 48, 0)
    assert NUM_ROWS & (NUM_ROWS - 1) == 0
    assert FILE_BYTES < 40_000
