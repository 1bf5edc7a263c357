"""Budget for the bytes of bodies in memory at once, of each client and of all clients.

Where: `bodies` charges bytes as they arrive; the listener returns them when the request is answered. Pure.

The first bytes of each body are free, because the number of connections bounds them. So an ordinary request is accepted
while another client uses up the budget with large requests.
"""

from __future__ import annotations

from collections import Counter
from typing import Self

FREE_BYTES = 64 * 1024  # bytes of each body that are not charged


class BodyBudget:
    """Counts bytes by client.

    Args:
        total_bytes: budget of all clients together; one client gets at most half.
    """

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self._client_bytes = max(1, total_bytes // 2)
        self._held: Counter[str] = Counter()
        self._num_held = 0

    @property
    def num_held_bytes(self) -> int:
        """Number of charged bytes in memory."""
        return self._num_held

    def take(self, client: str, num_bytes: int) -> str:
        """Charge bytes to a client; return why that is refused, or an empty text."""
        if self._held[client] + num_bytes > self._client_bytes:
            return f"large requests of this client hold {self._client_bytes} bytes already, the limit for one client"
        if self._num_held + num_bytes > self._total_bytes:
            limit = "the limit for all (setting body_budget_bytes)"
            return f"large requests hold {self._total_bytes} bytes already, {limit}"
        self._held[client] += num_bytes
        self._num_held += num_bytes
        return ""

    def give_back(self, client: str, num_bytes: int) -> None:
        """Subtract bytes from a client's account."""
        self._held[client] -= num_bytes
        self._num_held -= num_bytes
        if not self._held[client]:
            del self._held[client]


class BodyTicket:
    """The charged bytes of one body; a context manager that returns them."""

    def __init__(self, budget: BodyBudget, client: str) -> None:
        self._budget = budget
        self._client = client
        self._num_read = 0
        self._num_taken = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._num_taken:
            self._budget.give_back(self._client, self._num_taken)
            self._num_taken = 0

    def grow(self, num_bytes: int) -> str:
        """Charge arrived bytes; return why they cannot be kept in memory, or an empty text."""
        self._num_read += num_bytes
        wanted = max(0, self._num_read - FREE_BYTES) - self._num_taken
        reason = self._budget.take(self._client, wanted) if wanted > 0 else ""
        if not reason and wanted > 0:
            self._num_taken += wanted
        return reason
