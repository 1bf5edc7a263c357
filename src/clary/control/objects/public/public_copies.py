"""Copies from a public bucket of AWS into a bucket of this service: one read there, and one upload here.

Where: `public_door` turns CopyObject and UploadPartCopy into an upload with the headers of `upload_headers`, whose body
is the source's, and answers with `result_document`. Pure. Source: Amazon S3 API reference, CopyObject, UploadPartCopy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from xml.sax.saxutils import escape

from clary.base.errors import WireError
from clary.control.objects.copying import COPY_SOURCE, DIRECTIVE, is_metadata
from clary.control.objects.encryption import MARK
from clary.control.objects.s3_request import S3Request

_OF_COPY = "x-amz-copy-source-"
_DIRECTIVES = frozenset({DIRECTIVE, "x-amz-tagging-directive"})
_RANGE = "range"
_BOUNDS = re.compile(r"bytes=([0-9]{1,18})-([0-9]{1,18})")

DECLARATION = b'<?xml version="1.0" encoding="UTF-8"?>\n'

Headers = list[tuple[str, str]]


def copies(asked: S3Request, headers: Headers) -> bool:
    """Whether a request copies an object, or a part of one."""
    return asked.method == "PUT" and bool(asked.key) and any(name == COPY_SOURCE for name, _ in headers)


def source_headers(asked: S3Request, headers: Headers) -> Headers:
    """Return the headers of the read of a copy's source: its conditions, and the range of a part.

    Args:
        asked: the copy; only a part has a range.
        headers: its headers, with lower-case names.
    Raises: WireError InvalidArgument for a range that is not bytes=FIRST-LAST.
    """
    found = [(name.removeprefix(_OF_COPY), value) for name, value in headers if name.startswith(_OF_COPY)]
    if not asked.has("uploadId"):
        return [pair for pair in found if pair[0] != _RANGE]
    for name, value in found:
        bounds = _BOUNDS.fullmatch(value) if name == _RANGE else None
        if name == _RANGE and (bounds is None or int(bounds[1]) > int(bounds[2])):
            raise WireError(
                "InvalidArgument", f"The x-amz-copy-source-range must be bytes=FIRST-LAST, got {value[:80]!r}."
            )
    return found


def check_answer(status: int, reason: str, content_range: str, *, asked_range: str | None, source: str) -> None:
    """Raise WireError if a source was not read, or if another range of it than the one asked for.

    Args:
        status: HTTP status of the read.
        reason: the status in words.
        content_range: header Content-Range of the answer, empty without it.
        asked_range: header Range of the read, None without it.
        source: bucket and key, for the error.
    """
    if status == 200 and asked_range is None:
        return
    if status == 206 and asked_range is not None:
        told = content_range.replace(" ", "=", 1).partition("/")[0]
        if told == asked_range:
            return
        raise WireError(
            "InvalidRange",
            f"The source {source} of the copy has no {asked_range}: it has {content_range[:80]!r}.",
            http_status=416,
        )
    if status in (200, 206):
        raise WireError(
            "ServiceUnavailable",
            f"The source {source} of the copy was answered with {status} to a read of "
            f"{asked_range or 'the whole object'}: its server does not understand ranges. Nothing was stored.",
            http_status=503,
        )
    code = {403: "AccessDenied", 404: "NoSuchKey", 412: "PreconditionFailed", 416: "InvalidRange"}.get(status)
    if status == 304:  # a read that is not needed is a copy that must not happen
        code, status = "PreconditionFailed", 412
    told = f"The source {source} of the copy is an object of a public bucket of AWS, which answered {status} {reason}."
    raise WireError(code or "ServiceUnavailable", told, http_status=status if code else 503)


def upload_headers(
    asked: S3Request, headers: Headers, source: Iterable[tuple[str, str]], *, length: int, mark: str
) -> Headers:
    """Return the headers of the upload that replaces a copy.

    Args:
        asked: the copy.
        headers: its headers for the store, with lower-case names.
        source: headers of the source as AWS returned them.
        length: bytes of the source, or of its range.
        mark: the encryption that the copy is stored with; empty for none.
    Raises: WireError InvalidRequest for metadata of the source that is not text in UTF-8.
    """
    own = [
        (name, value)
        for name, value in headers
        if name not in _DIRECTIVES
        and name != COPY_SOURCE
        and not name.startswith(_OF_COPY)
        and name != "content-length"
    ]
    directive = dict(headers).get(DIRECTIVE, "COPY").upper()
    if directive == "COPY" and not asked.has("uploadId"):
        own = [(name, value) for name, value in own if not is_metadata(name)]
        lower = [(name.lower(), value) for name, value in source]
        own += [(name, _text(name, value)) for name, value in lower if is_metadata(name)]
    own = [pair for pair in own if pair[0] != MARK]
    return [*own, *([(MARK, mark)] if mark else []), ("content-length", str(length))]


def _text(name: str, value: str) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise WireError(
            "InvalidRequest",
            f"The source's header {name[:80]} holds bytes that are not UTF-8 text: copy with a new one "
            "(MetadataDirective REPLACE).",
        ) from None
    return value


def result_document(asked: S3Request, *, etag: str, now: datetime) -> bytes:
    """Return the answer to a copy, without DECLARATION.

    Args:
        asked: the copy; with an upload's id, the copy of a part.
        etag: ETag of the new object or part, with its quotes.
        now: time of the copy.
    """
    name = "CopyPartResult" if asked.has("uploadId") else "CopyObjectResult"
    time = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return (
        f'<{name} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<LastModified>{time}</LastModified><ETag>{escape(etag)}</ETag></{name}>"
    ).encode()
