"""Look names up in threads of its own, so that names which take for ever hold nobody else up.

Where: under `connect_proxy`. `getaddrinfo` can not be broken off, and the loop's own threads do the service's work.
"""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

NUM_THREADS = 16


class Resolver:
    """Asks the machine's resolver: DNS, /etc/hosts and whatever else it is set up for."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None

    async def resolve(self, name: str, port: int) -> list[str]:
        """Return every address of a name, best first.

        Raises: OSError or UnicodeError for a name without any.
        """
        if self._threads is None:
            self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="proxy-names")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, addresses_of, name, port)

    def close(self) -> None:
        """Let the threads go; one that waits for an answer ends when it comes."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None


def addresses_of(name: str, port: int) -> list[str]:
    """Return every address of a name, best first; blocks."""
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
