"""Event files: written values are read, even from cut or damaged files, and hostile files do no harm."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import struct
import tracemalloc

import pytest
from event_writing import (
    FILE_VERSION,
    block,
    double,
    event,
    histogram,
    image,
    masked,
    plugin,
    png,
    record,
    scalar,
    tag,
    tensor,
    varint,
)
from hypothesis import given
from hypothesis import strategies as st

from clary.agent.training import event_summaries
from clary.agent.training.buckets import MAX_READ_BUCKETS
from clary.agent.training.checksums import crc32c
from clary.agent.training.event_records import MAX_RECORD_BYTES, split_records
from clary.agent.training.event_summaries import EventReader, Malformed
from clary.contract.picture_files import MAX_IMAGE_BYTES
from clary.contract.training_values import MAX_BUCKETS, FindingKind

FLOAT, DOUBLE = 1, 2


def read(*events: bytes):
    reader = EventReader()
    return [finding for one in events for finding in reader.read(one, offset=7, file="runs/events")]


def test_the_checksum_is_that_of_the_published_examples():
    # RFC 3720, B.4.
    assert crc32c(b"\0" * 32) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(b"123456789") == 0xE3069283


def test_a_scalar_has_its_tag_step_and_time():
    (found,) = read(event(scalar("train/loss", 0.25), step=12, at_s=1_700_000_000.5))
    assert (found.kind, found.name, found.value, found.step) == (FindingKind.SCALAR, "train/loss", 0.25, 12)
    assert (found.at_ms, found.file, found.offset) == (1_700_000_000_500, "runs/events", 7)


def test_one_event_may_hold_many_values_and_steps_may_be_negative():
    found = read(event(scalar("a", 1.0), scalar("b", 2.0), step=-1))
    assert [(one.name, one.value, one.step) for one in found] == [("a", 1.0, -1), ("b", 2.0, -1)]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_kept_as_none(number):
    (found,) = read(event(scalar("loss", number)))
    assert found.value is None


def test_a_tensor_of_tensorflow_two_is_a_scalar_once_its_plugin_is_known_and_stays_one():
    first = event(tag("loss") + tensor(FLOAT, struct.pack("<f", 0.5)) + plugin("scalars"))
    later = event(tag("loss") + tensor(FLOAT, struct.pack("<f", 0.125)), step=1)
    assert [one.value for one in read(first, later)] == [0.5, 0.125]
    assert read(later) == [], "a tensor of which nobody knows what it is"


def test_histograms_of_both_forms_become_the_same_buckets():
    old = event(histogram("w", -1.0, [(0.0, 0.0), (1.0, 5.0), (2.0, 7.0)]))
    rows = struct.pack("<6d", 0.0, 1.0, 5.0, 1.0, 2.0, 7.0)
    new = event(tag("w") + tensor(DOUBLE, rows) + plugin("histograms"))
    for found in (read(old), read(new)):
        assert found[0].kind is FindingKind.HISTOGRAM
        assert json.loads(found[0].data) == [[0.0, 1.0, 5.0], [1.0, 2.0, 7.0]]


def test_a_histogram_with_many_buckets_is_joined_and_loses_no_count():
    (found,) = read(event(histogram("w", 0.0, [(float(place + 1), 1.0) for place in range(1000)])))
    buckets = json.loads(found.data)
    assert len(buckets) <= MAX_BUCKETS
    assert sum(count for _, _, count in buckets) == 1000
    assert (buckets[0][0], buckets[-1][1]) == (0.0, 1000.0)


def test_counts_that_add_up_to_no_number_stay_json():
    (found,) = read(event(histogram("w", 0.0, [(float(place + 1), 1.7e308) for place in range(1000)])))
    buckets = json.loads(found.data, parse_constant=pytest.fail)
    assert len(buckets) <= MAX_BUCKETS


def test_images_of_both_forms_keep_their_bytes_and_large_images_only_their_offset():
    picture = png(2, 2)
    strings = b"".join(block(8, part) for part in (b"2", b"2", picture))
    new = tag("i") + block(8, varint(1 << 3) + varint(7) + strings) + plugin("images")
    for found in (read(event(image("i", picture))), read(event(new))):
        assert found[0].kind is FindingKind.IMAGE
        assert (base64.b64decode(found[0].data), found[0].size_bytes) == (picture, len(picture))
    (large,) = read(event(image("i", png(2, 2).ljust(MAX_IMAGE_BYTES + 1, b"x"))))
    assert (large.data, large.size_bytes, large.offset) == ("", MAX_IMAGE_BYTES + 1, 7)


@pytest.mark.parametrize("data", [b"<svg/>", b"\x89PNG\r\n\x1a\n", png(9_000, 1), b""])
def test_an_image_that_cannot_be_shown_keeps_only_its_offset(data):
    (found,) = read(event(image("i", data)))
    assert (found.kind, found.data, found.size_bytes) == (FindingKind.IMAGE, "", len(data))


def test_a_histogram_with_more_buckets_than_are_read_is_no_event_in_either_form():
    many = [(float(place), 1.0) for place in range(MAX_READ_BUCKETS + 1)]
    rows = b"\0" * (24 * (MAX_READ_BUCKETS + 1))
    floats = b"\0" * (12 * (MAX_READ_BUCKETS + 1))
    listed = tag("w") + block(8, varint(1 << 3) + varint(FLOAT) + block(5, floats)) + plugin("histograms")
    for hostile in (histogram("w", 0.0, many), tag("w") + tensor(DOUBLE, rows) + plugin("histograms"), listed):
        with pytest.raises(Malformed, match="100001 buckets"):
            read(event(hostile))


def test_the_ends_of_a_histogram_are_those_of_its_values():
    values = tag("w") + block(
        5,
        double(1, 0.25)
        + double(2, 7.5)
        + block(6, struct.pack("<3d", 0.0, 1.0, 1e20))
        + block(7, struct.pack("<3d", 0.0, 4.0, 2.0)),
    )
    (found,) = read(event(values))
    assert json.loads(found.data) == [[0.25, 1.0, 4], [1.0, 7.5, 2]]


def test_an_event_without_a_summary_holds_no_values():
    assert read(FILE_VERSION) == []
    assert read(event(tag("text") + tensor(7, b"") + plugin("text"))) == []
    assert read(event(scalar("", 1.0)), event(scalar("x" * 256, 1.0)), event(scalar("a\0b", 1.0))) == []


def test_records_are_found_with_their_offsets_and_a_cut_record_waits():
    whole = record(FILE_VERSION) + record(event(scalar("a", 1.0)))
    cut = record(event(scalar("b", 2.0)))
    for length in range(len(cut)):
        found = split_records(whole + cut[:length], offset=100)
        assert len(found.records) == 2
        assert found.next_offset == 100 + len(whole)
        assert not found.is_lost
    assert found.records[1].offset == 100 + len(record(FILE_VERSION))


def test_a_damaged_record_is_left_out_and_a_damaged_length_ends_the_file():
    first, second = record(event(scalar("a", 1.0))), record(event(scalar("b", 2.0)))
    spoilt = bytearray(first + second)
    spoilt[20] ^= 1
    found = split_records(bytes(spoilt), offset=0)
    assert (found.num_damaged, len(found.records), found.is_lost) == (1, 1, False)
    spoilt = bytearray(first + second)
    spoilt[len(first)] ^= 1
    found = split_records(bytes(spoilt), offset=0)
    assert (len(found.records), found.is_lost, found.next_offset) == (1, True, len(first))


def test_a_record_that_is_too_large_is_skipped_without_being_read():
    length = struct.pack("<Q", MAX_RECORD_BYTES + 1)
    found = split_records(length + masked(length), offset=0)
    assert (found.num_large, found.next_offset) == (1, 12 + MAX_RECORD_BYTES + 1 + 4)


@given(
    st.lists(st.tuples(st.text(min_size=1, max_size=20), st.floats(width=32, allow_nan=False, allow_infinity=False)))
)
def test_scalars_survive_writing_and_reading(pairs):
    pairs = [(name.replace("\0", "_"), number) for name, number in pairs if name.isprintable()]
    data = b"".join(record(event(scalar(name, number), step=step)) for step, (name, number) in enumerate(pairs))
    found = [one for item in split_records(data, offset=0).records for one in read(item.data)]
    assert [(one.name, one.value, one.step) for one in found] == [
        (name, number, step) for step, (name, number) in enumerate(pairs)
    ]


@given(st.binary(max_size=400))
def test_hostile_bytes_are_no_event_or_hold_something_bounded(data):
    try:
        found = EventReader().read(data, offset=0, file="f")
    except Malformed:
        return
    assert all(0 < len(one.name) <= 255 and one.value != math.inf for one in found)


@given(st.binary(max_size=300), st.integers(0, 400), st.integers(0, 255))
def test_a_file_with_any_byte_changed_never_raises_and_never_goes_back(tail, place, byte):
    data = bytearray(record(FILE_VERSION) + record(event(scalar("a", 1.0))) + record(tail))
    data[place % len(data)] = byte
    found = split_records(bytes(data), offset=10)
    assert found.next_offset >= 10
    for item in found.records:
        with contextlib.suppress(Malformed):
            EventReader().read(item.data, offset=item.offset, file="f")


def test_a_plugin_that_is_not_read_is_not_remembered():
    reader = EventReader()
    tracemalloc.start()
    try:
        for number in range(20):
            reader.read(event(tag(f"t{number}") + plugin("x" * 1_000_000)), offset=0, file="f")
        left = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert left < 4_000_000


def test_a_record_with_more_values_than_any_writer_puts_into_one_is_left_out(monkeypatch):
    monkeypatch.setattr(event_summaries, "MAX_VALUES", 3)
    values = [scalar(f"t{number}", 1.0) for number in range(5)]
    assert len(read(event(*values[:3]))) == 3
    with pytest.raises(Malformed, match="more than 3 values"):
        read(event(*values) + event(*values))
