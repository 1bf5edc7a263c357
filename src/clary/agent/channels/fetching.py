"""Fetching of File channels: objects become complete files in the channel's folder.

Where: an agent fetches each channel through this while it prepares its host (secondary status Downloading).

`CompressionType: Gzip`: every object is unpacked during the transfer and its name loses a final `.gz` (`.tgz` becomes
`.tar`), so that names still fit the content. SageMaker documents the setting for Pipe mode only.
`InputMode: FastFile` is fetched like File; the service warns about this when the job is created.
`InputMode: Pipe` fetches nothing here: `fetch_channel` finds and counts the objects, `PipeFeeder` feeds them.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from clary.agent.channels.cache import CacheUnusable, ChannelCache, Snapshot
from clary.agent.channels.selection import ChannelObject, Selection, select_objects
from clary.agent.channels.unpacking import is_packed, with_unpacked_names, write_unpacked
from clary.base.beneath import Folder
from clary.base.disk_space import disk_errors_named, require_space
from clary.base.errors import AgentError, Fault
from clary.contract.launch_plan import Channel, InputMode
from clary.contract.ml_tree import MlTree
from clary.contract.object_store import ObjectStore, whole_file

NUM_PARALLEL = 8  # parallel fetches; with more, one network link is not used better, but the store is loaded more
_UNITS = ((1 << 40, "TB"), (1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB"))


@dataclass(frozen=True, kw_only=True)
class ChannelFacts:
    """The result of fetching a channel to this host."""

    name: str
    num_objects: int
    size_bytes: int  # bytes on this host's disk; 0 for pipes and mounted file systems
    seconds: float
    notes: tuple[str, ...] = ()
    summary: str = ""  # source of the data, as a line for the log; empty for pipes and mounted file systems
    # location of the data if it is not in the channel's folder; the caller releases it
    snapshot: Snapshot | None = None


def fetch_channel(
    channel: Channel,
    *,
    store: ObjectStore,
    tree: MlTree,
    host_index: int,
    num_hosts: int,
    cache: ChannelCache | None = None,
    is_copied: bool = False,
    why_not_kept: str = "",
) -> ChannelFacts:
    """Fetch a channel to `<tree>/input/data/<name>`; for a pipe count its objects, for a file system check it.

    The call can be repeated: files are replaced atomically, one by one.

    Args:
        host_index: index of this host among the hosts that get the channel, from 0.
        num_hosts: number of those hosts.
        cache: of this machine. With it the data becomes a snapshot in the cache, and the channel's folder stays empty.
            If the cache cannot be used, it only evicts entries to free disk space. The data is then fetched into the
            folder, and the summary has the reason, unless the cache is switched off.
        is_copied: whether the snapshot will be copied.
        why_not_kept: a reason not to use the cache for the data.
    Raises: AgentError: fault USER for data that is missing or cannot be files and for a full disk, naming key or
        path; ObjectStoreError. Files fetched before the error stay; no file outside the channel's folder is written.
    """
    started = time.monotonic()
    folder = channel_folder(channel, tree)
    if channel.file_system_path is not None:
        _require_folder(channel, channel.file_system_path)
        return ChannelFacts(name=channel.name, num_objects=0, size_bytes=0, seconds=time.monotonic() - started)
    manifests = cache.source(store) if cache is not None else None
    selection = select_objects(channel, store=store, manifests=manifests)
    objects = selection.shard(channel, host_index=host_index, num_hosts=num_hosts)
    notes = list(selection.notes)
    if not objects:
        notes.append(
            f"channel {channel.name}: this host gets no object, because {num_hosts} hosts share "
            f"{len(selection.objects)}"
        )
    if channel.input_mode is InputMode.PIPE:
        return ChannelFacts(
            name=channel.name,
            num_objects=len(objects),
            size_bytes=0,
            seconds=time.monotonic() - started,
            notes=tuple(notes),
        )
    if is_packed(channel):
        objects = with_unpacked_names(objects, selection, channel=channel)
    snapshot: Snapshot | None = None
    source = "fetched"
    if cache is not None and cache.is_on and objects and not why_not_kept:
        try:
            snapshot = cache.snapshot(objects, selection.folders, channel=channel, store=store, is_copied=is_copied)
            source = f"{snapshot.num_cached} from this machine's cache, {snapshot.num_fetched} fetched"
        except CacheUnusable as reason:
            why_not_kept = reason.message
    if why_not_kept:
        source = f"fetched, not kept in this machine's cache: {why_not_kept}"
    if snapshot is not None:
        size_bytes = snapshot.size_bytes
    else:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            needed_bytes = sum(item.size_bytes or 0 for item in objects)
            if cache is not None:
                cache.free_disk(folder, needed_bytes)
            require_space(folder, needed_bytes=needed_bytes)
            size_bytes = _fetch_all(objects, selection, channel=channel, store=store, folder=folder)
        except OSError as error:
            raise AgentError(f"Channel {channel.name} cannot be written below {folder}: {error}") from error
    return ChannelFacts(
        name=channel.name,
        num_objects=len(objects),
        size_bytes=size_bytes,
        seconds=time.monotonic() - started,
        notes=tuple(notes),
        summary=f"channel {channel.name}: {_count(len(objects))}, {_size(size_bytes)}: {source}",
        snapshot=snapshot,
    )


def channel_folder(channel: Channel, tree: MlTree) -> Path:
    """Return the folder of a channel. Raises: AgentError for a name that cannot name a folder."""
    if channel.name in ("", ".", "..") or "/" in channel.name or "\0" in channel.name:
        raise AgentError(f"Channel name {channel.name!a} cannot be the name of a folder: rename it.", fault=Fault.USER)
    return tree.channel(channel.name)


def _require_folder(channel: Channel, path: str) -> None:
    try:
        with Folder.at(path) as top:
            top.folder(channel.file_system_folder).close()
    except OSError as error:
        shown = os.path.join(path, channel.file_system_folder)
        raise AgentError(
            f"Channel {channel.name}: {shown} cannot be opened as a folder on this host: "
            f"{error.strerror}. Mount the file system there, or correct the request: links on the way are "
            "not followed.",
            fault=Fault.USER,
            details={"channel": channel.name, "path": shown},
        ) from error


def _fetch_all(
    objects: tuple[ChannelObject, ...], selection: Selection, *, channel: Channel, store: ObjectStore, folder: Path
) -> int:
    """Fetch objects in parallel; the first error stops all workers and is raised. Return the bytes written."""
    with disk_errors_named(folder, needed_bytes=None):
        for path in selection.folders:
            folder.joinpath(*path).mkdir(parents=True, exist_ok=True)
    fetch = _fetch_unpacked if is_packed(channel) else _fetch_plain
    queue = _Queue(iter(objects))
    sizes: list[int] = []

    def work() -> None:
        try:
            sizes.extend(fetch(item, folder.joinpath(*item.path), store=store, channel=channel) for item in queue)
        except BaseException:
            queue.stop()
            raise

    with ThreadPoolExecutor(NUM_PARALLEL, thread_name_prefix=f"channel-{channel.name}") as pool:
        workers = [pool.submit(work) for _ in range(min(NUM_PARALLEL, len(objects)))]
    for worker in workers:
        worker.result()
    return sum(sizes)


def _fetch_plain(item: ChannelObject, path: Path, *, store: ObjectStore, channel: Channel) -> int:
    with disk_errors_named(path, needed_bytes=item.size_bytes):
        return store.download(item.bucket, item.key, path, size_bytes=item.size_bytes)


def _fetch_unpacked(item: ChannelObject, path: Path, *, store: ObjectStore, channel: Channel) -> int:
    with (
        disk_errors_named(path, needed_bytes=None),
        store.open_reader(item.bucket, item.key) as packed,
        whole_file(path) as descriptor,
    ):
        return write_unpacked(packed, item, descriptor, channel=channel)


def _count(number: int) -> str:
    return f"{number} object{'' if number == 1 else 's'}"


def _size(size_bytes: int) -> str:
    for unit, name in _UNITS:
        if size_bytes >= unit:
            return f"{size_bytes / unit:.1f} {name}"
    return f"{size_bytes} bytes"


class _Queue:
    """Queue of objects for several workers, until one worker stops it."""

    def __init__(self, objects: Iterator[ChannelObject]) -> None:
        self._objects = objects
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[ChannelObject]:
        while True:
            with self._lock:
                item = next(self._objects, None)
            if item is None:
                return
            yield item

    def stop(self) -> None:
        """End the iteration of all workers."""
        with self._lock:
            self._objects = itertools.chain()
