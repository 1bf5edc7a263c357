"""Resolves names in separate threads, so that names without an answer delay no other work.

Where: `connect_proxy` uses `Resolver`; `outlets` and `egress_site` use `addresses_of`. `getaddrinfo` cannot be
cancelled, and the event loop's own threads do the service's work. Each client has a few threads at most: names whose
servers never answer delay only the client that requests them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor

from clary.control.turns import Turns

NUM_THREADS = 32
THREADS_OF_ONE = 4  # threads of one client


class Resolver:
    """Queries the machine's resolver: DNS, /etc/hosts and its other configured sources."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._turns = Turns(THREADS_OF_ONE)

    async def resolve(self, name: str, port: int, *, client: str = "") -> list[str]:
        """Return every address of a name, best first.

        Args:
            client: the client whose threads are used.
        Raises: OSError or UnicodeError for a name without an address.
        """
        if self._threads is None:
            self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="proxy-names")
        loop = asyncio.get_running_loop()
        give_back = await self._turns.take(client)
        asked = self._threads.submit(addresses_of, name, port)

        def tell(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop has closed: no caller waits for a turn
                loop.call_soon_threadsafe(give_back)

        # A thread that waits for an answer keeps the turn, even if its caller was cancelled.
        asked.add_done_callback(tell)
        return await asyncio.wrap_future(asked)

    def close(self) -> None:
        """End the threads; a thread that waits for an answer ends when the answer arrives."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None


def addresses_of(name: str, port: int) -> list[str]:
    """Return every address of a name, best first; blocks."""
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
