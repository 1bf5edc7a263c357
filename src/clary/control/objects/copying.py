"""Copies of objects: metadata taken from the source, and the encryption of the copy.

Where: `front` first requests the source's headers from the store. A copy that keeps the metadata of its source would
also keep the mark of the source's encryption. But in S3 the request alone decides on the encryption of a copy. So such
a copy is sent with all of its metadata in the request. Pure. Source: Amazon S3 API reference, CopyObject.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from clary.control.objects.encryption import MARK, Encryption
from clary.control.objects.s3_request import S3Request

COPY_SOURCE = "x-amz-copy-source"
DIRECTIVE = "x-amz-metadata-directive"
_METADATA = "x-amz-meta-"
_KEPT = frozenset(
    {"content-type", "cache-control", "content-disposition", "content-encoding", "content-language", "expires"}
)

Headers = Sequence[tuple[str, str]]


def is_metadata(name: str) -> bool:
    """Whether a header, in lower case, belongs to the metadata of an object that a copy keeps."""
    return name in _KEPT or name.startswith(_METADATA)


def keeps_metadata(asked: S3Request, headers: Headers) -> bool:
    """Whether a request copies an object together with the metadata of its source."""
    given = dict(headers)
    is_copy = asked.method == "PUT" and bool(asked.key) and COPY_SOURCE in given and not asked.has("uploadId")
    return is_copy and given.get(DIRECTIVE, "COPY").upper() == "COPY"


def spelt_out(headers: Headers, source: Iterable[tuple[str, str]], wanted: Encryption | None) -> Headers:
    """Return the headers of a copy that has its own encryption.

    Args:
        headers: headers of the request, with lower-case names.
        source: headers of the source, as the store returns them.
        wanted: the encryption that the request names.
    Returns: `headers` unchanged if source and copy have the same mark.
    """
    told = [(name.lower(), value) for name, value in source]
    mark = (wanted or Encryption()).mark
    if dict(told).get(MARK, "") == mark:
        return headers
    kept = [(name, value) for name, value in told if is_metadata(name)]
    others = [(name, value) for name, value in headers if name != DIRECTIVE and not is_metadata(name)]
    marks = [(MARK, mark)] if mark else []
    return [*others, (DIRECTIVE, "REPLACE"), *[pair for pair in kept if pair[0] != MARK], *marks]
