"""Uploads to the store: one PUT for small objects, multipart for large objects and streams.

Every object and part carries its CRC32, so a store refuses a body that was damaged in transit (the signed SHA-256 alone
is not enough: SeaweedFS 4.48 checks the signature over the SHA-256, but not the body against the SHA-256). A multipart
upload that cannot be completed is aborted, which frees its parts; no object appears under the key before completion.
Source: Amazon S3 API reference, "Uploading and copying objects using multipart upload".
"""

from __future__ import annotations

import base64
import hashlib
import xml.etree.ElementTree as ET
import zlib
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from clary.base.errors import ObjectStoreError
from clary.contract.object_store.exchange import Exchange, S3Request, Trouble, error_facts

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing since Python 3.11

PART_BYTES = 16 << 20  # S3 accepts parts of 5 MiB to 5 GiB
# number of parts after which the part size doubles: 10,000 parts then hold more than S3's limit of 5 TiB
_PARTS_A_SIZE = 1000
_MAX_PENDING_PARTS = 4  # parts in flight, each in memory
_MD5_HEX_LENGTH = 32
_CRC32_HEADER = "x-amz-checksum-crc32"


@dataclass(frozen=True)
class _Part:
    etag: str
    crc32: str  # in base64, as S3 returns it


class ObjectWriter:
    """Write-only stream that becomes an object when it is closed; as a context it aborts on an error.

    One thread writes; the store's threads send parts in parallel.
    """

    def __init__(
        self,
        exchange: Exchange,
        *,
        bucket: str,
        key: str,
        headers: Mapping[str, str],
    ) -> None:
        self._exchange = exchange
        self._bucket = bucket
        self._key = key
        self._headers = headers  # headers of the object, with its metadata
        self._buffer = bytearray()
        self._upload_id = ""
        self._pending: deque[Future[_Part]] = deque()
        self._parts: list[_Part] = []
        self._num_parts = 0
        self._is_over = False
        self.size_bytes = 0  # bytes written so far
        self.etag = ""  # ETag of the object, set by `close`

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Write `data` and return its length. Raises: ObjectStoreError, also if an earlier part failed."""
        self._buffer += data
        self.size_bytes += len(data)
        while len(self._buffer) >= (size := self._part_bytes()):
            part = bytes(memoryview(self._buffer)[:size])
            del self._buffer[:size]
            self._send_part(part)
        return len(data)

    def close(self) -> None:
        """Complete the object. Raises: ObjectStoreError; the upload is then aborted."""
        if self._is_over:
            return
        try:
            if not self._upload_id:
                self.etag = put_object(
                    self._exchange, self._bucket, self._key, body=bytes(self._buffer), headers=self._headers
                )
            else:
                if self._buffer:
                    self._send_part(bytes(self._buffer))
                while self._pending:
                    self._parts.append(self._pending.popleft().result())
                self.etag = self._complete()
            self._is_over = True
        finally:
            self.abort()

    def abort(self) -> None:
        """Drop the upload and its parts; does nothing after a successful `close`."""
        if self._is_over:
            return
        self._is_over = True
        for part in self._pending:
            part.cancel()
        for part in self._pending:
            if not part.cancelled():
                part.exception()  # wait: a part that arrives after the abort would remain in the store
        self._pending.clear()
        if self._upload_id:
            request = self._request("DELETE", {"uploadId": self._upload_id})
            try:
                self._exchange.send(request)
            except ObjectStoreError:
                return  # the first error is raised instead; stores remove abandoned uploads after a time

    def _part_bytes(self) -> int:
        return PART_BYTES << (self._num_parts // _PARTS_A_SIZE)

    def _send_part(self, part: bytes) -> None:
        if not self._upload_id:
            self._upload_id = self._start()
        while len(self._pending) >= _MAX_PENDING_PARTS:
            self._parts.append(self._pending.popleft().result())
        self._num_parts += 1
        query = {"partNumber": str(self._num_parts), "uploadId": self._upload_id}
        request = self._request("PUT", query, body=part, headers=checksum_headers(part))
        self._pending.append(self._exchange.submit(lambda: self._put_part(request), request))

    def _put_part(self, request: S3Request) -> _Part:
        headers, _ = self._exchange.send(request)
        return _Part(headers.get("etag", ""), request.headers[_CRC32_HEADER])

    def _start(self) -> str:
        headers = {**self._headers, "x-amz-checksum-algorithm": "CRC32"}
        request = self._request("POST", {"uploads": ""}, body=b"", headers=headers)

        def attempt() -> str:
            with self._exchange.once(request) as response:
                upload_id = _text_of(response.read_all(), "UploadId")
            if not upload_id:
                raise Trouble("the store began a multipart upload without giving its id")
            return upload_id

        return self._exchange.retrying(attempt, request)

    def _complete(self) -> str:
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(part.etag)}</ETag>"
            f"<ChecksumCRC32>{part.crc32}</ChecksumCRC32></Part>"
            for number, part in enumerate(self._parts, start=1)
        )
        request = self._request(
            "POST",
            {"uploadId": self._upload_id},
            body=f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode(),
        )
        num_attempts = 0

        def attempt() -> str:
            nonlocal num_attempts
            num_attempts += 1
            try:
                with self._exchange.once(request) as response:
                    body = response.read_all()
            except Trouble as trouble:
                # The store may have completed the upload in an earlier attempt whose answer was lost.
                if trouble.status == HTTPStatus.NOT_FOUND and num_attempts > 1 and self._stands_already():
                    return self._expected_etag()
                raise
            code, message = error_facts(body)  # S3 answers 200 first and may find an error later
            if code:
                raise Trouble(f"S3 could not complete the upload: {code} ({message})", code=code)
            return _text_of(body, "ETag")

        return self._exchange.retrying(attempt, request)

    def _stands_already(self) -> bool:
        """Whether the object at the key already consists of exactly these parts."""
        with self._exchange.once(S3Request(method="HEAD", bucket=self._bucket, key=self._key)) as response:
            etag, size = response.headers.get("etag", ""), response.content_length
        return bool(self._expected_etag()) and etag == self._expected_etag() and size == self.size_bytes

    def _expected_etag(self) -> str:
        """Return the ETag that S3 gives to these parts; empty if the parts' own ETags are not MD5 sums."""
        sums = [part.etag.strip('"') for part in self._parts]
        if any(len(text) != _MD5_HEX_LENGTH for text in sums):
            return ""
        try:
            joined = b"".join(bytes.fromhex(text) for text in sums)
        except ValueError:
            return ""
        return f'"{hashlib.md5(joined, usedforsecurity=False).hexdigest()}-{len(sums)}"'

    def _request(
        self,
        method: str,
        query: Mapping[str, str],
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> S3Request:
        return S3Request(
            method=method, bucket=self._bucket, key=self._key, query=query, headers=headers or {}, body=body
        )


def put_object(
    exchange: Exchange, bucket: str, key: str, *, body: bytes | memoryview, headers: Mapping[str, str] | None = None
) -> str:
    """Store an object with one PUT and return its ETag.

    Args:
        body: content of any size that the store accepts in one request.
        headers: headers in addition to the checksum headers; None for no others.
    Raises: ObjectStoreError.
    """
    all_headers = {**(headers or {}), **checksum_headers(body)}
    request = S3Request(method="PUT", bucket=bucket, key=key, headers=all_headers, body=body)
    answer, _ = exchange.send(request)
    return answer.get("etag", "")


def checksum_headers(body: bytes | memoryview) -> dict[str, str]:
    """Return the headers by which a store checks that it has received this body."""
    crc32 = base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
    return {_CRC32_HEADER: crc32, "x-amz-sdk-checksum-algorithm": "CRC32"}


def _text_of(body: bytes, name: str) -> str:
    """Return the text of the first element called `name`, or an empty text if there is no such element."""
    try:
        root = ET.fromstring(body)  # noqa: S314 - of our own store; expat limits expansions itself
    except ET.ParseError:
        return ""
    for element in root.iter():
        if element.tag.rpartition("}")[2] == name:
            return element.text or ""
    return ""
