"""The end of the listener: requests under way are answered, also those whose bodies are still arriving."""

import asyncio
import time

from aiohttp import web

from clary.control.server.edge.listener import Listener
from clary.control.wire.messages import HttpResponse

PIECE = b"x" * 100_000


class Store:
    """Reads bodies piece by piece, as the S3 front does."""

    async def handle(self, request):
        return web.Response(text=str(len(await request.read())))


async def count(request):
    return HttpResponse(200, [], str(len(request.body)).encode())


async def upload_over_the_end(head):
    listener = Listener("127.0.0.1", 0, aws_handler=count, s3_front=Store(), max_body_bytes=1 << 20)
    await listener.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(f"{head}\r\nHost: x\r\nContent-Length: {2 * len(PIECE)}\r\n\r\n".encode() + PIECE)
    await asyncio.sleep(0.2)
    began_s = time.monotonic()
    closing = asyncio.create_task(listener.close())
    await asyncio.sleep(0.2)
    writer.write(PIECE)
    answer = await reader.read()
    await closing
    writer.close()
    return answer, time.monotonic() - began_s


async def test_a_body_that_arrives_while_the_listener_ends_is_read_and_answered():
    for head in (
        "PUT /bucket/key HTTP/1.1\r\nAuthorization: AWS4-HMAC-SHA256 Credential=A/1/r/s3/aws4_request",
        "POST / HTTP/1.1\r\nX-Amz-Target: SageMaker.CreateTrainingJob",
    ):
        answer, took_s = await upload_over_the_end(head)
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        assert answer.endswith(b"\r\n\r\n200000")
        assert took_s < 3.0
