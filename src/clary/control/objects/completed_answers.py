"""Completion of XML documents of the store that lack members, or name them wrongly, before clients receive them.

Where: `front` reads these answers whole. Pure.
SeaweedFS names its own address as the location of an object that was uploaded in parts. It leaves checksums and parts
out of GetObjectAttributes, though HEAD returns the checksums. In listings with `encoding-type=url` it encodes only the
names of objects and folders: a client that goes on from a marker with `+` would receive the same page for ever. It
leaves the object's size out of InvalidRange, by which the AWS Common Runtime (awscrt, s3torchconnector) tells an empty
object from a failure. That library then asks for part 1 of the empty object, which SeaweedFS refuses.
Source: Amazon S3 API reference, CompleteMultipartUpload, GetObjectAttributes, ListObjects; for InvalidRange,
awslabs/aws-c-s3, s3_auto_ranged_get.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from urllib.parse import quote
from xml.sax.saxutils import escape, unescape

from clary.control.objects.s3_request import S3Request

MAX_DOCUMENT_BYTES = 64 * 1024  # largest answer that is completed; typical answers have a few hundred bytes
ASKED = "x-amz-object-attributes"
CHECKSUM = "x-amz-checksum-"
_NAMES = {"crc32": "CRC32", "crc32c": "CRC32C", "crc64nvme": "CRC64NVME", "sha1": "SHA1", "sha256": "SHA256"}
_LOCATION = re.compile(rb"<Location>[^<]*</Location>")
_NOT_ENCODED = re.compile(
    rb"<((?:Next)?(?:Key)?Marker|StartAfter|Delimiter)>([^<]+)</\1>|(?<=</Name>)<(Prefix)>([^<]+)</Prefix>"
)
_QUOTES = {"&#34;": '"', "&#39;": "'", "&quot;": '"', "&apos;": "'", "&#xA;": "\n", "&#xD;": "\r", "&#x9;": "\t"}
_END = re.compile(rb"</GetObjectAttributes\w*>\s*$")
_ERROR_END = re.compile(rb"</Error>\s*$")
_UNSATISFIED = re.compile(r"bytes \*/(\d+)")
_PARTS = re.compile(r'-(\d+)"?$')


def completes_upload(asked: S3Request) -> bool:
    """Whether a request is CompleteMultipartUpload."""
    return asked.method == "POST" and bool(asked.key) and asked.has("uploadId")


def asks_attributes(asked: S3Request) -> bool:
    """Whether a request is GetObjectAttributes."""
    return asked.method == "GET" and bool(asked.key) and asked.has("attributes")


def asks_first_part(asked: S3Request) -> bool:
    """Whether a request reads the first part of an object."""
    return asked.method in {"GET", "HEAD"} and bool(asked.key) and ("partNumber", "1") in asked.query


def without_part(asked: S3Request) -> S3Request:
    """Return the request for the whole object; an empty one has no other part."""
    return replace(asked, query=tuple(pair for pair in asked.query if pair[0] != "partNumber"))


def lists_encoded(asked: S3Request) -> bool:
    """Whether a request lists objects, versions or uploads with encoded names."""
    is_listing = asked.method == "GET" and bool(asked.bucket) and not asked.key
    return is_listing and ("encoding-type", "url") in asked.query


def with_encoded_markers(content: bytes) -> bytes:
    """Return a listing with encoded names whose markers, delimiter and prefix are encoded, too.

    The prefix of ListObjects stays as it is, because botocore does not decode it.
    """
    if b"<EncodingType>url</EncodingType>" not in content:
        return content
    is_first_version = b"<Marker" in content

    def encode(found: re.Match[bytes]) -> bytes:
        name, text = (found[1], found[2]) if found[1] else (found[3], found[4])
        if is_first_version and name == b"Prefix":
            return found[0]
        plain = unescape(text.decode("utf-8", "replace"), _QUOTES)
        return b"<%b>%b</%b>" % (name, quote(plain).encode("ascii"), name)

    return _NOT_ENCODED.sub(encode, content)


def with_location(content: bytes, address: str) -> bytes:
    """Return the answer to a completed upload with the address by which the client reaches this service."""
    told = b"<Location>" + escape(address).encode() + b"</Location>"
    return _LOCATION.sub(lambda _: told, content, count=1)


def with_object_size(content: bytes, *, asked_range: str, told_range: str) -> bytes:
    """Return an InvalidRange error that also names the asked range and the size of the object.

    Args:
        content: the store's document; it stays as it is if it has a size, or if `told_range` has none.
        asked_range: Range of the request.
        told_range: Content-Range of the store's answer.
    """
    size = _UNSATISFIED.fullmatch(told_range)
    if size is None or b"<ActualObjectSize>" in content:
        return content
    added = (
        f"<RangeRequested>{escape(asked_range)}</RangeRequested><ActualObjectSize>{size[1]}</ActualObjectSize>".encode()
    )
    return _ERROR_END.sub(lambda found: added + found[0], content)


def with_attributes(content: bytes, wanted: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """Return the store's attributes of an object, completed with wanted attributes that the store omitted.

    Args:
        content: the store's document.
        wanted: names with commas between, as the request has them.
        headers: headers of the store's answer to HEAD for the object.
    """
    names = {name.strip() for name in wanted.split(",")}
    given = {name.lower(): value for name, value in headers}
    added = ""
    checksums = {
        element: given[f"{CHECKSUM}{name}"] for name, element in _NAMES.items() if given.get(f"{CHECKSUM}{name}")
    }
    if "Checksum" in names and checksums and b"<Checksum>" not in content:
        kind = given.get(f"{CHECKSUM}type", "FULL_OBJECT")
        lines = "".join(f"<Checksum{name}>{escape(value)}</Checksum{name}>" for name, value in checksums.items())
        added += f"<Checksum>{lines}<ChecksumType>{escape(kind)}</ChecksumType></Checksum>"
    parts = _PARTS.search(given.get("etag", ""))
    if "ObjectParts" in names and parts is not None and b"<ObjectParts>" not in content:
        added += f"<ObjectParts><PartsCount>{parts[1]}</PartsCount></ObjectParts>"
    return _END.sub(lambda found: added.encode() + found[0], content)
