"""Client for public buckets of AWS: unsigned reads of objects and listings, which are passed on and not stored.

Where: `public_door` answers reads of a bucket with it that a pattern of `public_buckets` names and that does not exist
here; `lookup` checks the inputs of jobs with it. AWS gets no key, and no header of a client except `READ_HEADERS`.
"""

from __future__ import annotations

import http
import re
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from clary.base.errors import WireError
from clary.control.egress.public_names import AWS_URL, is_public_name
from clary.control.objects.s3_request import S3Request
from clary.control.objects.store_client import CONNECT_TIMEOUT_S, encode_path, encode_query, open_session

READ_TIMEOUT_S = 60.0  # longest wait for a byte
MAX_LISTING_BYTES = 64 * 1024  # of a listing with one key

# Headers of a client that change what is read.
READ_HEADERS = frozenset(
    {"range", "if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "x-amz-checksum-mode"}
)
_OF_LISTING = frozenset(
    {
        "list-type",
        "prefix",
        "delimiter",
        "marker",
        "start-after",
        "continuation-token",
        "encoding-type",
        "max-keys",
        "fetch-owner",
        "x-id",
    }
)
_OF_OBJECT = frozenset({"partnumber", "versionid", "x-id"})
_SIGNED = "x-amz-"
_REFUSALS = (http.HTTPStatus.FORBIDDEN, http.HTTPStatus.NOT_FOUND)
_REDIRECTS = (http.HTTPStatus.MOVED_PERMANENTLY, http.HTTPStatus.TEMPORARY_REDIRECT)


class PublicBuckets:
    """Reads public buckets of AWS.

    Args:
        patterns: names of the buckets, with `*` for any characters; empty: no bucket is read.
        resolver: addresses of names, closed with this client; None: every address of the machine's resolver.
        url: `AWS_URL`, whose buckets have names of their own, or a mirror whose buckets are folders of this URL.
    """

    def __init__(
        self, patterns: Iterable[str], *, resolver: AbstractResolver | None = None, url: str = AWS_URL
    ) -> None:
        self._patterns = tuple(patterns)
        self._resolver = resolver
        self._url = url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None
        self._regional: dict[str, str] = {}  # bucket -> origin to which AWS has sent an earlier request

    def names(self, bucket: str) -> bool:
        """Whether a pattern matches a bucket's name."""
        return is_public_name(bucket, self._patterns)

    def reads(self, asked: S3Request) -> bool:
        """Whether a request reads an object or lists keys of a bucket that a pattern names."""
        if asked.method not in ("GET", "HEAD") or not self.names(asked.bucket):
            return False
        known = _OF_OBJECT if asked.key else _OF_LISTING
        return all(name.lower() in known or name.lower().startswith(_SIGNED) for name, _ in asked.query)

    async def open(self) -> None:
        """Open the pool of connections; AWS need not answer."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=READ_TIMEOUT_S)
        # As for the store, each connection serves one client's, whose number the listener bounds.
        self._session = open_session(timeout, resolver=self._resolver)

    async def close(self) -> None:
        """Close all connections; running requests break off."""
        if self._session is not None:
            await self._session.close()
            self._session = None
        if self._resolver is not None:
            await self._resolver.close()

    async def send(self, asked: S3Request, headers: Iterable[tuple[str, str]] = ()) -> aiohttp.ClientResponse:
        """Send a read and return the answer, whose body is not read yet; an error status is returned, not raised.

        Args:
            asked: a request of which `reads` is true.
            headers: the client's headers with lower-case names; only READ_HEADERS are sent.
        Raises: WireError ServiceUnavailable without an answer.
        """
        assert self._session is not None, "open() has not been called"
        kept = [(name, value) for name, value in headers if name in READ_HEADERS]
        origin = self._regional.get(asked.bucket) or self._origin(asked.bucket)
        try:
            answer = await self._request(asked, origin, kept)
            if answer.status not in _REDIRECTS:
                return answer
            region = _region_of(asked.bucket, answer.headers.get("Location", ""))
            if region is None:
                return answer
            answer.release()
            answer = await self._request(asked, region, kept)
        except WireError:
            self._regional.pop(asked.bucket, None)  # a region that does not answer must not stand for the bucket
            raise
        self._regional[asked.bucket] = region
        return answer

    async def has_objects(self, bucket: str, prefix: str) -> bool:
        """Return whether any key of a public bucket starts with the prefix; False where AWS refuses the listing.

        Raises: WireError ServiceUnavailable without an answer, or if AWS is busy.
        """
        query = (("list-type", "2"), ("max-keys", "1"), ("prefix", prefix))
        answer = await self.send(S3Request(method="GET", bucket=bucket, key="", query=query))
        try:
            content = b""
            async for piece in answer.content.iter_any():
                content += piece
                if len(content) > MAX_LISTING_BYTES:
                    break
            if answer.status not in (http.HTTPStatus.OK, *_REFUSALS):
                raise _unanswered(bucket, f"{answer.status} {answer.reason}")
            return answer.status == http.HTTPStatus.OK and b"<Contents>" in content
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _unanswered(bucket, f"{type(error).__name__}: {error}") from error
        finally:
            answer.close()

    def _origin(self, bucket: str) -> str:
        return f"https://{bucket}.s3.amazonaws.com" if self._url == AWS_URL else self._url

    async def _request(
        self, asked: S3Request, origin: str, headers: Sequence[tuple[str, str]]
    ) -> aiohttp.ClientResponse:
        assert self._session is not None, "open() has not been called"
        path = encode_path(asked.bucket, asked.key)
        if origin != self._url:  # the bucket is in the host's name
            path = path.removeprefix(f"/{asked.bucket}") or "/"
        query = encode_query([pair for pair in asked.query if not pair[0].lower().startswith(_SIGNED)])
        url = URL(f"{origin}{path}{'?' if query else ''}{query}", encoded=True)
        try:
            return await self._session.request(asked.method, url, headers=headers, allow_redirects=False)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _unanswered(asked.bucket, f"{type(error).__name__}: {error}") from error


def _region_of(bucket: str, location: str) -> str | None:
    """Return the origin of a bucket's own name in a region, None if a redirect leads to any other place."""
    try:
        parts = urlsplit(location)
    except ValueError:
        return None
    host = parts.netloc.lower()
    if parts.scheme != "https" or not re.fullmatch(rf"{re.escape(bucket)}\.s3[.-][a-z0-9-]+\.amazonaws\.com", host):
        return None
    return f"https://{host}"


def _unanswered(bucket: str, why: str) -> WireError:
    return WireError(
        "ServiceUnavailable",
        f"There is no bucket {bucket} in this service's store, and AWS, whose public bucket of this name would be "
        f"read, gave no answer ({why}). Check the connection to the internet, or copy the "
        "data into a bucket of this name (docs/s3.md, Public data).",
        http_status=http.HTTPStatus.SERVICE_UNAVAILABLE,
    )
