"""Accepting over real sockets."""

import asyncio
import resource
import socket
import time

from clary.control.server.edge.acceptor import Acceptor


async def test_a_connection_waits_for_a_free_descriptor_and_the_loop_stays_idle():
    async def greet(reader, writer):
        writer.write(b"hello")
        writer.close()

    acceptor = Acceptor(greet)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_connection(("127.0.0.1", acceptor.start("127.0.0.1"))) as client:
        client.setblocking(False)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            busy_s = time.process_time()
            await asyncio.sleep(0.5)
            assert time.process_time() - busy_s < 0.25
            assert acceptor.num_connections == 0
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        async with asyncio.timeout(5):
            assert await asyncio.get_running_loop().sock_recv(client, 5) == b"hello"
    await acceptor.close()
