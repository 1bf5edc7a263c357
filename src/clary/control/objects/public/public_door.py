"""Answers to requests for public buckets of AWS that do not exist here: reads, and copies into buckets of this service.

Where: `front` asks it first, as soon as the caller is known. A bucket of this service hides a public one of its name.
Any caller with a key may read what everybody may read, also a job's key; copies go through the caller's permit.
"""

from __future__ import annotations

import asyncio
import http
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from html import unescape

import aiohttp
from aiohttp import web

from clary.base.clock import Clock
from clary.base.errors import WireError
from clary.contract import sigv4
from clary.control.objects import encryption, s3_request
from clary.control.objects.copying import COPY_SOURCE
from clary.control.objects.front_answers import BUCKET_REGION, error_document, read_listing, relay, request_id, whole
from clary.control.objects.incoming_body import IncomingBody
from clary.control.objects.outgoing_bodies import Outgoing
from clary.control.objects.public import public_copies
from clary.control.objects.public.public_store import PublicBuckets
from clary.control.objects.s3_request import S3Request
from clary.control.objects.store_link import StoreLink

PATIENCE_S = 5.0  # after which a copy's client is told that the copy goes on
# Headers with which S3 answers reads. Others, such as Set-Cookie, would act in the origin of the console.
_OF_S3 = frozenset(
    {
        "accept-ranges",
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-language",
        "content-length",
        "content-range",
        "content-type",
        "etag",
        "expires",
        "last-modified",
        "retry-after",
    }
)


class PublicDoor:
    """Answers requests of one front for public buckets.

    Args:
        public: client of AWS.
        store: the service's own store, which is asked whether a bucket exists here and receives copies.
        clock: time of copies.
        region: the region that clients are told for every bucket: AWS's own would make them sign for another one.
        forward_encryption: whether the store itself keeps the encryption that a request names.
        refuse_where_full: raises WireError if the store's answer tells that its disk is full.
    """

    def __init__(
        self,
        public: PublicBuckets,
        store: StoreLink,
        *,
        clock: Clock,
        region: str,
        forward_encryption: bool,
        refuse_where_full: Callable[[aiohttp.ClientResponse], None],
    ) -> None:
        self._public = public
        self._store = store
        self._clock = clock
        self._region = region
        self._forward_encryption = forward_encryption
        self._refuse_where_full = refuse_where_full

    async def open(self) -> None:
        """Open the pool of connections to AWS."""
        await self._public.open()

    async def close(self) -> None:
        """Close all connections to AWS; running requests break off."""
        await self._public.close()

    async def reads(self, asked: S3Request) -> bool:
        """Return whether a request reads a public bucket that does not exist here."""
        return self._public.reads(asked) and await self._is_missing(asked.bucket)

    async def answer(
        self, request: web.BaseRequest, asked: S3Request, headers: list[tuple[str, str]]
    ) -> web.StreamResponse:
        """Answer a read with AWS's answer.

        Args:
            request: the client's.
            asked: a request of which `reads` is true.
            headers: the client's headers with lower-case names.
        Raises: WireError ServiceUnavailable without an answer of AWS.
        """
        answer = await self._public.send(asked, headers)
        try:
            region = [(BUCKET_REGION, self._region)] if BUCKET_REGION in answer.headers else []
            return await relay(request, answer, region, may_tell=_is_of_s3)
        finally:
            answer.release()

    async def source_of(self, asked: S3Request, outgoing: Outgoing) -> S3Request | None:
        """Return the read of a copy's source if it lies in a public bucket that does not exist here, else None."""
        if not public_copies.copies(asked, outgoing.headers):
            return None
        value = dict(outgoing.headers)[COPY_SOURCE]
        bucket, key = s3_request.check_copy_source(value)
        if not self._public.names(bucket) or not await self._is_missing(bucket):
            return None
        version = value.partition("?versionId=")[2]
        return S3Request(method="GET", bucket=bucket, key=key, query=(("versionId", version),) if version else ())

    async def answer_copy(
        self, request: web.BaseRequest, asked: S3Request, outgoing: Outgoing, body: IncomingBody, source: S3Request
    ) -> web.StreamResponse:
        """Answer a copy from a public bucket: its source is read at AWS and uploaded here.

        A copy that takes longer than PATIENCE_S is answered as S3 does: with status 200 at once, blanks while it goes
        on, and its result or its error in the document. It ends if its client leaves.

        Args:
            request: the client's.
            asked: the copy.
            outgoing: the copy's headers for the store.
            body: the client's body, which is empty; it takes the source's error.
            source: what `source_of` returned.
        Raises: WireError if the source cannot be read or breaks off early; then no object is stored.
        """
        copying = asyncio.ensure_future(self._copy(asked, outgoing, body, source))
        try:
            done, _ = await asyncio.wait((copying,), timeout=PATIENCE_S)
            if done:
                etag = copying.result()
                response = whole(request, http.HTTPStatus.OK, self._result(asked, etag, public_copies.DECLARATION))
                for name, value in self._told_encryption(asked, outgoing):
                    response.headers[name] = value
                return response
            return await self._answer_slowly(request, asked, outgoing, copying)
        finally:
            copying.cancel()
            await asyncio.gather(copying, return_exceptions=True)

    async def _answer_slowly(
        self, request: web.BaseRequest, asked: S3Request, outgoing: Outgoing, copying: asyncio.Future[str]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/xml"})
        for name, value in self._told_encryption(asked, outgoing):
            response.headers[name] = value
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(public_copies.DECLARATION)
        while not (await asyncio.wait((copying,), timeout=PATIENCE_S))[0]:
            await response.write(b" ")  # raises once the client has left
        try:
            await response.write(self._result(asked, copying.result()))
        except WireError as error:
            document = error_document(error, asked.resource, request_id(request)).encode()
            await response.write(document.removeprefix(public_copies.DECLARATION))
        return response

    async def _copy(self, asked: S3Request, outgoing: Outgoing, body: IncomingBody, source: S3Request) -> str:
        """Read the source, store it and return the ETag."""
        conditions = public_copies.source_headers(asked, outgoing.headers)
        found = await self._public.send(source, conditions)
        try:
            public_copies.check_answer(
                found.status,
                found.reason or "",
                found.headers.get("Content-Range", ""),
                asked_range=dict(conditions).get("range"),
                source=source.resource,
            )
            if found.content_length is None:
                raise _broken(source, "no Content-Length")
            wanted = outgoing.encryption
            headers = public_copies.upload_headers(
                asked,
                outgoing.headers,
                found.headers.items(),
                length=found.content_length,
                mark="" if wanted is None or self._forward_encryption else wanted.mark,
            )
            pieces = _guarded(found, body, source)
            answer = await self._store.send(
                asked, replace(outgoing, headers=headers, payload_hash=sigv4.UNSIGNED_PAYLOAD, data=pieces), body
            )
            try:
                self._refuse_where_full(answer)
                if answer.status != http.HTTPStatus.OK:
                    raise _refused(answer.status, await read_listing(answer))
                return answer.headers.get("ETag", "")
            finally:
                answer.release()
        finally:
            found.close()

    def _result(self, asked: S3Request, etag: str, begin: bytes = b"") -> bytes:
        return begin + public_copies.result_document(asked, etag=etag, now=self._clock.now())

    def _told_encryption(self, asked: S3Request, outgoing: Outgoing) -> list[tuple[str, str]]:
        return [] if self._forward_encryption else encryption.told_headers(asked, outgoing.encryption, {})

    async def _is_missing(self, bucket: str) -> bool:
        status, _ = await self._store.head(bucket, "")
        return status == http.HTTPStatus.NOT_FOUND


async def _guarded(found: aiohttp.ClientResponse, body: IncomingBody, source: S3Request) -> AsyncIterator[bytes]:
    """Yield the source's bytes and store its error, which the HTTP client library reports as a broken connection."""
    try:
        async for piece in found.content.iter_any():
            yield piece
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        body.error = _broken(source, f"{type(error).__name__}: {error}")
        raise body.error from error


def _is_of_s3(name: str) -> bool:
    return name.lower() in _OF_S3 or name.lower().startswith("x-amz-")


def _refused(status: int, document: bytes) -> WireError:
    """Return the store's refusal of an upload."""
    found = {name: re.search(rf"<{name}>([^<]*)</{name}>".encode(), document) for name in ("Code", "Message")}
    code, message = (unescape(match[1].decode("utf-8", "replace")) if match else "" for match in found.values())
    return WireError(code or "InternalError", message or f"The store answered {status}.", http_status=status)


def _broken(source: S3Request, why: str) -> WireError:
    return WireError(
        "ServiceUnavailable",
        f"The source {source.resource} of the copy was not read to its end at AWS ({why}). Nothing was stored.",
        http_status=http.HTTPStatus.SERVICE_UNAVAILABLE,
    )
