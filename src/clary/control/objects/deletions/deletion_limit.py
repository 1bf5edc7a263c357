"""Limit on concurrent DeleteObjects requests: their bodies are held in memory; other large bodies of S3 are streamed.

Where: `front` enters the limit before it reads such a body.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from clary.base.errors import WireError

MOST_OF_A_KEY = 8  # a body has up to 2 MiB
MOST_IN_ALL = 64


class DeletionLimit:
    """Counts requests by access key."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    @contextmanager
    def entered(self, access_key_id: str) -> Iterator[None]:
        """Count a request while it lasts.

        Raises: WireError SlowDown, after which clients retry.
        """
        if self._counts[access_key_id] >= MOST_OF_A_KEY or self._counts.total() >= MOST_IN_ALL:
            raise WireError(
                "SlowDown",
                f"Please reduce your request rate: at most {MOST_OF_A_KEY} DeleteObjects requests of one "
                f"access key, and {MOST_IN_ALL} in all, are carried out at once.",
                http_status=503,
            )
        self._counts[access_key_id] += 1
        try:
            yield
        finally:
            self._counts[access_key_id] -= 1
            if not self._counts[access_key_id]:
                del self._counts[access_key_id]
