"""Bodies of DeleteObjects: keys that are read, bodies that are refused, and the body that the store gets."""

from __future__ import annotations

import base64
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.base.errors import WireError
from clary.contract.object_store.stored_names import stored_name
from clary.control.objects.deletions import deletion_bodies
from clary.control.objects.deletions.deletion_bodies import Deletion, check_digests, read_deletion, written


def refused(action: object, *arguments: object, **keywords: object) -> tuple[str, int]:
    assert callable(action)
    with pytest.raises(WireError) as error:
        action(*arguments, **keywords)
    return error.value.code, error.value.http_status


@pytest.mark.parametrize("key", ["a/../b", "a&#47;../b", "<![CDATA[a/../b]]>", "a/.<!-- -->./b", "&#97;/../b"])
def test_a_bad_key_is_found_in_a_deletion_however_it_is_encoded(key: str) -> None:
    document = f"<Delete><Object><Key>fine</Key></Object><Object><Key>{key}</Key></Object></Delete>"
    assert refused(read_deletion, document.encode()) == ("InvalidArgument", 400)
    spaced = f'<s:Delete xmlns:s="x"><s:Object><s:Key >{key}</s:Key ></s:Object></s:Delete>'
    assert refused(read_deletion, spaced.encode()) == ("InvalidArgument", 400)


@pytest.mark.parametrize("document", [b"", b"<Delete>", b"no xml", b"<!DOCTYPE a []><Delete/>", b"\xff\xfe"])
def test_broken_deletion_is_refused(document: bytes) -> None:
    assert refused(read_deletion, document) == ("MalformedXML", 400)


def test_a_good_deletion_is_accepted() -> None:
    deletion = read_deletion("<Delete><Object><Key>a &amp; ü/b</Key></Object></Delete>".encode())
    assert (deletion.keys, deletion.is_quiet) == (["a & ü/b"], False)


@pytest.mark.parametrize(
    "object_members",
    [
        "<Key>a<Key>b</Key>c</Key>",
        "<Key>a</Key><Key>b</Key>",
        "<Key>a<b/></Key>",
        "<Key/>",
        "",
        "<Name>a</Name>",
        "<Key>a</Key><Object><Key>b</Key></Object>",
    ],
)
def test_an_object_that_two_parsers_could_read_differently_is_refused(object_members: str) -> None:
    document = f"<Delete><Object><Key>fine</Key></Object><Object>{object_members}</Object></Delete>"
    assert refused(read_deletion, document.encode()) == ("MalformedXML", 400)


@pytest.mark.parametrize("place", ["<Key>a</Key>", "<Object><Key>a</Key></Object><x/>"])
def test_an_element_in_an_unexpected_place_is_refused(place: str) -> None:
    assert refused(read_deletion, f"<Delete>{place}</Delete>".encode()) == ("MalformedXML", 400)
    assert refused(read_deletion, b"<Object><Key>a</Key></Object>") == ("MalformedXML", 400)


def test_more_than_a_thousand_objects_and_none_are_refused() -> None:
    entry = "<Object><Key>a</Key></Object>"
    assert len(read_deletion(f"<Delete>{entry * 1000}</Delete>".encode()).keys) == 1000
    assert refused(read_deletion, f"<Delete>{entry * 1001}</Delete>".encode()) == ("MalformedXML", 400)
    assert refused(read_deletion, b"<Delete></Delete>") == ("MalformedXML", 400)


@pytest.mark.parametrize("version", ["..", "a/../../b", "a\\b"])
def test_a_version_that_is_a_path_is_refused(version: str) -> None:
    document = f"<Delete><Object><Key>a</Key><VersionId>{version}</VersionId></Object></Delete>"
    assert refused(read_deletion, document.encode()) == ("InvalidArgument", 400)


KEYS = st.text(st.sampled_from('ab/\\ \t\r\n<&>"é\U0001f600'), min_size=1, max_size=12)


@given(st.lists(KEYS, min_size=1, max_size=5), st.booleans(), st.booleans())
def test_the_store_gets_exactly_the_keys_that_were_read(keys: list[str], is_quiet: bool, aliases: bool) -> None:
    deletion = Deletion(entries=tuple({"Key": key, "VersionId": "1"} for key in keys), is_quiet=is_quiet)
    headers, body = written(
        deletion, [("content-length", "1"), ("x-amz-checksum-crc32", "x"), ("a", "b")], aliases_keys=aliases
    )
    root = ET.fromstring(body)
    assert [element.text for element in root.iter("Key")] == [stored_name(key) if aliases else key for key in keys]
    assert root.findtext("Quiet", "") == ("true" if is_quiet else "")
    assert dict(headers)["content-length"] == str(len(body))
    assert ("a", "b") in headers
    assert "x-amz-checksum-crc32" not in dict(headers)
    check_digests(headers, body)
    assert refused(check_digests, headers, body + b" ") == ("BadDigest", 400)


def test_conditions_that_the_embedded_store_ignores_reach_other_stores_alone() -> None:
    deletion = read_deletion(b"<Delete><Object><Key>a</Key><Size>3</Size></Object></Delete>")
    assert refused(written, deletion, [], aliases_keys=True) == ("NotImplemented", 501)
    assert b"<Size>3</Size>" in written(deletion, [], aliases_keys=False)[1]


def test_a_digest_is_computed_once_however_often_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []
    digests = dict.fromkeys(deletion_bodies._DIGESTS, lambda body: computed.append(body) or b"1234")
    monkeypatch.setattr(deletion_bodies, "_DIGESTS", digests)
    right = base64.b64encode(b"1234").decode()
    check_digests([("x-amz-checksum-crc64nvme", right)] * 500, b"body")
    assert computed == [b"body"]
    twice = [("x-amz-checksum-crc64nvme", right), ("x-amz-checksum-crc64nvme", "AAAA")]
    assert refused(check_digests, twice, b"body") == ("InvalidRequest", 400)
    many = [("content-md5", right), ("x-amz-checksum-crc32", right), ("x-amz-checksum-sha1", right)]
    assert refused(check_digests, many, b"body") == ("InvalidRequest", 400)
    assert computed == [b"body"]
