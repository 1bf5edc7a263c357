"""Answers to requests for public buckets of AWS that do not exist here: reads, and copies into buckets of this service.

Where: `front` asks it first, as soon as the caller is known. A bucket of this service hides a public one of its name.
Any caller with a key may read what everybody may read, also a job's key; copies go through the caller's permit.
"""

from __future__ import annotations

import http
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import aiohttp
from aiohttp import web

from clary.base.clock import Clock
from clary.base.errors import WireError
from clary.contract import sigv4
from clary.control.objects import encryption, s3_request
from clary.control.objects.front_answers import BUCKET_REGION, relay, whole
from clary.control.objects.incoming_body import IncomingBody
from clary.control.objects.outgoing_bodies import Outgoing
from clary.control.objects.public import public_copies
from clary.control.objects.public.public_store import PublicBuckets
from clary.control.objects.s3_request import S3Request
from clary.control.objects.store_link import StoreLink


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
            return await relay(request, answer, region)
        finally:
            answer.release()

    async def source_of(self, asked: S3Request, outgoing: Outgoing) -> S3Request | None:
        """Return the read of a copy's source if it lies in a public bucket that does not exist here, else None."""
        if not public_copies.copies(asked, outgoing.headers):
            return None
        value = dict(outgoing.headers)[public_copies.COPY_SOURCE]
        bucket, key = s3_request.check_copy_source(value)
        if not self._public.names(bucket) or not await self._is_missing(bucket):
            return None
        version = value.partition("?versionId=")[2]
        return S3Request(method="GET", bucket=bucket, key=key, query=(("versionId", version),) if version else ())

    async def answer_copy(
        self, request: web.BaseRequest, asked: S3Request, outgoing: Outgoing, body: IncomingBody, source: S3Request
    ) -> web.StreamResponse:
        """Answer a copy from a public bucket: its source is read at AWS and uploaded here.

        Args:
            request: the client's.
            asked: the copy.
            outgoing: the copy's headers for the store.
            body: the client's body, which is empty; it takes the source's error.
            source: what `source_of` returned.
        Raises: WireError if the source can not be read or breaks off; then no object is stored.
        """
        found = await self._public.send(source, public_copies.source_headers(outgoing.headers))
        try:
            public_copies.check_answer(found.status, found.reason or "", source=source.resource)
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
                return await self._told(request, asked, outgoing, answer)
            finally:
                answer.release()
        finally:
            found.close()

    async def _told(
        self, request: web.BaseRequest, asked: S3Request, outgoing: Outgoing, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        self._refuse_where_full(answer)
        if answer.status != http.HTTPStatus.OK:
            return await relay(request, answer)
        document = public_copies.result_document(asked, etag=answer.headers.get("ETag", ""), now=self._clock.now())
        response = whole(request, http.HTTPStatus.OK, document)
        if not self._forward_encryption:
            for name, value in encryption.told_headers(asked, outgoing.encryption, answer.headers):
                response.headers[name] = value
        return response

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


def _broken(source: S3Request, why: str) -> WireError:
    return WireError(
        "ServiceUnavailable",
        f"The source {source.resource} of the copy was not read to its end at AWS ({why}). Nothing was stored.",
        http_status=http.HTTPStatus.SERVICE_UNAVAILABLE,
    )
