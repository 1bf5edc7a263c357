"""A running store, front and listener for tests of objects, and requests that no client library would send."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import http.client
import ssl
import threading
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from clary.base.clock import SystemClock
from clary.contract import sigv4
from clary.contract.launch_plan import Credentials, Endpoint
from clary.control.objects.front import S3Front
from clary.control.objects.public.public_store import PublicBuckets
from clary.control.objects.seaweed import EmbeddedStore
from clary.control.permissions.grants import Grants, Place
from clary.control.server.edge import tls
from clary.control.server.edge.host_names import HostNames
from clary.control.server.edge.listener import Listener
from clary.control.wire.messages import HttpRequest, HttpResponse

ACCOUNT = "123456789012"
USER = Credentials(access_key_id="CLARYUSER", secret_access_key="user-secret/+=")
JOB = Credentials(access_key_id="CLARYJOB1", secret_access_key="job-secret")
NARROW = Credentials(access_key_id="CLARYJOB2", secret_access_key="narrow-secret")  # opens NARROW_PLACE only
STORE = Credentials(access_key_id="CLARYSTORE", secret_access_key="store-secret")
REGION = "us-west-2"
BUCKET = "checks"
NARROW_PLACE = "narrow/job-1"
MIB = 1024 * 1024


@dataclass
class Service:
    http_url: str
    https_url: str
    store: Endpoint
    authority: str

    def client(
        self, *, secure: bool = False, credentials: Credentials = USER, region: str = REGION, **config: Any
    ) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.https_url if secure else self.http_url,
            verify=self.authority if secure else None,
            region_name=region,
            aws_access_key_id=credentials.access_key_id,
            aws_secret_access_key=credentials.secret_access_key,
            config=Config(retries={"max_attempts": 1}, **config),
        )


class ServiceThread:
    """Store, front and listener in their own event loop, so that tests can use synchronous clients."""

    def __init__(self, home: Path, *, public: PublicBuckets | None = None) -> None:
        self._home = home
        self._public = public
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.service = self._run(self._start())

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    async def _start(self) -> Service:
        self._store = EmbeddedStore(self._home, credentials=STORE, region=REGION, bucket=BUCKET)
        endpoint = await self._store.start()
        secrets = {pair.access_key_id: pair.secret_access_key for pair in (USER, JOB, NARROW)}
        place = Place(BUCKET, NARROW_PLACE)
        grants = {
            NARROW.access_key_id: Grants(job_name="job-1", job_arn="arn:job-1", job_id="1", reads=(), writes=(place,))
        }
        self._front = S3Front(
            endpoint,
            secrets.get,
            account_id=ACCOUNT,
            clock=SystemClock(),
            skew_s=300,
            bucket_of_own_host=HostNames(["127.0.0.1"]).bucket_of,
            region=REGION,
            find_grants=grants.get,
            public=self._public,
        )
        await self._front.start()
        files = tls.ensure_certificates(self._home / "tls", region=REGION, host="127.0.0.1", now=datetime.now(UTC))
        self._listener = Listener(
            "127.0.0.1",
            0,
            aws_handler=_answer_aws,
            s3_front=self._front,
            max_body_bytes=MIB,
            tls_context=tls.server_context(files),
        )
        await self._listener.start()
        return Service(
            f"http://127.0.0.1:{self._listener.port}",
            f"https://localhost:{self._listener.tls_port}",
            endpoint,
            str(files.authority),
        )

    def close(self) -> None:
        try:
            self._run(self._stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._loop.close()

    async def _stop(self) -> None:
        try:
            await self._listener.close()
        finally:
            await self._front.close()
            await self._store.stop()


async def _answer_aws(request: HttpRequest) -> HttpResponse:
    return HttpResponse(200, [("Content-Type", "application/x-amz-json-1.1")], b'{"from": "aws"}')


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        return self.body.partition(b"<Code>")[2].partition(b"</Code>")[0].decode()


def send(
    service: Service,
    method: str,
    path: str,
    *,
    body: bytes = b"",
    payload_hash: str | None = None,
    headers: dict[str, str] | None = None,
    credentials: Credentials = USER,
    now: datetime | None = None,
    secure: bool = False,
    wire_headers: dict[str, str] | None = None,
    chunked: bool = False,
) -> Answer:
    """Send one signed request exactly as given; `wire_headers` are added or replaced after signing."""
    url = urlsplit(service.https_url if secure else service.http_url)
    raw_path, _, query = path.partition("?")
    all_headers = {"host": url.netloc, **(headers or {})}
    added = sigv4.sign(
        method,
        raw_path,
        query,
        all_headers,
        hashlib.sha256(body).hexdigest() if payload_hash is None else payload_hash,
        credentials=credentials,
        region=REGION,
        service="s3",
        now=now or datetime.now(UTC),
    )
    return send_raw(
        service,
        method,
        path,
        {**all_headers, **added, **(wire_headers or {})},
        body,
        secure=secure,
        chunked=chunked,
    )


def send_raw(
    service: Service,
    method: str,
    path: str,
    headers: dict[str, str],
    body: bytes,
    *,
    secure: bool = False,
    chunked: bool = False,
) -> Answer:
    url = urlsplit(service.https_url if secure else service.http_url)
    connection: http.client.HTTPConnection
    if secure:
        context = ssl.create_default_context(cafile=service.authority)
        connection = http.client.HTTPSConnection(url.netloc, timeout=20, context=context)
    else:
        connection = http.client.HTTPConnection(url.netloc, timeout=20)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        if chunked:
            connection.putheader("Transfer-Encoding", "chunked")
            connection.endheaders([body[i : i + 1000] for i in range(0, len(body), 1000)], encode_chunked=True)
        else:
            if body or method in ("PUT", "POST"):
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body or None)
        response = connection.getresponse()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


def read(client: Any, key: str, **arguments: Any) -> bytes:
    with client.get_object(Bucket=BUCKET, Key=key, **arguments)["Body"] as body:
        return bytes(body.read())


def keys_under(client: Any, prefix: str) -> list[str]:
    return [item["Key"] for item in client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])]


def refusal(error: pytest.ExceptionInfo[ClientError]) -> tuple[str, int]:
    answer = error.value.response
    return answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]


def crc64nvme(data: bytes) -> str:
    value = 0xFFFFFFFFFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x9A6C9329AC4BC9B5 if value & 1 else 0)
    return base64.b64encode((value ^ 0xFFFFFFFFFFFFFFFF).to_bytes(8, "big")).decode()


def crc32c(data: bytes) -> str:
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return base64.b64encode((value ^ 0xFFFFFFFF).to_bytes(4, "big")).decode()


def crc32(data: bytes) -> str:
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


def unsigned_chunks(data: bytes, *, name: str, value: str) -> bytes:
    pieces = [data[i : i + 7000] for i in range(0, len(data), 7000)]
    return b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + f"0\r\n{name}:{value}\r\n\r\n".encode()


def trailer_headers(data: bytes, *, name: str) -> dict[str, str]:
    return {
        "content-encoding": "aws-chunked",
        "x-amz-trailer": name,
        "x-amz-decoded-content-length": str(len(data)),
        "x-amz-sdk-checksum-algorithm": name.removeprefix("x-amz-checksum-").upper(),
    }


def put_signed_chunks(
    service: Service,
    path: str,
    data: bytes,
    *,
    trailer: str | None = None,
    tamper: Any = None,
    announced_length: int | None = None,
) -> Answer:
    """Put a body of signed chunks, as older SDKs, such as that for Java, do over http."""
    url = urlsplit(service.http_url)
    payload_hash = sigv4.STREAMING_PAYLOAD_TRAILER if trailer else sigv4.STREAMING_PAYLOAD
    length = str(len(data) if announced_length is None else announced_length)
    headers = {"host": url.netloc, "content-encoding": "aws-chunked", "x-amz-decoded-content-length": length}
    if trailer:
        headers["x-amz-trailer"] = "x-amz-checksum-crc32"
    added = sigv4.sign(
        "PUT",
        path,
        "",
        headers,
        payload_hash,
        credentials=USER,
        region=REGION,
        service="s3",
        now=datetime.now(UTC),
    )
    amz_date = added["x-amz-date"]
    scope = f"{amz_date[:8]}/{REGION}/s3/aws4_request"
    signing = sigv4.signing_key(USER.secret_access_key, date=amz_date[:8], region=REGION, service="s3")
    previous = added["authorization"].rpartition("Signature=")[2]
    body = b""
    for piece in [data[i : i + 65536] for i in range(0, len(data), 65536)] + [b""]:
        previous = sigv4.chunk_signature(
            signing,
            previous=previous,
            chunk_hash=hashlib.sha256(piece).hexdigest(),
            amz_date=amz_date,
            scope=scope,
        )
        body += b"%x;chunk-signature=%b\r\n%b" % (len(piece), previous.encode(), piece)
        if piece:
            body += b"\r\n"
    if trailer:
        line = f"x-amz-checksum-crc32:{trailer}"
        signature = sigv4.trailer_signature(
            signing,
            previous=previous,
            trailer_hash=hashlib.sha256(f"{line}\n".encode()).hexdigest(),
            amz_date=amz_date,
            scope=scope,
        )
        body += f"{line}\r\nx-amz-trailer-signature:{signature}\r\n".encode()
    body += b"\r\n"
    if tamper is not None:
        body = tamper(body)
    return send_raw(service, "PUT", path, {**headers, **added}, body)
