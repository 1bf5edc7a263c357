"""Client for the service's own S3 requests: the readiness probe, buckets, inputs, checkpoints, and small results.

Where: `seaweed` probes the embedded store with it; services check buckets and prefixes; `checkpoint_verification`
reads whole objects, piece by piece; `profile_keeping` and `profiler_rules` store small objects. No other data passes
through it: clients send requests to `front`, and most agents of this machine to the store itself. The signing of
requests is shared with `front`.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Self
from urllib.parse import quote, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver
from multidict import CIMultiDictProxy
from yarl import URL

from clary.base.errors import NOTHING_CHANGED, ObjectStoreError
from clary.contract import sigv4
from clary.contract.launch_plan import Endpoint
from clary.contract.object_store import stored_names
from clary.control.objects import listed_entries

TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 8 * 1024 * 1024
STREAM_PIECE_BYTES = 1024 * 1024
# aiohttp must not add these headers: the sent headers must be exactly the signed ones.
AUTOMATIC_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


@dataclass(frozen=True, kw_only=True)
class StoreAnswer:
    """An answer of the store, with its body."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes


class StoreStream:
    """An answer of the store whose body has not been read yet."""

    def __init__(self, client: StoreClient, response: aiohttp.ClientResponse, *, bucket: str, key: str) -> None:
        self._client = client
        self._response = response
        self._bucket = bucket
        self._key = key

    @property
    def status(self) -> int:
        """HTTP status."""
        return self._response.status

    @property
    def content_length(self) -> int | None:
        """Bytes of the body as declared by the answer's Content-Length; None without it."""
        return self._response.content_length

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body in pieces of at most STREAM_PIECE_BYTES.

        Raises: ObjectStoreError if it breaks off, or if no byte arrives for `timeout_s` seconds.
        """
        try:
            async for piece in self._response.content.iter_chunked(STREAM_PIECE_BYTES):
                yield piece
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise self._client.unanswered("GET", self._bucket, self._key, error) from error


class StoreClient:
    """Sends signed requests with small bodies to one endpoint; use it as an async context manager.

    Args:
        endpoint: URL, region and key of the store.
        timeout_s: time limit of one whole request in seconds; for a stream, time limit of the wait for each piece.
    """

    def __init__(self, endpoint: Endpoint, *, timeout_s: float = TIMEOUT_S) -> None:
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = open_session(aiohttp.ClientTimeout(total=self._timeout_s, sock_connect=CONNECT_TIMEOUT_S))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def request(
        self, method: str, bucket: str, *, key: str = "", query: Sequence[tuple[str, str]] = (), body: bytes = b""
    ) -> StoreAnswer:
        """Send one request and return the answer; an error status is returned, not raised.

        Args:
            method: upper case.
            bucket: name; empty for the service itself.
            key: not encoded; empty for the bucket.
            query: names and values, not encoded.
            body: whole content; empty for a request without a body.
        Raises: ObjectStoreError without an answer, or for an answer of more than MAX_ANSWER_BYTES.
        """
        assert self._session is not None, "use `async with StoreClient(...)`"
        url, headers = self._signed(method, bucket, key, query, body)
        try:
            async with self._session.request(
                method, url, headers=headers, data=body or None, allow_redirects=False
            ) as response:
                content = bytearray()
                async for piece in response.content.iter_any():  # `read` may return only a part of the body
                    content += piece
                    if len(content) > MAX_ANSWER_BYTES:
                        raise self._too_long(method, bucket, key)
                is_listing = method == "GET" and not key
                document = self._with_keys(bytes(content), dict(query)) if is_listing else bytes(content)
                return StoreAnswer(status=response.status, headers=response.headers, body=document)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise self.unanswered(method, bucket, key, error) from error

    @asynccontextmanager
    async def open(self, bucket: str, key: str) -> AsyncIterator[StoreStream]:
        """Request an object and yield the answer, of any status; the caller reads its body in pieces, or not at all.

        Raises: ObjectStoreError without an answer.
        """
        assert self._session is not None, "use `async with StoreClient(...)`"
        url, headers = self._signed("GET", bucket, key, (), b"")
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=self._timeout_s)
        try:
            response = await self._session.get(url, headers=headers, allow_redirects=False, timeout=timeout)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise self.unanswered("GET", bucket, key, error) from error
        try:
            yield StoreStream(self, response, bucket=bucket, key=key)
        finally:
            if response.content.at_eof():
                response.release()
            else:
                response.close()  # the rest of the body is not needed

    async def ensure_bucket(self, bucket: str) -> None:
        """Make the bucket unless it exists.

        Raises: ObjectStoreError if it does not exist afterwards.
        """
        answer = await self.request("HEAD", bucket)
        if answer.status == 404:
            answer = await self.request("PUT", bucket)
        if answer.status not in (200, 409):
            raise self._refused("PUT", bucket, "", answer)

    async def probe(self, bucket: str) -> None:
        """Put, get and delete an object; return if all succeed and the content read equals the content written.

        Raises: ObjectStoreError naming the first step that failed.
        """
        key, content = f".clary-probe-{secrets.token_hex(8)}", secrets.token_bytes(16)
        for method, body, expected in (("PUT", content, 200), ("GET", b"", 200), ("DELETE", b"", 204)):
            answer = await self.request(method, bucket, key=key, body=body)
            if answer.status != expected or (method == "GET" and answer.body != content):
                raise self._refused(method, bucket, key, answer)

    async def probe_listing(self, bucket: str) -> None:
        """List one object of the bucket. Raises: ObjectStoreError unless the store does so."""
        answer = await self.request("GET", bucket, query=(("list-type", "2"), ("max-keys", "1")))
        if answer.status != 200:
            raise self._refused("GET", bucket, "", answer)

    def unanswered(self, method: str, bucket: str, key: str, error: BaseException) -> ObjectStoreError:
        """Return the error for a request without an answer, or with an incomplete one.

        Args:
            method: method of the request.
            bucket: bucket of the request.
            key: key of the request; empty for the bucket.
            error: error of the client library; named in the text.
        """
        return ObjectStoreError(
            f"object store {self._endpoint.url}: {method} {encode_path(bucket, key)} got no answer within "
            f"{self._timeout_s:.0f} s: {type(error).__name__} {error}; see `clary doctor`",
            retryable=True,
            details={"bucket": bucket, "key": key, NOTHING_CHANGED: method in ("GET", "HEAD")},
        )

    def _too_long(self, method: str, bucket: str, key: str) -> ObjectStoreError:
        return ObjectStoreError(
            f"object store {self._endpoint.url}: {method} {encode_path(bucket, key)} was answered with more than "
            f"{MAX_ANSWER_BYTES} bytes",
            details={"bucket": bucket, "key": key},
        )

    def _signed(
        self, method: str, bucket: str, key: str, query: Sequence[tuple[str, str]], body: bytes
    ) -> tuple[URL, list[tuple[str, str]]]:
        if self._endpoint.aliases_keys:
            key, query = stored_names.stored_name(key), stored_names.stored_query(query)
        path, query_text = encode_path(bucket, key), encode_query(query)
        payload_hash = hashlib.sha256(body).hexdigest()
        headers = sign_for_store(self._endpoint, method, path, query_text, [], payload_hash, datetime.now(UTC))
        return store_url(self._endpoint, path, query_text), headers

    def _with_keys(self, document: bytes, query: dict[str, str]) -> bytes:
        if not self._endpoint.aliases_keys:
            return document
        document, prefix = stored_names.with_keys(document), query.get("prefix", "")
        if not stored_names.may_match_others(prefix):
            return document
        return listed_entries.keep_entries(document, lambda key: key.startswith(prefix))

    def _refused(self, method: str, bucket: str, key: str, answer: StoreAnswer) -> ObjectStoreError:
        text = answer.body[:300].decode("utf-8", "replace")
        return ObjectStoreError(
            f"object store {self._endpoint.url}: {method} s3://{bucket}/{key} was answered {answer.status}: {text}",
            details={"bucket": bucket, "key": key, "status": answer.status},
        )


def open_session(timeout: aiohttp.ClientTimeout, *, resolver: AbstractResolver | None = None) -> aiohttp.ClientSession:
    """Return a session that sends and returns data unchanged: no cookies, proxy, decoding or added headers.

    Args:
        timeout: time limits of each request.
        resolver: resolves names; None: as the machine does.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=15.0, resolver=resolver),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=timeout,
        auto_decompress=False,
        trust_env=False,
        skip_auto_headers=AUTOMATIC_HEADERS,
        read_bufsize=256 * 1024,
    )


def encode_path(bucket: str, key: str) -> str:
    """Return the path of a bucket or object, percent-encoded as S3 signs it."""
    return quote(f"/{bucket}/{key}" if key else f"/{bucket}", safe=sigv4.PATH_SAFE)


def encode_query(query: Sequence[tuple[str, str]]) -> str:
    """Return a query, percent-encoded as S3 signs it."""
    return "&".join(
        f"{quote(name, safe=sigv4.UNRESERVED)}={quote(value, safe=sigv4.UNRESERVED)}" for name, value in query
    )


def store_url(endpoint: Endpoint, path: str, query: str) -> URL:
    """Return the URL of a request without a second encoding or normalisation.

    Args:
        endpoint: the store; the path of its URL, if any, precedes `path`.
        path: percent-encoded, with a leading slash.
        query: encoded, without `?`; may be empty.
    """
    return URL(f"{endpoint.url.rstrip('/')}{path}{'?' if query else ''}{query}", encoded=True)


def sign_for_store(
    endpoint: Endpoint,
    method: str,
    path: str,
    query: str,
    headers: Sequence[tuple[str, str]],
    payload_hash: str,
    now: datetime,
) -> list[tuple[str, str]]:
    """Return `headers` with the host and the store's signature added; only host, x-amz-* and content-md5 are signed.

    Args:
        endpoint: the store, its region and its key.
        method: upper case.
        path: percent-encoded, without the endpoint's own path.
        query: encoded, without `?`.
        headers: headers to send, without host.
        payload_hash: SHA-256 of the body in hexadecimal, or one of S3's keywords such as UNSIGNED-PAYLOAD.
        now: current time, with a time zone; the signature contains it.
    """
    parts = urlsplit(endpoint.url)
    all_headers = [("host", parts.netloc), *headers]
    signed_names = [
        name for name, _ in all_headers if name.lower() in ("host", "content-md5") or name.lower().startswith("x-amz-")
    ]
    added = sigv4.sign(
        method,
        f"{parts.path.rstrip('/')}{path}",
        query,
        all_headers,
        payload_hash,
        credentials=endpoint.credentials,
        region=endpoint.region,
        service="s3",
        now=now,
        signed_header_names=signed_names,
    )
    return [*all_headers, *added.items()]
