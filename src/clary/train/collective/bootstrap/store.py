"""Interface of a store, through which ranks exchange a few bytes before they are connected.

Where: `group.connect_group` uses any store with these three methods: Clary's (`tcp_store`) for the NumPy adapter,
torch's for the torch adapter. Keys of a group begin with its name. Values are at most a few kilobytes.
"""

from __future__ import annotations

from typing import Protocol


class Store(Protocol):
    """Keys and values that every rank of a job sees. Used from one thread at a time."""

    def set(self, key: str, value: bytes) -> None:
        """Store `value`; a second call replaces it.

        Raises: OSError or RuntimeError if the store cannot be reached.
        """

    def get(self, key: str, timeout_s: float) -> bytes:
        """Wait until `key` is set and return its value; a timeout of 0 tries once.

        Raises: TimeoutError if `key` was not set within `timeout_s`; OSError or RuntimeError as `set`.
        """

    def delete(self, key: str) -> None:
        """Delete `key` if the store supports it; no caller depends on the deletion."""
