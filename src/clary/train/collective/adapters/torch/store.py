"""torch's key-value store with the interface of a group's bootstrap."""

from __future__ import annotations

import contextlib
import time
from datetime import timedelta

import torch.distributed as dist


class TorchStore:
    """`bootstrap.store.Store` over the store that init_process_group made.

    Args:
        store: of the group; torch has put the group's name before its keys.
    """

    def __init__(self, store: dist.Store) -> None:
        self._store = store

    def set(self, key: str, value: bytes) -> None:
        """Store `value`; a second call replaces it."""
        self._store.set(key, value)

    def get(self, key: str, timeout_s: float) -> bytes:
        """Wait until `key` is set and return its value; a timeout of 0 tries once.

        Raises:
            TimeoutError: it was not set within `timeout_s`.
            RuntimeError: the store is out of reach.
        """
        if timeout_s <= 0:
            if not self._store.check([key]):
                raise TimeoutError(f"{key} is not set")
            return bytes(self._store.get(key))
        began_s = time.monotonic()
        try:
            self._store.wait([key], timedelta(seconds=timeout_s))
        except RuntimeError as error:  # torch distinguishes a timeout and a lost store only by the text
            if time.monotonic() - began_s < timeout_s:
                raise
            raise TimeoutError(f"{key} was not set within {timeout_s:.1f} s") from error
        return bytes(self._store.get(key))

    def delete(self, key: str) -> None:
        """Delete `key` if the store supports it."""
        with contextlib.suppress(RuntimeError, NotImplementedError):
            self._store.delete_key(key)
