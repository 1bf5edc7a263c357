"""Creation of a channel's snapshot: links to cached objects; missing objects are fetched into the cache first.

Where: `ChannelCache` calls it for each channel of each host. Hosts that fill the same channel at once share the work:
an object that another lock holder fetches is skipped and looked up again at the end.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO, cast

from clary.agent.channels.cache.folder import CacheFolder
from clary.agent.channels.cache.keeping import CacheKeeper
from clary.agent.channels.cache.locks import ObjectLocks
from clary.agent.channels.cache.naming import Identity, identity_of, is_as_stored, snapshot_name
from clary.agent.channels.selection import ChannelObject
from clary.agent.channels.unpacking import is_packed, write_unpacked
from clary.base.errors import AgentError, ObjectStoreError
from clary.contract.launch_plan import Channel
from clary.contract.object_store import ObjectStore, whole_file

LOCK_WAIT_S = 120.0  # timeout for objects that other holders fetch; after it they are fetched here too
NUM_PARALLEL = 8  # parallel fetches, as without a cache
_POLL_S = 0.1


class CacheUnusable(AgentError):
    """The reason why objects must be fetched without the cache; a job never fails because of it."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A channel's tree in the cache, protected against removal until `release`; writing into it is forbidden."""

    path: Path
    descriptor: int  # holds the lock against removal
    num_cached: int  # objects that were in the cache
    num_fetched: int
    size_bytes: int  # of all files

    def release(self) -> None:
        """Permit the cache to remove the tree; call it once."""
        os.close(self.descriptor)


@dataclass(frozen=True, kw_only=True)
class _Item:
    wanted: ChannelObject
    identity: Identity
    size_bytes: int | None  # size of the cached file; None if it is unknown until the object is read

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name in (self.identity.content, self.identity.place) if name is not None)


@dataclass(frozen=True, kw_only=True)
class Filler:
    """Makes snapshots; thread-safe.

    Attributes:
        stop: aborts waits for other holders when set.
    """

    folder: CacheFolder
    keeper: CacheKeeper
    endpoint_url: str
    stop: threading.Event
    lock_wait_s: float = LOCK_WAIT_S

    def snapshot(
        self,
        objects: Sequence[ChannelObject],
        folders: Iterable[tuple[str, ...]],
        *,
        channel: Channel,
        store: ObjectStore,
        is_copied: bool = False,
    ) -> Snapshot:
        """Return a snapshot with these objects and folders; fetch the objects that are not in the cache.

        Args:
            is_copied: whether the caller will copy the whole snapshot, so that the disk needs room for both.
        State after failure: completely fetched objects stay in the cache; there is no snapshot.
        Raises: CacheUnusable; ObjectStoreError; AgentError (fault USER) for objects that cannot be unpacked; OSError.
        """
        items = self._identified(objects, channel=channel, store=store)
        folders = sorted(set(folders))
        name = snapshot_name(((item.wanted.path, item.identity.name) for item in items), folders)
        found = self._found(name, items)
        if found is not None:
            return found
        with self.folder.fill() as filling:
            for path in folders:
                filling.tree.joinpath(*path).mkdir(parents=True, exist_ok=True)
            missing = [item for item in items if not self._link(item, filling.tree)]
            needed_bytes = sum(item.wanted.size_bytes or 0 for item in missing)
            beside_bytes = sum(item.wanted.size_bytes or 0 for item in items) if is_copied else 0
            why_not = self.keeper.make_room(needed_bytes, beside_bytes=beside_bytes) if missing else None
            if why_not is not None:
                raise CacheUnusable(why_not)
            num_fetched = self._fetch(missing, filling.tree, channel=channel, store=store)
            size_bytes = sum(filling.tree.joinpath(*item.wanted.path).lstat().st_size for item in items)
            held = self.folder.put_in_place(filling, name)
        if held is None:  # another host has made the same tree meanwhile
            found = self._found(name, items)
            if found is None:
                raise CacheUnusable(
                    "the snapshot that another host made of it in this machine's cache was removed again"
                )
            return replace(found, num_cached=len(items) - num_fetched, num_fetched=num_fetched)
        return Snapshot(
            path=self.folder.snapshot(name),
            descriptor=held,
            num_cached=len(items) - num_fetched,
            num_fetched=num_fetched,
            size_bytes=size_bytes,
        )

    def _identified(
        self, objects: Sequence[ChannelObject], *, channel: Channel, store: ObjectStore
    ) -> tuple[_Item, ...]:
        """Compute the objects' names; HEAD requests supply missing ETags and sizes (manifests)."""

        def identify(wanted: ChannelObject) -> _Item:
            if wanted.size_bytes is None or not wanted.etag:
                facts = store.head(wanted.bucket, wanted.key)
                if facts is None or not facts.etag:
                    raise CacheUnusable("the object store gives no ETag for some of its objects")
                wanted = replace(wanted, size_bytes=facts.size_bytes, etag=facts.etag)
            assert wanted.size_bytes is not None
            is_unpacked = is_packed(channel)
            identity = identity_of(
                endpoint_url=self.endpoint_url,
                bucket=wanted.bucket,
                key=wanted.key,
                etag=wanted.etag,
                size_bytes=wanted.size_bytes,
                is_unpacked=is_unpacked,
            )
            return _Item(wanted=wanted, identity=identity, size_bytes=None if is_unpacked else wanted.size_bytes)

        if all(wanted.etag for wanted in objects):
            items = tuple(identify(wanted) for wanted in objects)
        else:
            with ThreadPoolExecutor(NUM_PARALLEL, thread_name_prefix="channel-head") as pool:
                items = tuple(pool.map(identify, objects))
        size_bytes = sum(item.wanted.size_bytes or 0 for item in items)
        if size_bytes > self.keeper.limit_bytes:
            raise CacheUnusable(
                f"it has {size_bytes} bytes, and this machine's cache may hold at most "
                f"{self.keeper.limit_bytes} (setting channel_cache_bytes)"
            )
        return items

    def _found(self, name: str, items: Sequence[_Item]) -> Snapshot | None:
        """Return the snapshot if it exists unchanged; remove a changed one."""
        held = self.folder.hold_snapshot(name)
        if held is None:
            return None
        path = self.folder.snapshot(name)
        size_bytes = 0
        try:
            for item in items:
                status = path.joinpath(*item.wanted.path).lstat()
                is_sound = any(is_as_stored(status, name=known) for known in item.names)
                if not is_sound or item.size_bytes not in (None, status.st_size):
                    break
                size_bytes += status.st_size
            else:
                return Snapshot(path=path, descriptor=held, num_cached=len(items), num_fetched=0, size_bytes=size_bytes)
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(held)
            raise
        os.close(held)
        if not self.folder.remove_snapshot(path):
            raise CacheUnusable(f"{path} was changed since it was made, and a running host uses it")
        return None

    def _link(self, item: _Item, tree: Path) -> bool:
        target = tree.joinpath(*item.wanted.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        return any(self.folder.link(name, target, size_bytes=item.size_bytes) is not None for name in item.names)

    def _fetch(self, missing: Sequence[_Item], tree: Path, *, channel: Channel, store: ObjectStore) -> int:
        """Link or fetch objects into tree and cache, several at once; return how many objects were fetched here."""
        if not missing:
            return 0
        with ObjectLocks(self.folder.object_locks) as locks:
            work = _Work(
                missing=deque(missing),
                locks=locks,
                link=lambda item: self._link(item, tree),
                fetch=lambda item: self._fetch_one(item, tree, channel=channel, store=store),
                stop=self.stop,
                lock_wait_s=self.lock_wait_s,
            )
            with ThreadPoolExecutor(NUM_PARALLEL, thread_name_prefix=f"channel-{channel.name}") as pool:
                workers = [pool.submit(work.run) for _ in range(min(NUM_PARALLEL, len(missing)))]
            return sum(worker.result() for worker in workers)

    def _fetch_one(self, item: _Item, tree: Path, *, channel: Channel, store: ObjectStore) -> None:
        wanted = item.wanted
        path = tree.joinpath(*wanted.path)
        try:
            if is_packed(channel):
                md5 = _fetch_unpacked(wanted, path, channel=channel, store=store)
            else:
                store.download(wanted.bucket, wanted.key, path, size_bytes=wanted.size_bytes, etag=wanted.etag)
                md5 = _md5_of(path) if item.identity.md5 is not None else ""
        except ObjectStoreError as error:
            if error.details.get("status") == HTTPStatus.PRECONDITION_FAILED:
                raise CacheUnusable(f"{wanted.key!a} was replaced while it was fetched") from error
            raise
        except AgentError as error:
            if "free_bytes" in error.details:  # the disk is full: the data may still fit without the cache
                raise CacheUnusable(error.message) from error
            raise
        is_what_it_says = item.identity.content is not None and md5 == item.identity.md5
        self.folder.publish(path, cast("str", item.identity.content) if is_what_it_says else item.identity.place)


@dataclass(kw_only=True)
class _Work:
    """Queue of objects for several workers; the first error in one worker stops all.

    The workers share one lock holder, so its locks do not exclude each other; `under_way` has the objects being
    fetched.
    """

    missing: deque[_Item]
    locks: ObjectLocks
    link: Callable[[_Item], bool]
    fetch: Callable[[_Item], None]
    stop: threading.Event
    lock_wait_s: float
    elsewhere: deque[_Item] = field(default_factory=deque)  # objects that other holders or workers fetch
    under_way: set[str] = field(default_factory=set)  # names of objects that a worker fetches
    has_failed: bool = False
    guard: threading.Lock = field(default_factory=threading.Lock)  # guards `under_way` and `locks`

    def run(self) -> int:
        """Fetch or link the remaining objects; return how many objects this worker fetched."""
        num_fetched = 0
        try:
            while (item := _next(self.missing)) is not None:
                num_fetched += self._bring(item)
            deadline_s = time.monotonic() + self.lock_wait_s
            while (item := _next(self.elsewhere)) is not None:
                while not self.has_failed and not self.link(item):
                    if self._begin(item, is_late=time.monotonic() >= deadline_s):
                        num_fetched += self._bring_begun(item)
                        break
                    if self.stop.wait(_POLL_S):
                        raise CacheUnusable("the host stops")
        except BaseException:
            self.has_failed = True
            self.missing.clear()
            self.elsewhere.clear()
            raise
        return num_fetched

    def _bring(self, item: _Item) -> int:
        if not self._begin(item):
            self.elsewhere.append(item)
            return 0
        return self._bring_begun(item)

    def _begin(self, item: _Item, *, is_late: bool = False) -> bool:
        """Claim an object for the calling worker; return whether the worker has to fetch it.

        With `is_late` another holder's lock is ignored.
        """
        name = item.identity.name
        with self.guard:
            if name in self.under_way or not (self.locks.take(name) or is_late):
                return False
            self.under_way.add(name)
        return True

    def _bring_begun(self, item: _Item) -> int:
        try:
            if self.link(item):  # the previous holder may have stored it just now
                return 0
            self.fetch(item)
            return 1
        finally:
            with self.guard:
                self.under_way.discard(item.identity.name)
                self.locks.let_go(item.identity.name)


def _next(items: deque[_Item]) -> _Item | None:
    try:
        return items.popleft()
    except IndexError:
        return None


def _md5_of(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.md5(usedforsecurity=False)
        while block := file.read(1 << 20):
            digest.update(block)
        return digest.hexdigest()


def _fetch_unpacked(wanted: ChannelObject, path: Path, *, channel: Channel, store: ObjectStore) -> str:
    """Write the object's unpacked content to `path`; return the MD5 sum of the packed object."""
    with (
        store.open_reader(wanted.bucket, wanted.key, etag=wanted.etag) as packed,
        whole_file(path) as descriptor,
    ):
        summed = _SummedReader(packed)
        write_unpacked(cast("BinaryIO", summed), wanted, descriptor, channel=channel)
        while summed.read(1 << 20):
            continue  # the sum covers the whole object, also bytes after the packed data
        return summed.md5.hexdigest()


class _SummedReader:
    """A stream that computes the MD5 sum of the bytes read from it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.md5 = hashlib.md5(usedforsecurity=False)

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, or `b""` at the end."""
        data = self._stream.read(size)
        self.md5.update(data)
        return data
