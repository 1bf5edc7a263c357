"""Pictures from agents are checked before they are stored: an agent's token may be in the wrong hands."""

from __future__ import annotations

import base64
import json
import struct
from datetime import UTC, datetime

import pytest

from clary.base.errors import WireError
from clary.contract.picture_files import MAX_IMAGE_BYTES
from clary.contract.training_values import MAX_BUCKETS, Finding, FindingKind
from clary.control.reconcile.gateways.training_pictures import picture_of

AT = datetime(2026, 1, 1, tzinfo=UTC)
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 3, 2) + b"rest"


def stored(data, kind=FindingKind.IMAGE, size_bytes=7):
    return picture_of(Finding(kind=kind, name="t", at_ms=0, step=3, data=data, size_bytes=size_bytes), AT)


def test_an_image_is_stored_as_bytes_and_a_histogram_as_json():
    kept = stored(base64.b64encode(PNG).decode())
    assert (kept.kind, kept.tag, kept.step, kept.data, kept.size_bytes) == ("image", "t", 3, PNG, 7)
    buckets = stored("[[0.5, 1, 2]]", FindingKind.HISTOGRAM)
    assert (buckets.kind, json.loads(buckets.data), buckets.size_bytes) == ("histogram", [[0.5, 1, 2]], 0)
    assert json.loads(stored("", FindingKind.HISTOGRAM).data) == []


@pytest.mark.parametrize(
    "data", [b"", b"<script>alert(1)</script>", b"<svg/>", PNG[:12], PNG.ljust(MAX_IMAGE_BYTES + 1, b"x")]
)
def test_of_data_that_is_no_image_only_tag_and_step_are_stored(data):
    assert stored(base64.b64encode(data).decode()).data is None
    assert stored("", size_bytes=-5).size_bytes == 0


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "{}",
        "[1]",
        "[[1, 2]]",
        "[[1, 2, 3, 4]]",
        '[[1, 2, "3"]]',
        "[[1, 2, true]]",
        "[[1, 2, -3]]",
        "[[2, 1, 3]]",
        "[[1, 2, NaN]]",
        "[[1, 2, Infinity]]",
        f"[[1, 2, {'9' * 400}]]",
        "[" * 100_000,
        json.dumps([[0, 1, 2]] * (MAX_BUCKETS + 1)),
    ],
)
def test_a_histogram_of_a_shape_that_no_agent_sends_is_refused(text):
    with pytest.raises(WireError) as refusal:
        stored(text, FindingKind.HISTOGRAM)
    assert refusal.value.http_status == 400
