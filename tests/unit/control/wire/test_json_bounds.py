"""The number of values in a JSON document, counted without parsing."""

import json
import time

import pytest

from clary.control.wire.json_bounds import has_more_values
from clary.control.wire.json_parsing import load_document
from clary.control.wire.scalars import MisfitError

MIB = 1024 * 1024
HOSTILE = {
    "lists": b"[" + b"[]," * (MIB * 8 // 3) + b"[]]",
    "numbers": b"[" + b"1," * (MIB * 4) + b"1]",
    "members": b"{" + b",".join(b'"%d":0' % number for number in range(600_000)) + b"}",
    "unclosed texts": b"]" * 200_000 + b'"\\"' * MIB,
    "empty texts": b"," * 200_000 + b'""' * MIB * 3,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_megabytes_of_values_are_refused_quickly(kind):
    began_s = time.process_time()
    with pytest.raises(MisfitError, match="more than 131072 values"):
        load_document(HOSTILE[kind])
    assert time.process_time() - began_s < 0.25


def test_separators_within_strings_do_not_count_as_values():
    lines = [{"message": '1,2,3,[],{},"quoted\\\\","' * 500, "timestamp": 1} for _ in range(500)]
    body = json.dumps(lines).encode()
    assert body.count(b",") > 1 << 17
    assert load_document(body) == lines


def test_a_document_at_the_limit_passes_and_one_above_it_does_not():
    assert not has_more_values(json.dumps([[]] * 10).encode(), 20)
    assert has_more_values(json.dumps([[]] * 11).encode(), 20)
