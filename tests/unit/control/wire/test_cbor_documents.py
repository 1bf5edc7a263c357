from __future__ import annotations

import math
import struct
import time
import tracemalloc
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.base.errors import WireError
from clary.control.wire.cbor_documents import MAX_DEPTH, dump_cbor, load_cbor
from clary.control.wire.json_bounds import MAX_VALUES
from clary.control.wire.messages import HttpRequest
from clary.control.wire.models import Protocol, service
from clary.control.wire.parsing import parse, unknown_members
from clary.control.wire.scalars import MisfitError
from clary.control.wire.validation import validate

PUT = service("cloudwatch").operation("PutMetricData", Protocol.RPC_V2_CBOR)
AT = datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)
DOCUMENTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
    | st.binary(max_size=300)
    | st.integers(-(10**9), 10**9).map(lambda ms: datetime(2000, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.text("abcé", max_size=30), inner, max_size=30),
    max_leaves=40,
)


def put_request(document, *, body=None):
    headers = [("smithy-protocol", "rpc-v2-cbor"), ("Content-Type", "application/cbor")]
    path = "/service/GraniteServiceVersion20100801/operation/PutMetricData"
    return HttpRequest("POST", path, "", headers, dump_cbor(document) if body is None else body)


@given(DOCUMENTS)
def test_what_is_written_is_read_back(document):
    assert load_cbor(dump_cbor(document)) == document


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("17", 23),
        ("1818", 24),
        ("1b000000e8d4a51000", 10**12),
        ("1bffffffffffffffff", 2**64 - 1),
        ("3903e7", -1000),
        ("1900ff", 255),  # longer than it must be
        ("f93e00", 1.5),
        ("f90001", 2.0**-24),
        ("fa47c35000", 100000.0),
        ("fb3ff199999999999a", 1.1),
        ("f97c00", math.inf),
        ("faff800000", -math.inf),
        ("f4", False),
        ("f5", True),
        ("f6", None),
        ("f7", None),
        ("43010203", b"\1\2\3"),
        ("5f42010243030405ff", b"\1\2\3\4\5"),
        ("7f657374726561646d696e67ff", "streaming"),
        ("7fff", ""),
        ("62c3bc", "\u00fc"),
        ("80", []),
        ("9fff", []),
        ("9f018202039f0405ffff", [1, [2, 3], [4, 5]]),
        ("a26161016162820203", {"a": 1, "b": [2, 3]}),
        ("bf61610161629f0203ffff", {"a": 1, "b": [2, 3]}),
        ("bf7f6161ff01ff", {"a": 1}),
        ("c11a514b67b0", datetime(2013, 3, 21, 20, 4, tzinfo=UTC)),
        ("c1fb41d452d9ec200000", datetime(2013, 3, 21, 20, 4, 0, 500_000, tzinfo=UTC)),
        ("c1fa4ea00000", datetime.fromtimestamp(1342177280, UTC)),
        ("c120", datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ],
)
def test_every_form_of_a_value_is_read(text, value):
    found = load_cbor(bytes.fromhex(text))
    assert (found, type(found)) == (value, type(value))


def test_not_a_number_is_read_in_every_width():
    assert all(math.isnan(load_cbor(bytes.fromhex(text))) for text in ("f97e00", "fa7fc00000", "fb7ff8000000000000"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "ends too early"),
        ("18", "ends too early"),
        ("fb00", "ends too early"),
        ("6261", "promises 2 bytes"),
        ("7b7fffffffffffffff61", "promises 9223372036854775807 bytes"),
        ("5b000000010000000000", "promises 4294967296 bytes"),
        ("9b00000001000000000000", "promises 4294967296 items"),
        ("bb00000001000000000000", "promises 4294967296 items"),
        ("8201", "promises 2 items"),
        ("9f01", "ends too early"),
        ("bf6161", "ends too early"),
        ("7f6161", "ends too early"),
        ("0102", "1 bytes after"),
        ("a2616101616102", "duplicate key 'a'"),
        ("a10102", "a key is no text"),
        ("a1416102", "a key is no text"),
        ("a1f6f6", "a key is no text"),
        ("62ff00", "U+0000"),
        ("62c328", "not UTF-8"),
        ("63eda080", "not UTF-8"),
        ("7f61c361bcff", "not UTF-8"),
        ("610a00", "after"),
        ("7f4161ff", "piece of another type"),
        ("7f7f6161ffff", "additional information 31"),
        ("5f01ff", "piece of another type"),
        ("1c", "additional information 28"),
        ("1f", "additional information 31"),
        ("ff", "simple value or break"),
        ("a16161ff", "simple value or break"),
        ("8201ff", "simple value or break"),
        ("fc", "simple value"),
        ("f820", "simple value"),
        ("e0", "simple value"),
        ("c001", "tag 0 is not understood"),
        ("c24101", "tag 2 is not understood"),
        ("d81c80", "tag 28 is not understood"),
        ("d82363612b62", "tag 35 is not understood"),
        ("df01", "additional information 31"),
        ("c16161", "must be a number"),
        ("c1c101", "must be a number"),
        ("c1f6", "must be a number"),
        ("c1f97e00", "can not be converted to a timestamp"),
        ("c1f97c00", "can not be converted to a timestamp"),
        ("c11bffffffffffffffff", "can not be converted to a timestamp"),
    ],
)
def test_anything_else_is_refused(text, words):
    with pytest.raises(MisfitError) as caught:
        load_cbor(bytes.fromhex(text))
    assert words in caught.value.text


def test_depth_is_limited():
    for begin, end in ((b"\x81", b""), (b"\x9f", b"\xff"), (b"\xa1\x61a", b""), (b"\xbf\x61a", b"\xff")):
        assert load_cbor(begin * MAX_DEPTH + b"\x01" + end * MAX_DEPTH)
        with pytest.raises(MisfitError, match="nested too deeply"):
            load_cbor(begin * (MAX_DEPTH + 1) + b"\x01" + end * (MAX_DEPTH + 1))
        with pytest.raises(MisfitError, match="nested too deeply"):
            load_cbor(begin * 1_000_000)
    with pytest.raises(MisfitError, match="must be a number"):
        load_cbor(b"\xc1" * 1_000_000 + b"\x01")


@pytest.mark.parametrize(
    "body",
    [
        b"\x9a" + struct.pack(">I", MAX_VALUES) + b"\xf6" * MAX_VALUES,
        b"\x9f" + b"\x80" * (8 << 20),
        b"\x9f" + b"\x81\x80" * (4 << 20),
        b"\x7f" + b"\x60" * (8 << 20),
        b"\x5f" + b"\x40" * (8 << 20),
        b"\xbf" + b"".join(b"\x63%03x\xf6" % number for number in range(4096)) * 200,
    ],
    ids=["list", "lists", "lists-in-lists", "pieces of text", "pieces of bytes", "map"],
)
def test_a_body_of_many_small_values_costs_little(body):
    begin = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(MisfitError, match=r"more than 131072 values|duplicate key"):
            load_cbor(body)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()
    assert time.process_time() - begin < 20  # under tracemalloc


def test_values_without_a_type_are_not_written():
    for value in (object(), {1: 2}, 2**64, -(2**64) - 1, [{"a": set()}], datetime(2026, 1, 1)):
        with pytest.raises(MisfitError):
            dump_cbor(value)
    assert dump_cbor("half \udcff") == b"\x66half ?"


def test_times_are_written_as_doubles_to_the_millisecond():
    at = datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))
    assert dump_cbor(at) == b"\xc1\xfb" + struct.pack(">d", 1767225600)
    assert dump_cbor(at.replace(microsecond=123456)) == b"\xc1\xfb" + struct.pack(">d", 1767225600.123)


def test_a_request_gets_the_types_of_the_model():
    datum = {
        "MetricName": "loss",
        "Timestamp": AT,
        "Value": 5,
        "Values": [0, 1.5],
        "StorageResolution": 1.0,
        "Unit": None,
        "Dimensions": [{"Name": "Host", "Value": "a", "Colour": "red"}],
    }
    document = {"Namespace": "mine", "MetricData": [datum], "FromTheFuture": {"x": b"1"}}
    request = put_request(document)
    params = parse(request, PUT)
    assert params == {
        "Namespace": "mine",
        "MetricData": [
            {
                "MetricName": "loss",
                "Timestamp": AT,
                "Value": 5.0,
                "Values": [0.0, 1.5],
                "StorageResolution": 1,
                "Dimensions": [{"Name": "Host", "Value": "a"}],
            }
        ],
    }
    (read,) = params["MetricData"]
    assert [type(value) for value in (read["Value"], read["Values"][0], read["StorageResolution"])] == [
        float,
        float,
        int,
    ]
    validate(PUT, params)
    assert unknown_members(request, PUT, params) == ("MetricData.Dimensions.Colour", "FromTheFuture")
    assert parse(put_request({}, body=b""), PUT) == {}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], "the body must be a CBOR map"),
        ({"Namespace": b"mine"}, "BYTES_VALUE can not be converted to a String (at 'Namespace')"),
        ({"Namespace": AT}, "TIMESTAMP_VALUE can not be converted to a String"),
        ({"MetricData": {}}, "START_OBJECT can not be converted to a list (at 'MetricData')"),
        ({"MetricData": [{"Timestamp": 1}]}, "expected tag 1 with epoch seconds (at 'MetricData.1.Timestamp')"),
        ({"MetricData": [{"Timestamp": "2026-01-01"}]}, "STRING_VALUE can not be converted to a timestamp"),
        ({"MetricData": [{"Value": "1"}]}, "STRING_VALUE can not be converted to a Double"),
        ({"MetricData": [{"Value": True}]}, "TRUE_VALUE can not be converted to a Double"),
        ({"MetricData": [{"StorageResolution": 1.5}]}, "NUMBER_VALUE can not be converted to an Integer"),
        ({"MetricData": [{"StorageResolution": 2**31}]}, "can not be converted to an Integer"),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_place(document, words):
    with pytest.raises(WireError) as caught:
        parse(put_request(document), PUT)
    assert caught.value.code == "SerializationException"
    assert words in caught.value.message
