"""A bucket as a trial reads it: one folder listed from a name on, objects read by ranges.

boto3 does it where it is installed, with whatever keys and endpoint it finds. Environments of jobs often have none: the
requests are signed here then, with the variables that each job has, AWS_ENDPOINT_URL and the two of the key.
"""

from __future__ import annotations

import errno
import http.client
import os
import random
import ssl
import time
import xml.etree.ElementTree as ET
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Protocol
from urllib.parse import quote, unquote_plus, urlsplit

from clary.contract.launch_plan import Credentials
from clary.contract.sigv4 import EMPTY_HASH, PATH_SAFE, UNRESERVED, sign
from clary.train.debugger.errors import ConfigurationError, StoreError

_TIMEOUT_S = 30.0  # of connecting, and of every silence
_ATTEMPTS = 5
_FIRST_PAUSE_S = 0.2  # between attempts; it doubles
_ABSENT = ("404", "NoSuchKey", "NotFound")
_PASSING_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
_OK_STATUSES = (200, 206)
_SAID_BYTES = 300  # of an answer, in an error
_KEY_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "S3_ENDPOINT_URL")


@dataclass(frozen=True)
class StoredObject:
    """An object of a bucket."""

    key: str
    size: int  # bytes
    etag: str


@dataclass
class Listing:
    """One folder: its objects, and the folders in it, which end in a slash."""

    objects: list[StoredObject] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)


class Bucket(Protocol):
    """Where objects are read."""

    name: str

    def list(self, prefix: str, after: str = "") -> Listing:
        """Return what lies at a prefix, not below its slashes, with keys behind `after`. Raises: StoreError."""

    def read(self, key: str, start: int, length: int) -> bytes:
        """Return bytes of an object, 1 or more that it has. Raises: FileNotFoundError, StoreError."""


def open_bucket(name: str) -> Bucket:
    """Return a bucket, by boto3 or by the environment's variables.

    Raises: ConfigurationError saying what to install or to set.
    """
    endpoint = next((os.environ[one] for one in _ENDPOINT_VARIABLES if os.environ.get(one)), None)
    try:
        import boto3
    except ImportError:
        pass
    else:
        client = boto3.client("s3", endpoint_url=endpoint, region_name=os.environ.get("AWS_REGION") or None)
        return BotoBucket(name, client)
    if endpoint is None or not all(os.environ.get(one) for one in _KEY_VARIABLES):
        raise ConfigurationError(
            f"s3://{name} can not be read: boto3 is not installed and {_ENDPOINT_VARIABLES[1]},"
            f" {' and '.join(_KEY_VARIABLES)} are not all set: pip install boto3, or set them"
        )
    return SignedBucket(name, endpoint=endpoint, environment=os.environ)


class BotoBucket:
    """A bucket by a client of boto3, which tries again by itself."""

    def __init__(self, name: str, client: Any) -> None:
        self.name, self._client = name, client

    def list(self, prefix: str, after: str = "") -> Listing:
        """Return what lies at a prefix."""
        request = {"Bucket": self.name, "Prefix": prefix, "Delimiter": "/"} | ({"StartAfter": after} if after else {})
        found = Listing()
        while True:
            try:
                page = self._client.list_objects_v2(**request)
            except Exception as error:
                raise self._named(error, "list", prefix) from error
            for item in page.get("Contents", ()):
                found.objects.append(StoredObject(item["Key"], int(item["Size"]), item.get("ETag", "")))
            found.folders += [item["Prefix"] for item in page.get("CommonPrefixes", ())]
            if not page.get("IsTruncated"):
                return found
            request["ContinuationToken"] = page["NextContinuationToken"]

    def read(self, key: str, start: int, length: int) -> bytes:
        """Return bytes of an object."""
        try:
            answer = self._client.get_object(Bucket=self.name, Key=key, Range=_range(start, length))
            data: bytes = answer["Body"].read()
        except Exception as error:
            raise self._named(error, "read", key) from error
        return data

    def _named(self, error: Exception, doing: str, key: str) -> OSError:
        answer = getattr(error, "response", None)
        code = str(answer.get("Error", {}).get("Code", "")) if isinstance(answer, dict) else ""
        return _failure(self.name, doing, key, f"{type(error).__name__}: {error}", is_absent=code in _ABSENT)


class SignedBucket:
    """A bucket by requests of our own, from any thread.

    Args:
        endpoint: http or https; its path, if any, stands before the bucket.
        environment: has the key, and may have AWS_SESSION_TOKEN, AWS_REGION and AWS_CA_BUNDLE.

    Raises: ConfigurationError for an endpoint that is none.
    """

    def __init__(self, name: str, *, endpoint: str, environment: Mapping[str, str]) -> None:
        said = endpoint.rpartition("@")[2]  # what stands before it may be a password
        wrong = f"the endpoint of S3 is {said!r}; expected http://host:port"
        try:
            parts = urlsplit(endpoint)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise ConfigurationError(wrong) from None
        if parts.scheme not in ("http", "https") or not host:
            raise ConfigurationError(wrong)
        self.name = name
        self._base = f"{parts.path.rstrip('/')}/{quote(name, safe=UNRESERVED)}"
        self._host = parts.netloc.rpartition("@")[2]
        self._credentials = Credentials(
            access_key_id=environment[_KEY_VARIABLES[0]], secret_access_key=environment[_KEY_VARIABLES[1]]
        )
        self._token = environment.get("AWS_SESSION_TOKEN", "")
        self._region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
        self._place = host, port
        self._tls: ssl.SSLContext | None = None
        if parts.scheme == "https":
            self._tls = ssl.create_default_context(cafile=environment.get("AWS_CA_BUNDLE") or None)
        self._idle: deque[http.client.HTTPConnection] = deque()  # connections that no thread uses now

    def close(self) -> None:
        """Close connections that are not in use."""
        while self._idle:
            self._idle.pop().close()

    def list(self, prefix: str, after: str = "") -> Listing:
        """Return what lies at a prefix."""
        query = {"list-type": "2", "encoding-type": "url", "prefix": prefix, "delimiter": "/"}
        if after:
            query["start-after"] = after
        found = Listing()
        while True:
            answer = self._send("list", prefix, path=self._base, query=query)
            try:
                token = _read_page(answer, found)
            except (ET.ParseError, ValueError) as error:
                raise _failure(self.name, "list", prefix, f"the answer is no listing: {error}") from error
            if not token:
                return found
            query["continuation-token"] = token

    def read(self, key: str, start: int, length: int) -> bytes:
        """Return bytes of an object."""
        path = f"{self._base}/{quote(key, safe=PATH_SAFE)}"
        return self._send("read", key, path=path, query={}, headers={"range": _range(start, length)})

    def _send(
        self, doing: str, key: str, *, path: str, query: Mapping[str, str], headers: Mapping[str, str] | None = None
    ) -> bytes:
        text = "&".join(f"{name}={quote(value, safe=UNRESERVED)}" for name, value in sorted(query.items()))
        said = ""
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_FIRST_PAUSE_S * 2 ** (attempt - 1) * random.uniform(0.5, 1.0))
            try:
                status, body = self._once(path, text, headers or {})
            except (OSError, http.client.HTTPException) as error:
                said = f"{type(error).__name__}: {error}"
                continue
            if status in _OK_STATUSES:
                return body
            said = f"status {status}: {body[:_SAID_BYTES].decode('utf-8', 'replace')}"
            if status not in _PASSING_STATUSES:
                raise _failure(self.name, doing, key, said, is_absent=status == http.HTTPStatus.NOT_FOUND)
        raise _failure(self.name, doing, key, f"{said}; {_ATTEMPTS} attempts")

    def _once(self, path: str, query: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
        given = {"host": self._host, **headers}
        if self._token:
            given["x-amz-security-token"] = self._token
        given |= sign(
            "GET",
            path,
            query,
            given,
            EMPTY_HASH,
            credentials=self._credentials,
            region=self._region,
            service="s3",
            now=datetime.now(timezone.utc),
        )
        connection = self._connection()
        try:
            connection.request("GET", f"{path}?{query}" if query else path, headers=given)
            answer = connection.getresponse()
            status, body = answer.status, answer.read()
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        return status, body

    def _connection(self) -> http.client.HTTPConnection:
        try:
            return self._idle.pop()
        except IndexError:
            host, port = self._place
        if self._tls is None:
            return http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
        return http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=self._tls)


def _range(start: int, length: int) -> str:
    return f"bytes={start}-{start + length - 1}"


def _failure(bucket: str, doing: str, key: str, said: str, *, is_absent: bool = False) -> OSError:
    place = f"s3://{bucket}/{key}"
    if is_absent and doing == "read":
        return FileNotFoundError(errno.ENOENT, "there is no such object", place)
    return StoreError(f"could not {doing} {place}: {said}")


def _read_page(answer: bytes, found: Listing) -> str:
    """Add a page of ListObjectsV2 and return what the next one is asked for by. Raises: ET.ParseError, ValueError."""
    texts: dict[str, str] = {}
    objects, folders = [], []
    for element in ET.fromstring(answer):  # noqa: S314 - of the user's own store; expat limits expansions itself
        name = element.tag.rpartition("}")[2]
        inner = {child.tag.rpartition("}")[2]: child.text or "" for child in element}
        if name == "Contents":
            objects.append((inner["Key"], int(inner.get("Size", "0")), inner.get("ETag", "")))
        elif name == "CommonPrefixes":
            folders.append(inner["Prefix"])
        else:
            texts[name] = element.text or ""
    # A store that does not know encoding-type=url says so by not repeating it.
    decode = unquote_plus if texts.get("EncodingType") == "url" else str
    found.objects += [StoredObject(decode(key), size, etag) for key, size, etag in objects]
    found.folders += [decode(prefix) for prefix in folders]
    if texts.get("IsTruncated") != "true":
        return ""
    if not texts.get("NextContinuationToken"):
        raise ValueError("it says that more follows, but not where")
    return texts["NextContinuationToken"]
