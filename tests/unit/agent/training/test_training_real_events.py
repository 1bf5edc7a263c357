"""Files written by TensorBoard's own writers, read as a job's agent reads them."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path

import pytest

from clary.agent.training.file_reading import FileReading
from clary.contract.picture_files import picture_facts
from clary.contract.training_values import MAX_BUCKETS, FindingKind

ASSETS = Path(__file__).parents[3] / "assets/event_files"  # together with the program that wrote them
STEPS = list(range(0, 24 * 50, 50))


@pytest.fixture
def read(tmp_path):
    """Return a function that reads a file in pieces as it grows, and returns its content by tag."""

    def read_file(name, piece_bytes=10_000):
        notes = []
        data = gzip.decompress((ASSETS / name).read_bytes())
        place = tmp_path / "output/tensorboard/events.out.tfevents.1.algo-1"
        place.parent.mkdir(parents=True)
        reading = FileReading(tmp_path, ("output",), on_note=notes.append)
        found = {}
        for end in range(piece_bytes, len(data) + piece_bytes, piece_bytes):
            with place.open("ab") as file:
                file.write(data[end - piece_bytes : end])
            for finding in reading.look():
                found.setdefault((finding.kind, finding.name), []).append(finding)
        assert notes == []
        return found

    return read_file


def test_what_torch_writes_is_read_whole(read):
    found = read("torch.events.gz")
    assert set(found) == {
        (FindingKind.SCALAR, "train/loss"),
        (FindingKind.HISTOGRAM, "weights/layer 1"),
        (FindingKind.HISTOGRAM, "gradients"),
        (FindingKind.IMAGE, "samples/ring"),
        (FindingKind.IMAGE, "figure"),
    }
    assert [one.step for one in found[FindingKind.SCALAR, "train/loss"]] == STEPS
    for tag, num_values in (("weights/layer 1", 1000), ("gradients", 500)):
        histograms = found[FindingKind.HISTOGRAM, tag]
        assert [one.step for one in histograms] == STEPS
        for one in histograms:
            buckets = json.loads(one.data)
            assert 5 < len(buckets) <= MAX_BUCKETS
            assert sum(count for _, _, count in buckets) == num_values
            assert all(left < right for left, right, _ in buckets)
    pictures = found[FindingKind.IMAGE, "samples/ring"]
    assert [one.step for one in pictures] == STEPS[::3]
    for one in pictures:
        facts = picture_facts(base64.b64decode(one.data))
        assert (facts.media_type, facts.width, facts.height) == ("image/png", 28, 28)


def test_the_offsets_of_values_that_torch_wrote_are_unchanged(read):
    last = json.loads(read("torch.events.gz")[FindingKind.HISTOGRAM, "weights/layer 1"][-1].data)
    below = sum(count for _, right, count in last if right <= 0)
    assert below == pytest.approx(600, abs=40), "600 of 1000 were drawn around -1, the others around 1"
    assert -2 < last[0][0] < last[-1][1] < 2


def test_histograms_as_tensorflow_writes_them_are_read(read):
    found = read("tensor.events.gz")
    assert list(found) == [(FindingKind.HISTOGRAM, "weights/layer 1")]
    histograms = found[FindingKind.HISTOGRAM, "weights/layer 1"]
    assert [one.step for one in histograms] == STEPS
    assert all(sum(count for _, _, count in json.loads(one.data)) == 1000 for one in histograms)
