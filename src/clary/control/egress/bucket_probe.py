"""Whether AWS has a bucket, asked by an unsigned HEAD of the bucket's own name.

Where: `connect_proxy` asks for buckets that do not exist here. A name of a new bucket, which an old client is about to
create, must lead to this service; a name of a public data set must lead to AWS.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import ssl
from collections.abc import Sequence

PROBE_TIMEOUT_S = 5.0
MAX_HEAD_BYTES = 8192
_PORT = 443
# A bucket that anyone may list, one of another region, and one that nobody may list. AWS names each of its answers.
_EXISTS = frozenset({b"200", b"301", b"307", b"403"})
_MISSING = b"404"
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})(?: |\r|$)")
_OF_AWS = (b"\r\nx-amz-request-id:", b"\r\nx-amz-bucket-region:")


async def aws_has_bucket(name: str, addresses: Sequence[str]) -> bool | None:
    """Return whether a bucket exists at AWS, readable or not; None without a clear answer in PROBE_TIMEOUT_S.

    Args:
        name: the bucket's own name, such as data.s3.amazonaws.com.
        addresses: checked addresses of that name.
    """
    question = f"HEAD / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode("ascii")
    context = await asyncio.to_thread(_context)
    with contextlib.suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(
                addresses[0], _PORT, ssl=context, server_hostname=name, limit=MAX_HEAD_BYTES
            )
            try:
                writer.write(question)
                await writer.drain()
                return _judge(await reader.readuntil(b"\r\n\r\n"))
            finally:
                writer.transport.abort()
    return None


def _judge(head: bytes) -> bool | None:
    status = _STATUS.match(head)
    if status is None or not any(mark in head.lower() for mark in _OF_AWS):
        return None  # a busy store, or the page of a proxy in between
    if status[1] == _MISSING:
        return False
    return True if status[1] in _EXISTS else None


@functools.cache
def _context() -> ssl.SSLContext:
    """Return the context with this machine's authorities, which take 20 ms to read."""
    return ssl.create_default_context()
