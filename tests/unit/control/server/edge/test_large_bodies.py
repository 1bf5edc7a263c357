"""Bodies whose processing would delay other requests run in a thread, one of each client's after the other."""

from __future__ import annotations

import asyncio
import threading

import pytest

from clary.control.server.edge.large_bodies import LARGE_BODY_BYTES, LARGE_SLOW_BYTES, LargeBodies
from clary.control.wire.messages import HttpRequest

FORM = ("Content-Type", "application/x-www-form-urlencoded")
JSON = ("Content-Type", "application/x-amz-json-1.1")


def request(num_bytes, *headers, remote="127.0.0.1"):
    return HttpRequest("POST", "/", "", headers, body=b"\x80" * num_bytes, remote=remote)


@pytest.mark.parametrize(
    ("body", "is_large"),
    [
        (request(LARGE_BODY_BYTES, JSON), False),
        (request(LARGE_BODY_BYTES + 1, JSON), True),
        (request(1, ("Content-Encoding", "gzip")), True),
        (request(LARGE_SLOW_BYTES, ("smithy-protocol", "rpc-v2-cbor")), False),
        (request(LARGE_SLOW_BYTES + 1, ("smithy-protocol", "rpc-v2-cbor")), True),
        (request(LARGE_BODY_BYTES, ("smithy-protocol", "rpc-v2-cbor")), True),
        (request(LARGE_SLOW_BYTES + 1, FORM), True),
    ],
)
async def test_a_body_that_takes_long_to_read_is_processed_in_a_thread(body, is_large):
    async with LargeBodies().runner(body) as run:
        assert (await run(threading.get_ident) != threading.get_ident()) is is_large


async def test_a_client_s_many_large_bodies_delay_another_client_by_one():
    """A job's program, which has an address of its own, cannot make the owner wait behind all its bodies."""
    large, order = LargeBodies(), []

    async def process(remote):
        async with large.runner(request(LARGE_BODY_BYTES + 1, remote=remote)):
            await asyncio.sleep(0)
            order.append(remote)

    jobs = [asyncio.create_task(process("127.0.7.1")) for _ in range(20)]
    await asyncio.sleep(0)
    await asyncio.gather(process("127.0.0.1"), *jobs)
    assert order.index("127.0.0.1") <= 2
    assert len(order) == 21
