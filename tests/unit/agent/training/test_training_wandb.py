"""Logs of runs as W&B writes them: every number with its step, wherever blocks or polls of the file cut a record."""

from __future__ import annotations

import contextlib
import json
import math
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wandb_writing import BLOCK, PREFIX, history, item, log, other_record, part

from clary.agent.training import file_reading
from clary.agent.training.file_kinds import FileKind, folders_to_watch, place_of
from clary.agent.training.file_reading import FileReading
from clary.agent.training.wandb_records import findings_of, split_records
from clary.agent.training.wire_fields import Malformed

FOLDER = "output/data/wandb/offline-run-20260101_000000-abcdefgh"
FILE = f"{FOLDER}/run-abcdefgh.wandb"


@pytest.fixture
def notes():
    return []


@pytest.fixture
def reading(tmp_path: Path, notes):
    (tmp_path / FOLDER).mkdir(parents=True)
    return FileReading(tmp_path, folders_to_watch(None), on_note=notes.append)


def seen(reading: FileReading):
    return [(found.name, found.value, found.step) for found in reading.look()]


def told(record: bytes):
    return [(found.name, found.value, found.step) for found in findings_of(record, offset=0, file=FILE)]


def test_a_log_is_recognised_by_its_name():
    place = place_of(FILE)
    assert (place.kind, place.run) == (FileKind.WANDB, "abcdefgh")
    assert place_of("code/wandb/run-20260101_000000-x/run-x.wandb").kind is FileKind.WANDB
    for other in (f"{FOLDER}/logs/debug.log", f"{FOLDER}/files/media/run.wandb", f"{FOLDER}/files/wandb-summary.json"):
        assert place_of(other) is None


def test_only_numbers_of_a_call_are_reported_with_its_step_and_time():
    record = history(3, item("eval.loss", 0.25, is_nested=True), loss=0.5, _timestamp=1.7e9, _runtime=2.0, _step=3)
    found = findings_of(record, offset=70, file=FILE)
    assert {(one.name, one.value) for one in found} == {("eval.loss", 0.25), ("loss", 0.5)}
    assert {(one.step, one.at_ms, one.offset, one.file) for one in found} == {(3, 1_700_000_000_000, 70, FILE)}
    assert told(history(None, _step=9, loss=1)) == [("loss", 1.0, 9)]
    assert told(
        history(
            0,
            loss="NaN",
            top="Infinity",
            text="good",
            yes=True,
            table={"_type": "table", "n": 1},
            none=None,
            a={"b": {"c": 2}, "d": "x"},
        )
    ) == [
        ("loss", None, 0),
        ("top", None, 0),
        ("a.b.c", 2.0, 0),
    ]
    assert told(history(1, item("loss", b"not JSON"), item("big", b"9" * 400), item("", 1.0))) == [("big", None, 1)]
    assert told(other_record()) == []
    with pytest.raises(Malformed):
        told(b"\xff\xff")


@pytest.mark.parametrize("size", [10, BLOCK - 7 - 7 - 60, 5 * BLOCK + 11])
def test_a_record_is_whole_wherever_blocks_end(size: int):
    data = [other_record(size), *(history(step, loss=step / 2) for step in range(4000)), other_record(size)]
    found = split_records(log(*data), offset=0)
    assert [record.data for record in found.records] == data
    assert (found.num_damaged, found.num_large, found.is_lost) == (0, 0, False)


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 40_000), max_size=8),
    cuts=st.lists(st.integers(1, 60_000), min_size=1, max_size=8),
)
def test_the_pieces_in_which_a_file_is_read_make_no_difference(sizes, cuts):
    data = [other_record(size) for size in sizes]
    whole, offset, end, found = log(*data), 0, 0, []
    for cut in [*cuts, len(log(*data))]:
        end = min(len(whole), end + cut)
        records = split_records(whole[offset:end], offset=offset)
        assert not records.is_lost
        found += [record.data for record in records.records]
        offset = records.next_offset
    assert found == data


def test_a_log_is_read_while_it_grows_and_each_value_once(tmp_path, reading, notes):
    whole = log(*(history(step, loss=float(step)) for step in range(3000)))
    path = tmp_path / FILE
    found = []
    for end in (0, 3, 9, 40, 32_760, 32_770, len(whole) - 1, len(whole)):
        path.write_bytes(whole[:end])
        found += seen(reading)
    assert found == [("loss", float(step), step) for step in range(3000)]
    assert seen(reading) == []
    assert notes == []


def test_a_second_run_has_its_id_before_its_names(tmp_path, reading):
    (tmp_path / FILE).write_bytes(log(history(1, loss=1.0)))
    (tmp_path / FOLDER / "run-zz.wandb").write_bytes(log(history(1, loss=2.0)))
    assert seen(reading) == [("loss", 1.0, 1), ("zz/loss", 2.0, 1)]


def test_a_record_that_is_too_long_is_skipped_and_the_next_is_read(tmp_path, reading, notes, monkeypatch):
    monkeypatch.setattr(file_reading, "PIECE_BYTES", 1000)
    (tmp_path / FILE).write_bytes(log(history(1, loss=1.0), other_record(9 << 20), history(2, loss=2.0)))
    found, num_looks = seen(reading), 1
    while num_looks < 5 and len(found) < 2:
        found, num_looks = found + seen(reading), num_looks + 1
    assert found == [("loss", 1.0, 1), ("loss", 2.0, 2)]
    (note,) = notes
    assert "8 MiB" in note


def test_damage_costs_one_record_and_a_file_of_another_kind_is_reported_once(tmp_path, reading, notes):
    good, hurt = history(1, loss=1.0), bytearray(part(1, history(2, loss=2.0)))
    hurt[-1] ^= 1
    (tmp_path / FILE).write_bytes(log(good) + bytes(hurt) + part(1, history(3, loss=3.0)))
    (tmp_path / FOLDER / "run-other.wandb").write_bytes(b"SQLite format 3")
    assert [name for name, _, _ in seen(reading)] == ["loss", "loss"]
    assert len(notes) == 2
    assert "damaged record" in notes[0]
    assert "is no W&B log of version 0" in notes[1]
    assert seen(reading) == []


@pytest.mark.parametrize("data", [b"\0" * 7, b"\1\2\3\4\xff\xff\1" + b"x" * 70_000, b"\0\0\0\0\1\0\x09y"])
def test_bytes_that_are_no_records_end_the_reading(data):
    found = split_records(PREFIX + data, offset=0)
    assert found.is_lost
    assert found.records == ()
    assert math.isfinite(found.next_offset)


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=200), st.integers(0, 1_000_000))
def test_arbitrary_bytes_never_raise(data: bytes, offset: int):
    found = split_records(data, offset=offset)
    assert found.next_offset >= offset
    with contextlib.suppress(Malformed):
        findings_of(data, offset=0, file=FILE)


def test_a_name_with_a_nul_is_no_name_wherever_it_comes_from():
    record = history(
        1, item("a\0", 1), item("b.\0", 1, is_nested=True), item("c", {"\0": 1, "d": 2}), **{"e\0": {"f": 3}}, loss=0.5
    )
    assert told(record) == [("c.d", 2.0, 1), ("loss", 0.5, 1)]


def test_a_long_name_is_not_put_before_each_of_the_values_within_it():
    told = json.dumps({str(number): number for number in range(20_000)}).encode()
    record = history(1, item("k" * 200_000, told), loss=0.5)
    tracemalloc.start()
    try:
        found = findings_of(record, offset=0, file=FILE)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [one.name for one in found] == ["loss"]
    assert most < 64 * 1024 * 1024


def short_names(num: int) -> str:
    return ",".join(f'"{number:x}":0' for number in range(num))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("{" + short_names(60_000) + "}", "a call has more than 20000 numbers"),
        ("{" + short_names(200_000) + "}", "an item has more than 100000 values"),
        ('{"a":[' + "{}," * 500_000 + "{}]}", "an item has more than 100000 values"),
    ],
    ids=["numbers", "names", "objects"],
)
def test_one_large_item_is_left_out_alone_and_does_not_grow_in_memory(tmp_path, reading, notes, value, words):
    record = history(1, item("k" * 248, value.encode()), loss=0.5)
    (tmp_path / FILE).write_bytes(log(record, history(2, loss=2.0)))
    tracemalloc.start()
    try:
        found = seen(reading)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == [("loss", 0.5, 1), ("loss", 2.0, 2)]
    assert len(notes) == 1
    assert words in notes[0]
    assert most < 32 * 1024 * 1024


def test_the_numbers_of_all_items_of_a_record_are_counted_together():
    many = [item(f"k{number}", 1) for number in range(20_001)]
    found = findings_of(history(None, *many, _step=7, _timestamp=1.7e9), offset=0, file=FILE)
    assert [one.name for one in found] == [f"k{number}" for number in range(20_000)]
    assert {(one.step, one.at_ms) for one in found} == {(7, 1_700_000_000_000)}


def test_long_lists_and_texts_beside_the_numbers_of_a_call_cost_no_number(tmp_path, reading, notes):
    record = history(1, item("list", list(range(200_000))), item("text", "a, b, " * 100_000), loss=0.5, other="NaN")
    (tmp_path / FILE).write_bytes(log(record))
    assert seen(reading) == [("loss", 0.5, 1), ("other", None, 1)]
    assert notes == []
