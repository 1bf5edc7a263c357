"""Growing files are read from the end of the last poll, even if a program has replaced them."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest
from event_writing import FILE_VERSION, event, image, plugin, png, record, scalar, tag, tensor

from clary.agent.training import event_summaries, file_reading
from clary.agent.training.event_records import MAX_RECORD_BYTES
from clary.agent.training.file_kinds import folders_to_watch
from clary.agent.training.file_reading import FileReading
from clary.agent.training.finding_store import FindingStore
from clary.agent.training.growing_files import MAX_DEPTH, read_piece, walk
from clary.contract.training_values import MAX_FINDINGS, Finding

EVENTS = "output/tensorboard/events.out.tfevents.1.algo-1"


@pytest.fixture
def notes():
    return []


@pytest.fixture
def reading(tmp_path: Path, notes):
    return FileReading(tmp_path, folders_to_watch("output/tensorboard"), on_note=notes.append)


def put(root: Path, path: str, data: bytes, *, appends: bool = True) -> None:
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("ab" if appends else "wb") as file:
        file.write(data)


def seen(reading: FileReading):
    return [(found.name, found.value, found.step) for found in reading.look()]


def loss(number: float, step: int) -> bytes:
    return record(event(scalar("loss", number), step=step))


def test_an_event_file_is_read_as_it_grows_and_each_value_once(tmp_path, reading, notes):
    assert seen(reading) == []
    put(tmp_path, EVENTS, record(FILE_VERSION) + loss(1.0, 1))
    assert seen(reading) == [("loss", 1.0, 1)]
    assert seen(reading) == []
    cut = loss(0.5, 2)
    put(tmp_path, EVENTS, cut[:9])
    assert seen(reading) == []
    put(tmp_path, EVENTS, cut[9:] + loss(0.25, 3))
    assert seen(reading) == [("loss", 0.5, 2), ("loss", 0.25, 3)]
    assert notes == []


def test_a_file_longer_than_a_piece_is_read_in_one_look(tmp_path, reading, monkeypatch):
    monkeypatch.setattr(file_reading, "PIECE_BYTES", 100)
    put(tmp_path, EVENTS, b"".join(loss(float(step), step) for step in range(100)))
    assert [step for _, _, step in seen(reading)] == list(range(100))


def test_data_beyond_one_polls_limit_is_left_for_the_next_poll(tmp_path, reading, monkeypatch):
    monkeypatch.setattr(file_reading, "MAX_LOOK_BYTES", 1000)
    monkeypatch.setattr(file_reading, "PIECE_BYTES", 500)
    put(tmp_path, EVENTS, b"".join(loss(float(step), step) for step in range(100)))
    found, num_looks = [], 0
    while num_looks == 0 or reading.is_behind:
        found += [step for _, _, step in seen(reading)]
        num_looks += 1
    assert found == list(range(100))
    assert num_looks > 2


def test_a_record_longer_than_a_piece_is_read_and_one_too_long_is_skipped(tmp_path, reading, notes):
    long = record(event(scalar("long", 1.0)) + b"\x3a\xe0\xa7\x12" + b"x" * 300_000)  # a field that the reader ignores
    large = record(b"x" * (MAX_RECORD_BYTES + 1))
    put(tmp_path, EVENTS, loss(1.0, 1) + long + large + loss(2.0, 2))
    assert [name for name, _, _ in seen(reading)] == ["loss", "long", "loss"]
    (note,) = notes
    assert EVENTS in note
    assert "8 MiB" in note


def test_an_unfinished_large_record_does_not_repeat_earlier_values(tmp_path, reading):
    large = record(b"x" * (MAX_RECORD_BYTES + 1))
    put(tmp_path, EVENTS, loss(1.0, 1) + large[:1000])
    assert seen(reading) == [("loss", 1.0, 1)]
    put(tmp_path, EVENTS, large[1000:5000])
    assert seen(reading) == []
    put(tmp_path, EVENTS, large[5000:] + loss(2.0, 2))
    assert seen(reading) == [("loss", 2.0, 2)]
    put(tmp_path, EVENTS, loss(3.0, 3), appends=False)
    assert seen(reading) == [("loss", 3.0, 3)], "written anew"


def test_a_damaged_file_is_reported_once_and_not_read_further(tmp_path, reading, notes):
    put(tmp_path, EVENTS, loss(1.0, 1) + b"\xff" * 40)
    assert seen(reading) == [("loss", 1.0, 1)]
    put(tmp_path, EVENTS, loss(2.0, 2))
    assert seen(reading) == []
    assert len(notes) == 1
    assert "damaged" in notes[0]


def test_pictures_that_are_not_kept_are_reported_once(tmp_path, reading, notes):
    kept, none = record(event(image("i", png(2, 2)))), record(event(image("page", b"<html>"), step=7))
    put(tmp_path, EVENTS, kept + none + none)
    assert len(seen(reading)) == 3
    (note,) = notes
    assert EVENTS in note
    assert "'page' of step 7, 6 bytes" in note
    assert "PNG, JPEG and GIF of up to 256 KiB" in note


def test_a_record_that_is_no_event_is_skipped_alone(tmp_path, reading, notes):
    put(tmp_path, EVENTS, record(b"\xff\xff\xff") + loss(2.0, 2))
    assert seen(reading) == [("loss", 2.0, 2)]
    assert len(notes) == 1


def test_content_from_before_the_programs_start_is_ignored(tmp_path, reading):
    put(tmp_path, EVENTS, loss(1.0, 1))
    put(tmp_path, "checkpoints/runs/old/events.out.tfevents.0", loss(9.0, 9))
    put(tmp_path, "checkpoints/checkpoint-10/trainer_state.json", b'{"global_step": 10, "max_steps": 30}')
    reading.skip_what_stands()
    put(tmp_path, EVENTS, loss(2.0, 2))
    assert seen(reading) == [("loss", 2.0, 2)]
    assert reading.state(5) is None
    put(tmp_path, "checkpoints/checkpoint-20/trainer_state.json", b'{"global_step": 20, "max_steps": 30}')
    assert reading.state(5).done == 20
    assert reading.state(5) is None


def test_tags_whose_plugin_is_remembered_are_counted_over_all_files(tmp_path, reading, monkeypatch):
    monkeypatch.setattr(event_summaries, "MAX_TAGS", 2)
    number = tag("loss") + tensor(1, struct.pack("<f", 0.5))
    for _ in range(2):  # of the second records two are known by the plugins that the first records have named
        for file in range(4):
            named = b"" if (tmp_path / f"{EVENTS}.{file}").exists() else plugin("scalars")
            put(tmp_path, f"{EVENTS}.{file}", record(event(number + named)))
        found = [value for _, value, _ in seen(reading)]
        assert found == [0.5] * (4 if named else 2)


def test_state_files_that_the_program_removed_are_not_remembered(tmp_path, reading):
    for number in range(5):
        put(tmp_path, f"model/{number}/trainer_state.json", b'{"global_step": 20, "max_steps": 30}')
        assert reading.state(5).done == 20
        (tmp_path / f"model/{number}/trainer_state.json").unlink()
    assert reading.state(5) is None
    assert not reading._states


def test_a_rewritten_file_is_read_from_its_beginning(tmp_path, reading):
    put(tmp_path, EVENTS, loss(1.0, 1) + loss(2.0, 2))
    assert len(seen(reading)) == 2
    put(tmp_path, EVENTS, loss(3.0, 3), appends=False)
    assert seen(reading) == [("loss", 3.0, 3)]


def test_lines_of_metrics_files_and_of_mlflow_wait_for_their_ends(tmp_path, reading):
    row = json.dumps({"MetricName": "rate", "Value": 4, "Timestamp": 1_700_000_000, "Step": 1}).encode()
    put(tmp_path, "output/metrics/sagemaker/12.json", row + b"\n" + row[:10])
    put(tmp_path, "output/data/mlruns/0/0123456789ab/metrics/eval/loss", b"1700000000000 0.5 1\n17000")
    assert sorted(seen(reading)) == [("eval/loss", 0.5, 1), ("rate", 4.0, 1)]
    put(tmp_path, "output/metrics/sagemaker/12.json", row[10:] + b"\n")
    put(tmp_path, "output/data/mlruns/0/0123456789ab/metrics/eval/loss", b"00000000 0.25 2\n")
    assert sorted(seen(reading)) == [("eval/loss", 0.25, 2), ("rate", 4.0, 1)]


def test_links_pipes_and_deep_folders_are_not_followed(tmp_path, reading):
    secret = tmp_path / "outside" / "events.out.tfevents.1"
    put(tmp_path, "outside/events.out.tfevents.1", loss(1.0, 1))
    logs = tmp_path / "output/tensorboard"
    logs.mkdir(parents=True)
    (logs / "events.out.tfevents.link").symlink_to(secret)
    (logs / "folder").symlink_to(secret.parent, target_is_directory=True)
    os.mkfifo(logs / "events.out.tfevents.pipe")
    put(tmp_path, "output/" + "deep/" * (MAX_DEPTH + 2) + "events.out.tfevents.1", loss(1.0, 1))
    assert seen(reading) == []
    assert read_piece(tmp_path, "output/tensorboard/events.out.tfevents.link", offset=0, max_bytes=10) is None
    assert read_piece(tmp_path, "output/tensorboard/folder/events.out.tfevents.1", offset=0, max_bytes=10) is None
    assert read_piece(tmp_path, "output/tensorboard/events.out.tfevents.pipe", offset=0, max_bytes=10) is None


def test_a_walk_is_bounded(tmp_path):
    for number in range(30):
        put(tmp_path, f"output/{number}", b"x")
    assert len(list(walk(tmp_path, "output", max_entries=10))) == 10
    assert list(walk(tmp_path, "nothing")) == []


def test_findings_are_numbered_and_bounded(tmp_path):
    store = FindingStore()
    for step in range(MAX_FINDINGS + 5):
        store.offer(Finding(name="loss", at_ms=0, step=step, value=0.0), now_s=0.0)
    batch = store.batch(None)
    assert (batch.first, len(batch.findings)) == (0, MAX_FINDINGS)
    store.acknowledge(MAX_FINDINGS)
    batch = store.batch(None)
    assert (batch.first, [finding.step for finding in batch.findings]) == (MAX_FINDINGS, list(range(2000, 2005)))
    small = FindingStore(max_bytes=1000)
    for step in range(10):
        small.offer(Finding(name="loss", at_ms=0, step=step, value=0.0), now_s=0.0)
    assert (small.first, small.end, small.num_dropped) == (7, 10, 7)


def test_a_name_with_too_many_values_is_thinned_and_other_names_are_not():
    store = FindingStore(burst=10.0, per_s=1.0)
    for step in range(100):
        store.offer(Finding(name="fast", at_ms=0, step=step), now_s=0.0)
    store.offer(Finding(name="slow", at_ms=0), now_s=0.0)
    assert (store.end, store.num_dropped) == (11, 90)
    store.offer(Finding(name="fast", at_ms=0), now_s=5.0)
    assert store.end == 12
