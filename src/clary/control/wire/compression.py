"""Decompression of requests' bodies: gzip, as botocore compresses metric data.

Where: `parsing` reads whole bodies, `routing` the beginning of forms, because their Action names the operation.
"""

from __future__ import annotations

import zlib

from clary.control.wire.messages import HttpRequest
from clary.control.wire.scalars import MisfitError

# maximum size of a decompressed gzip body; clients compress only metric data, up to 1 MiB
MAX_DECOMPRESSED_BYTES = 32 * 1024 * 1024


def plain_body(request: HttpRequest) -> bytes:
    """Return the body without its compression.

    Raises: MisfitError for an unknown encoding, a body that is not gzip, and one over MAX_DECOMPRESSED_BYTES.
    """
    if not _is_compressed(request):
        return request.body
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    body = _inflated(inflater, request.body, MAX_DECOMPRESSED_BYTES + 1)
    if len(body) > MAX_DECOMPRESSED_BYTES:
        raise MisfitError(f"the body is larger than {MAX_DECOMPRESSED_BYTES} bytes when decompressed")
    if not inflater.eof:
        raise MisfitError("the gzip body ends too early")
    return body


def beginning_of_body(request: HttpRequest, num_bytes: int) -> bytes:
    """Return the body, of a compressed one only the first bytes; so little work is safe before authentication.

    Raises: MisfitError for an unknown encoding, and for a body that is not gzip.
    """
    if not _is_compressed(request):
        return request.body
    return _inflated(zlib.decompressobj(wbits=zlib.MAX_WBITS | 16), request.body, num_bytes)


def _is_compressed(request: HttpRequest) -> bool:
    encoding = (request.header("content-encoding") or "").strip().lower()
    if encoding not in ("", "identity", "gzip"):
        raise MisfitError(f"content encoding {encoding[:40]!r} is not understood: send gzip or none")
    return encoding == "gzip"


def _inflated(inflater: zlib._Decompress, content: bytes, num_bytes: int) -> bytes:
    try:
        return inflater.decompress(content, num_bytes)
    except zlib.error as error:
        raise MisfitError(f"the body is not gzip: {error}") from error
