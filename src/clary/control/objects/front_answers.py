"""Answers to clients of the S3 front: the store's answers without its own headers, and refusals in S3's format.

Where: `front` ends each request with one of these.
"""

from __future__ import annotations

import http
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from xml.sax.saxutils import escape

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from clary.base.errors import WireError
from clary.control.objects.authentication import REGION
from clary.control.objects.encryption import MARK
from clary.control.objects.forms.form_upload import (
    CREATED,
    FormUpload,
    created_document,
    object_address,
    redirect_address,
)

REQUEST_ID = "clary_request_id"  # attribute of a request in which the listener stores its id
BUCKET_REGION = "x-amz-bucket-region"
MAX_LISTING_BYTES = 8 * 1024 * 1024  # enough for 1000 keys of 1 KiB, escaped, with metadata
RETRY_AFTER_S = 1

# Objects share their address with the console. A page that a job stored must not act with the owner's session: in a
# sandbox a page has an origin of its own, to which browsers send no cookie of the console.
_POLICY = "Content-Security-Policy"
_HARMLESS = {
    _POLICY: "sandbox allow-scripts allow-downloads allow-popups allow-modals",
    "X-Content-Type-Options": "nosniff",
}
_PDF = "application/pdf"

_NOT_RETURNED = frozenset(
    ["connection", "keep-alive", "transfer-encoding", "trailer", "upgrade", "date", "server", MARK]
)
_STORES_OWN = "seaweed-"  # prefix of the store's own headers on copied objects
_CHECKSUM = "x-amz-checksum-"
_CHECKSUM_TYPE = "x-amz-checksum-type"
_NO_CHECKSUM = frozenset({_CHECKSUM_TYPE, "x-amz-checksum-algorithm"})

_log = logging.getLogger(__name__)


async def relay(
    request: web.BaseRequest,
    answer: aiohttp.ClientResponse,
    added: Iterable[tuple[str, str]] = (),
    *,
    content: bytes | None = None,
    may_tell: Callable[[str], bool] = lambda name: True,
) -> web.StreamResponse:
    """Forward the store's answer; if the store breaks off, break off too: a truncated answer must not look complete.

    Args:
        request: the client's.
        answer: the store's, its body unread.
        added: further headers; each replaces the store's header of its name.
        content: sent instead of the answer's own content, which has been read.
        may_tell: whether a header of the store's is forwarded, of those that clients of this service see.
    """
    headers = [(name, without_framing(name, value)) for name, value in answer.headers.items()]
    headers = [(name, value) for name, value in headers if value and is_told(name) and may_tell(name)]
    names = {name.lower() for name, _ in headers}
    response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=CIMultiDict(headers))
    if _CHECKSUM_TYPE not in names and any(name.startswith(_CHECKSUM) for name in names - _NO_CHECKSUM):
        response.headers[_CHECKSUM_TYPE] = "FULL_OBJECT"  # the store sends the type only for multipart objects
    for name, value in (*added, *_HARMLESS.items()):
        response.headers[name] = value
    if is_pdf_alone(response.headers.getall("Content-Type", [])):
        del response.headers[_POLICY]  # viewers of browsers show no PDF in a sandbox; it runs no code of a page
    response.headers["X-Amzn-RequestId"] = request_id(request)
    if request.body_exists and not request.content.at_eof():
        response.force_close()
    if content is not None:
        response.headers["Content-Length"] = str(len(content))
    elif "Content-Length" not in answer.headers and request.method != "HEAD" and not answer.content.at_eof():
        response.enable_chunked_encoding()
    await response.prepare(request)
    if content is not None:
        await response.write(content)
        return response
    try:
        while piece := await answer.content.readany():
            await response.write(piece)
    except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
        _log.warning("S3 %s %s broke off: %s %s", request.method, request.raw_path, type(error).__name__, error)
        if request.transport is not None:
            request.transport.abort()
    return response


def is_pdf_alone(types: Sequence[str]) -> bool:
    """Whether an answer is a PDF for every browser: they read the last type of a list, also after a parameter.

    Args:
        types: the values of all Content-Type headers.
    """
    return len(types) == 1 and types[0].lower() == _PDF


async def read_listing(answer: aiohttp.ClientResponse) -> bytes:
    """Return the body of the store's listing; more than MAX_LISTING_BYTES raise WireError(InternalError)."""
    content = b""
    async for piece in answer.content.iter_any():
        content += piece
        if len(content) > MAX_LISTING_BYTES:
            raise WireError("InternalError", "The store's listing is too long to be looked at.", http_status=500)
    return content


def whole(request: web.BaseRequest, status: int, content: bytes = b"") -> web.Response:
    """Return an answer written by the front: an XML document, or an empty body.

    Args:
        request: contains the request id; the connection is closed if its body was not read to the end.
        status: HTTP status.
        content: XML document; empty for an answer without a body.
    """
    own_id = request_id(request)
    response = web.Response(
        status=status,
        body=content,
        content_type="application/xml" if content else None,
        headers={"x-amz-request-id": own_id, "X-Amzn-RequestId": own_id, **_HARMLESS},
    )
    _close_after_rest(request, response)
    return response


def form_answer(
    request: web.BaseRequest,
    upload: FormUpload,
    stored: Mapping[str, str],
    told: Iterable[tuple[str, str]],
    *,
    is_bucket_in_host: bool,
) -> web.Response:
    """Return the answer to a form whose file is stored.

    Args:
        request: the client's.
        upload: the requested upload.
        stored: headers of the store's answer.
        told: headers that name the encryption.
        is_bucket_in_host: whether the client's Host header names the bucket.
    """
    etag = stored.get("ETag", "")
    host = request.headers.get("Host", "")
    address = object_address(upload.asked, scheme=request.scheme, host=host, is_bucket_in_host=is_bucket_in_host)
    is_created = upload.status == CREATED and not upload.redirect
    content = created_document(upload, etag, address) if is_created else b""
    response = whole(request, http.HTTPStatus.SEE_OTHER if upload.redirect else upload.status, content)
    response.headers["Location"] = redirect_address(upload, etag) if upload.redirect else address
    response.headers["ETag"] = etag
    for name, value in (*told, *((n, v) for n, v in stored.items() if n.lower().startswith(_CHECKSUM))):
        response.headers[name] = value
    return response


def error_response(request: web.BaseRequest, error: WireError, resource: str) -> web.Response:
    """Return a refusal in S3's XML format.

    Args:
        request: the client's; the answer to a HEAD has no body.
        error: code, message, HTTP status and the region that the client should use, if any.
        resource: path of the request, which the document names.
    """
    content = "" if request.method == "HEAD" else error_document(error, resource, request_id(request))
    response = whole(request, error.http_status, content.encode("utf-8", "replace"))
    response.content_type = "application/xml"
    if REGION in error.details:
        response.headers[BUCKET_REGION] = str(error.details[REGION])  # an answer to HEAD has the region only here
    if error.http_status == 503:
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
    return response


def is_told(name: str) -> bool:
    """Whether clients see a header of the store's answers."""
    return name.lower() not in _NOT_RETURNED and not name.lower().startswith(_STORES_OWN)


def without_framing(name: str, value: str) -> str:
    """Remove aws-chunked, which only frames the transfer, from Content-Encoding; SeaweedFS stores and returns it."""
    if name.lower() != "content-encoding":
        return value
    return ",".join(part for part in map(str.strip, value.split(",")) if part and part.lower() != "aws-chunked")


def request_id(request: web.BaseRequest) -> str:
    """Return the id that the listener gave to a request; a random id without it."""
    return getattr(request, REQUEST_ID, "") or secrets.token_hex(8)


def _close_after_rest(request: web.BaseRequest, response: web.Response) -> None:
    if request.body_exists and not request.content.at_eof():
        response.force_close()  # the rest of the body would be read as the next request


def error_document(error: WireError, resource: str, own_id: str) -> str:
    """Return a refusal as an XML document.

    Args:
        error: code, message and region.
        resource: path of the request.
        own_id: id of the request.
    """
    fields = {"Code": error.code, "Message": error.message, "Resource": resource, "RequestId": own_id}
    if REGION in error.details:
        fields[REGION] = str(error.details[REGION])
    lines = "".join(f"<{name}>{escape(printable(value))}</{name}>" for name, value in fields.items())
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{lines}</Error>'


def printable(text: str) -> str:
    """Replace the characters that XML 1.0 cannot hold."""
    return "".join(character if character >= " " or character in "\t\n\r" else "?" for character in text)
