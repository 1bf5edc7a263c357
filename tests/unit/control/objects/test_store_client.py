"""The service's own S3 client against a server that answers byte by byte: parts, breaks, silence, long responses."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from clary.base.errors import NOTHING_CHANGED, ObjectStoreError
from clary.contract.launch_plan import Credentials, Endpoint
from clary.control.objects import store_client
from clary.control.objects.listing import pages
from clary.control.objects.store_client import StoreClient

PAUSE = object()
SILENCE = object()


@asynccontextmanager
async def fake_store(*parts, timeout_s=30.0):
    """Yield a client of a server that answers every request with these bytes and then closes the connection."""

    async def answer(reader, writer):
        try:
            await reader.readuntil(b"\r\n\r\n")
            for part in parts:
                if part is PAUSE:
                    await asyncio.sleep(0.15)
                elif part is SILENCE:
                    await reader.read()
                else:
                    writer.write(part)
                    await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        credentials = Credentials(access_key_id="K", secret_access_key="s")
        endpoint = Endpoint(url=url, region="us-west-2", credentials=credentials)
        async with StoreClient(endpoint, timeout_s=timeout_s) as client:
            yield client


def head(length, status="200 OK"):
    return f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n".encode()


async def read_stream(client):
    async with client.open("b", "k") as stream:
        return stream.status, b"".join([piece async for piece in stream.pieces()])


async def test_a_response_that_arrives_in_parts_is_returned_whole():
    async with fake_store(head(9), b"one", PAUSE, b"two", PAUSE, b"six") as client:
        assert (await client.request("GET", "b", key="k")).body == b"onetwosix"


async def test_a_listing_that_arrives_in_parts_is_read_whole():
    xml = b"<R><Contents><Key>a</Key><Size>1</Size></Contents><Contents><Key>b</Key><Size>x</Size></Contents></R>"
    async with fake_store(head(len(xml)), xml[:40], PAUSE, xml[40:]) as client:
        (page,) = [page async for page in pages(client, "b", "")]
    assert [(item.key, item.size_bytes) for item in page.objects] == [("a", 1), ("b", 0)]


async def test_a_response_that_is_too_long_is_an_error_and_never_truncated(monkeypatch):
    monkeypatch.setattr(store_client, "MAX_ANSWER_BYTES", 8)
    async with fake_store(head(9), b"123456789") as client:
        with pytest.raises(ObjectStoreError, match="more than 8 bytes"):
            await client.request("GET", "b", key="k")


@pytest.mark.parametrize(
    ("xml", "words"),
    [
        (b"<R><Contents>", "its XML is broken"),
        (b"<R><IsTruncated>true</IsTruncated></R>", "it does not say where"),
    ],
)
async def test_a_response_that_is_no_listing_is_an_error(xml, words):
    async with fake_store(head(len(xml)), xml) as client:
        with pytest.raises(ObjectStoreError, match=words):
            _ = [page async for page in pages(client, "b", "p")]


async def test_a_listing_whose_next_page_is_itself_ends_with_an_error():
    xml = b"<R><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken></R>"
    async with fake_store(head(len(xml)), xml) as client, asyncio.timeout(30):
        with pytest.raises(ObjectStoreError, match="its next page is itself"):
            _ = [page async for page in pages(client, "b", "p")]


@pytest.mark.parametrize(("status", "found"), [("404 Not Found", True), ("503 Slow Down", False)])
async def test_a_missing_bucket_has_no_keys_and_a_refused_one_is_an_error(status, found):
    async with fake_store(head(0, status)) as client:
        if found:
            assert [page async for page in pages(client, "b", "p")] == []
            return
        with pytest.raises(ObjectStoreError, match="it was refused") as refused:
            _ = [page async for page in pages(client, "b", "p")]
        assert refused.value.retryable


async def test_a_stream_gives_status_length_and_every_byte():
    async with fake_store(head(6), b"one", PAUSE, b"two") as client:
        assert await read_stream(client) == (200, b"onetwo")


async def test_a_stream_that_breaks_off_is_a_retryable_error():
    async with fake_store(head(9), b"one") as client:
        with pytest.raises(ObjectStoreError, match="got no answer") as broken:
            await read_stream(client)
    assert broken.value.retryable


async def test_a_silent_stream_ends_after_the_timeout():
    async with fake_store(head(9), b"one", SILENCE, timeout_s=0.2) as client, asyncio.timeout(30):
        with pytest.raises(ObjectStoreError, match="got no answer within 0 s"):
            await read_stream(client)


async def test_a_stream_may_take_longer_in_total_than_the_timeout():
    parts = [part for _ in range(10) for part in (b"x", PAUSE)]
    async with fake_store(head(10), *parts, timeout_s=1.0) as client:
        assert await read_stream(client) == (200, b"x" * 10)


async def test_a_stream_that_is_closed_early_leaves_the_client_usable():
    async with fake_store(head(1 << 30), b"x" * 1000, SILENCE) as client, asyncio.timeout(30):
        for _ in range(3):
            async with client.open("b", "k") as stream:
                assert stream.content_length == 1 << 30


async def test_an_unreachable_store_is_an_error_after_which_reads_may_be_repeated():
    async with fake_store() as client:
        with pytest.raises(ObjectStoreError, match="got no answer") as read:
            await read_stream(client)
        with pytest.raises(ObjectStoreError, match="got no answer") as written:
            await client.request("PUT", "b", key="k", body=b"x")
    assert read.value.details[NOTHING_CHANGED]
    assert not written.value.details[NOTHING_CHANGED]
