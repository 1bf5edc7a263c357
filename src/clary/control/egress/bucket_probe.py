"""Whether AWS has a bucket, asked by an unsigned HEAD of the bucket's own name.

Where: `connect_proxy` asks for buckets that do not exist here. A name of a new bucket, which an old client is about to
create, must lead to this service; a name of a public data set must lead to AWS.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Sequence

PROBE_TIMEOUT_S = 5.0
MAX_STATUS_LINE = 1024
_PORT = 443
_NO_BUCKET = b"404"


async def aws_has_bucket(name: str, addresses: Sequence[str]) -> bool:
    """Return whether a bucket exists at AWS, readable or not; False without an answer in PROBE_TIMEOUT_S.

    Args:
        name: the bucket's own name, such as data.s3.amazonaws.com.
        addresses: checked addresses of that name.
    """
    head = f"HEAD / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode("ascii")
    context = await asyncio.to_thread(ssl.create_default_context)  # reads the machine's authorities
    with contextlib.suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(
                addresses[0], _PORT, ssl=context, server_hostname=name, limit=MAX_STATUS_LINE
            )
            try:
                writer.write(head)
                await writer.drain()
                _, _, rest = (await reader.readline()).partition(b" ")
                return bool(rest) and not rest.startswith(_NO_BUCKET)
            finally:
                writer.transport.abort()
    return False
