"""Listings of keys that no object can have, which are empty.

Where: `front` answers these itself, because the store might list the objects of other keys ([Note: keys that the store
cannot hold] in `s3_request`). Pure.
Source: Amazon S3 API reference, ListObjects, ListObjectsV2, ListObjectVersions, ListMultipartUploads.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote
from xml.sax.saxutils import escape

from clary.base.errors import WireError
from clary.control.objects.s3_request import MAX_PAGE, S3Request

MAX_DIGITS = 10
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
# Element -> parameter that it repeats, in S3's order; True for a parameter that S3 omits if it was not sent.
_VERSION_1 = {"Marker": ("marker", False)}
_VERSION_2 = {"StartAfter": ("start-after", True), "ContinuationToken": ("continuation-token", True)}
_VERSIONS = {"KeyMarker": ("key-marker", False), "VersionIdMarker": ("version-id-marker", False)}
_UPLOADS = {"KeyMarker": ("key-marker", False), "UploadIdMarker": ("upload-id-marker", False)}
_NEVER_ENCODED = frozenset({"ContinuationToken", "VersionIdMarker", "UploadIdMarker"})


def empty_listing(asked: S3Request) -> bytes:
    """Return the document of a listing without keys, which repeats the request's parameters as S3 does.

    Args:
        asked: a request to a bucket, which is a listing of versions, of uploads or of objects.
    Raises: WireError(InvalidArgument) for a number of keys that is not a number.
    """
    if asked.has("uploads"):
        root, name, most, repeated = "ListMultipartUploadsResult", "Bucket", ("MaxUploads", "max-uploads"), _UPLOADS
    else:
        root, name, most = "ListBucketResult", "Name", ("MaxKeys", "max-keys")
        repeated = _VERSION_1
        if asked.has("versions"):
            root, repeated = "ListVersionsResult", _VERSIONS
        elif dict(asked.query).get("list-type") == "2":
            repeated = _VERSION_2
    is_encoded = dict(asked.query).get("encoding-type") == "url"
    lines = [_element(name, asked.bucket), *_repeated(asked, repeated, is_encoded=is_encoded)]
    if repeated is _VERSION_2:
        lines.append(_element("KeyCount", "0"))
    lines.append(_element(most[0], str(_num_wanted(asked, most[1]))))
    if is_encoded:
        lines.append(_element("EncodingType", "url"))
    lines.append(_element("IsTruncated", "false"))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<{root} xmlns="{_NAMESPACE}">{"".join(lines)}</{root}>'.encode()


def _repeated(asked: S3Request, repeated: dict[str, tuple[str, bool]], *, is_encoded: bool) -> Iterator[str]:
    given = dict(reversed(asked.query))  # the first of several parameters of one name counts
    for element, (parameter, is_optional) in {
        "Prefix": ("prefix", False),
        **repeated,
        "Delimiter": ("delimiter", True),
    }.items():
        value = given.get(parameter, "")
        if value or not is_optional:
            yield _element(element, quote(value) if is_encoded and element not in _NEVER_ENCODED else value)


def _num_wanted(asked: S3Request, parameter: str) -> int:
    text = dict(asked.query).get(parameter) or str(MAX_PAGE)
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        raise WireError(
            "InvalidArgument", f"Provided {parameter} not an integer or within integer range: {text[:40]!r}"
        )
    return int(text)  # `s3_request` has capped it


def _element(name: str, text: str) -> str:
    printable = "".join(character if character >= " " or character in "\t\n\r" else "?" for character in text)
    return f"<{name}>{escape(printable)}</{name}>"
