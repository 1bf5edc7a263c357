"""`ChannelCache`: the interface of the cache to other parts of the agent.

Where: `fetching` reads channels through it, and the code's archive is opened through it; `host_channels` makes one
per host. A failure of the cache itself makes `snapshot` raise `CacheUnusable`, and its caller then fetches without the
cache; the other methods do without the cache by themselves.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from clary.agent.channels.cache.filling import LOCK_WAIT_S, CacheUnusable, Filler, Snapshot
from clary.agent.channels.cache.folder import CacheFolder, boot_id
from clary.agent.channels.cache.keeping import CacheKeeper
from clary.agent.channels.selection import ChannelObject
from clary.contract.launch_plan import Channel
from clary.contract.object_store import ObjectStore, whole_file

_FILE = "object"

logger = logging.getLogger(__name__)


class ChannelCache:
    """The objects that this machine keeps; safe for many threads, and for many agents at once.

    Args:
        root: folder of the cache, made with the first use.
        limit_bytes: limit on its size; 0 switches the cache off: `snapshot` raises `CacheUnusable`, and objects are
            opened from the store.
        endpoint_url: of the object store.
        stop: aborts waits when set.
        lock_wait_s: longest wait for an object that another agent fetches.
        boot: id of this boot of the machine; None: the kernel's id.
    """

    def __init__(
        self,
        root: Path,
        *,
        limit_bytes: int,
        endpoint_url: str,
        stop: threading.Event | None = None,
        lock_wait_s: float = LOCK_WAIT_S,
        boot: str | None = None,
    ) -> None:
        self._root = root
        self._limit_bytes = limit_bytes
        self._endpoint_url = endpoint_url
        self._stop = stop or threading.Event()
        self._lock_wait_s = lock_wait_s
        self._boot = boot

    @property
    def is_on(self) -> bool:
        """Whether there is a cache at all."""
        return self._limit_bytes > 0

    def snapshot(
        self,
        objects: Sequence[ChannelObject],
        folders: Iterable[tuple[str, ...]],
        *,
        channel: Channel,
        store: ObjectStore,
        is_copied: bool = False,
    ) -> Snapshot:
        """Return a tree in the cache with a channel's objects and folders; release it after use.

        Args:
            is_copied: whether the caller will copy the whole tree on the same disk.
        Raises: CacheUnusable; ObjectStoreError; AgentError (fault USER) for objects that cannot be unpacked.
        """
        try:
            return self._filler().snapshot(objects, folders, channel=channel, store=store, is_copied=is_copied)
        except OSError as error:
            raise CacheUnusable(f"this machine's cache {self._root} cannot be used: {error}") from error

    def open_object(self, bucket: str, key: str, *, store: ObjectStore) -> BinaryIO:
        """Open an object as a stream from the cache, into which it is fetched first if missing; close it after use.

        Args:
            bucket: of the object.
            key: of the object.
            store: gives the object's version, and its content if the cache cannot provide it.
        Raises: ObjectStoreError.
        """
        facts = store.head(bucket, key) if self.is_on else None
        if facts is not None and facts.etag and facts.size_bytes <= self._limit_bytes:
            wanted = ChannelObject(bucket=bucket, key=key, path=(_FILE,), size_bytes=facts.size_bytes, etag=facts.etag)
            channel = Channel(name="code", s3_uri=None)
            with contextlib.suppress(CacheUnusable):
                snapshot = self.snapshot((wanted,), (), channel=channel, store=store)
                try:
                    return (snapshot.path / _FILE).open("rb")
                except OSError as error:
                    logger.warning("object s3://%s/%s cannot be read from the cache: %s", bucket, key, error)
                finally:
                    snapshot.release()
        return store.open_reader(bucket, key)

    def source(self, store: ObjectStore) -> CachedSource:
        """Return a reader of a store's objects that uses this cache."""
        return CachedSource(self, store)

    def refusal(self, name: str, find_out: Callable[[], str | None]) -> str | None:
        """Return the reason why this machine refuses an operation, None if it permits it.

        A permission is remembered until the next boot. A refusal may be temporary, so `find_out` is then called each
        time. Raises: the errors of `find_out`.
        """
        path = self._root / name
        boot = self._boot or boot_id()
        with contextlib.suppress(OSError):
            if path.read_text(encoding="utf-8") == f"{boot}\n":
                return None
        refusal = find_out()
        if refusal is None:
            with contextlib.suppress(OSError):
                CacheFolder(self._root, boot=boot).make()
                with whole_file(path) as descriptor:
                    os.write(descriptor, f"{boot}\n".encode())
        return refusal

    def free_disk(self, place: Path, needed_bytes: int) -> None:
        """Evict unused entries until `needed_bytes` are free at a folder outside the cache, as far as possible."""
        if not self.is_on:
            return
        try:
            self._filler().keeper.free_disk(place, needed_bytes)
        except OSError as error:
            logger.warning("the cache %s could not make room on its disk: %s", self._root, error)

    def tidy(self) -> None:
        """Sync fetched objects to the disk and shrink the cache to its limit; may take long."""
        if not self.is_on:
            return
        try:
            filler = self._filler()
            filler.keeper.tidy()
        except OSError as error:
            logger.warning("the cache %s could not be tidied: %s", self._root, error)

    def _filler(self) -> Filler:
        if not self.is_on:
            raise CacheUnusable("the cache is switched off (setting channel_cache_bytes)")
        folder = CacheFolder(self._root, boot=self._boot or boot_id())
        folder.make()
        keeper = CacheKeeper(folder, limit_bytes=self._limit_bytes, stop=self._stop)
        return Filler(
            folder=folder,
            keeper=keeper,
            endpoint_url=self._endpoint_url,
            stop=self._stop,
            lock_wait_s=self._lock_wait_s,
        )


@dataclass(frozen=True)
class CachedSource:
    """Objects of a store, opened through the cache if it can be used."""

    cache: ChannelCache
    store: ObjectStore

    def open_reader(self, bucket: str, key: str) -> BinaryIO:
        """Open an object as a stream; close it after use. Raises: ObjectStoreError."""
        return self.cache.open_object(bucket, key, store=self.store)
