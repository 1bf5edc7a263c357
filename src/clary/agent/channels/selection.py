"""Selection of the objects of a channel for a host, and their names.

Rules for `S3Prefix`, as in the SageMaker SDK's local mode:
- If the URI is the key of an object, the channel is that object alone, under its base name.
- Else the channel is every object whose key starts with the URI's key, named by the remainder of its key.
  `s3://b/input/code` and `s3://b/input/code/` give the same names to objects in that folder; the URI without the slash
  also matches `input/code-old/x` (as `-old/x`), as in SageMaker, and a note reports it.
- Keys that end in a slash are folders: created, but neither counted nor sharded.
`ManifestFile`: a JSON array `[{"prefix": "s3://bucket/some/"}, "relative/key", ...]`; each key is appended unchanged to
the prefix and is also the name of its file.
`ShardedByS3Key`: of the keys in sorted order, or in shuffled order with a shuffle seed, host i of n gets the i-th,
(i+n)-th, ...: each object goes to exactly one host.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, BinaryIO, Protocol

from clary.agent.channels.layout import checked_parts, refused_key, require_distinct
from clary.agent.notes import NoteBook
from clary.base.errors import AgentError, Fault
from clary.contract.launch_plan import Channel, InputMode
from clary.contract.object_store import ObjectStore, S3Uri, parse_s3_uri

_MAX_MANIFEST_BYTES = 256 << 20
_SHARDED = "ShardedByS3Key"


@dataclass(frozen=True, kw_only=True)
class ChannelObject:
    """An object that becomes a file of the channel."""

    bucket: str
    key: str
    path: tuple[str, ...]  # below the channel's folder; empty for pipes
    size_bytes: int | None  # None if unknown (manifests)
    etag: str = ""  # with its quotes; empty where size_bytes is None


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The objects of a channel, for all hosts together."""

    objects: tuple[ChannelObject, ...]  # sorted by key
    folders: tuple[tuple[str, ...], ...] = ()  # paths of keys that end in a slash
    notes: tuple[str, ...] = ()

    def shard(self, channel: Channel, *, host_index: int, num_hosts: int, epoch: int = 0) -> tuple[ChannelObject, ...]:
        """Return the objects of one host in one epoch.

        With a shuffle seed the objects of all hosts are shuffled before they are distributed, so that a host gets other
        objects in each epoch; every host computes the same order.

        Args:
            host_index: 0 for the first of the `num_hosts` hosts that get the channel.
        """
        objects: Sequence[ChannelObject] = self.objects
        if channel.shuffle_seed is not None:
            objects = list(objects)
            Random(f"{channel.shuffle_seed}/{epoch}").shuffle(objects)
        if channel.s3_data_distribution == _SHARDED:
            objects = objects[host_index::num_hosts]
        return tuple(objects)


class ManifestSource(Protocol):
    """Source of manifests: the object store, or this machine's cache."""

    def open_reader(self, bucket: str, key: str) -> BinaryIO:
        """Open an object as a stream. Raises: ObjectStoreError."""


def select_objects(channel: Channel, *, store: ObjectStore, manifests: ManifestSource | None = None) -> Selection:
    """Find the objects of a channel with an S3 source.

    Args:
        manifests: source of the manifest; None: `store`.
    Raises: AgentError (fault USER) if there are no objects, if a key cannot be a file or if a manifest cannot be read;
        ObjectStoreError.
    """
    assert channel.s3_uri is not None, "file system channels have no objects"
    uri = parse_s3_uri(channel.s3_uri)
    if channel.s3_data_type == "S3Prefix":
        selection = _of_prefix(uri, channel, store)
    elif channel.s3_data_type == "ManifestFile":
        selection = _of_manifest(uri, channel, manifests or store)
    else:
        raise AgentError(
            f"Channel {channel.name}: S3DataType {channel.s3_data_type!r} cannot be fetched; expected S3Prefix or "
            "ManifestFile.",
            fault=Fault.USER,
        )
    if not selection.objects:
        raise AgentError(
            f'No S3 objects found under S3 URL "{channel.s3_uri}" given in input data source. Please ensure that the '
            f"bucket exists in the selected region ({store.region}), that objects exist under that S3 prefix, and "
            f'that the job\'s access key may list bucket "{uri.bucket}".',
            fault=Fault.USER,
            details={"channel": channel.name, "uri": channel.s3_uri},
        )
    if channel.input_mode is not InputMode.PIPE:
        files = ((item.path, item.key) for item in selection.objects)
        require_distinct(files, selection.folders, channel=channel.name)
    return selection


def _of_prefix(uri: S3Uri, channel: Channel, store: ObjectStore) -> Selection:
    if uri.key and not uri.key.endswith("/"):
        single = store.head(uri.bucket, uri.key)
        if single is not None:
            name = uri.key.rpartition("/")[2]
            path = _file_path(name, key=uri.key, channel=channel)
            item = ChannelObject(
                bucket=uri.bucket, key=uri.key, path=path, size_bytes=single.size_bytes, etag=single.etag
            )
            return Selection(objects=(item,))
    notes = NoteBook()
    objects, folders = [], []
    for info in store.list_objects(uri.bucket, uri.key):
        relative = info.key[len(uri.key) :]
        path = _file_path(relative or info.key.rpartition("/")[2], key=info.key, channel=channel)
        if info.key.endswith("/"):
            folders.append(path)
            continue
        if uri.key and not uri.key.endswith("/") and not relative.startswith("/"):
            notes.add(f"channel {channel.name}: objects beside the folder {uri} match its prefix too", info.key)
        item = ChannelObject(bucket=uri.bucket, key=info.key, path=path, size_bytes=info.size_bytes, etag=info.etag)
        objects.append(item)
    objects.sort(key=lambda item: item.key)
    return Selection(objects=tuple(objects), folders=tuple(path for path in folders if path), notes=notes.lines())


def _of_manifest(uri: S3Uri, channel: Channel, manifests: ManifestSource) -> Selection:
    with manifests.open_reader(uri.bucket, uri.key) as reader:
        body = reader.read(_MAX_MANIFEST_BYTES + 1)
    if len(body) > _MAX_MANIFEST_BYTES:
        raise _bad_manifest(uri, channel, f"it has more than {_MAX_MANIFEST_BYTES} bytes")
    try:
        entries = json.loads(body)
    except ValueError as error:
        raise _bad_manifest(uri, channel, f"it is not JSON ({error})") from error
    except RecursionError as error:
        raise _bad_manifest(uri, channel, "its JSON is nested too deep; expected one array of strings") from error
    if not isinstance(entries, list) or not entries or not isinstance(entries[0], dict):
        raise _bad_manifest(uri, channel, 'expected an array whose first element is {"prefix": "s3://..."}')
    prefix = entries[0].get("prefix")
    if not isinstance(prefix, str):
        raise _bad_manifest(uri, channel, 'its first element has no "prefix"')
    base = parse_s3_uri(prefix)
    objects = {}
    for number, entry in enumerate(entries[1:], start=1):
        item = _manifest_object(base, entry, channel=channel, where=f"element {number} of {uri}")
        objects[item.key] = item
    num_repeated = len(entries) - 1 - len(objects)
    notes = (f"channel {channel.name}: {num_repeated} repeated entries of {uri} count once",) if num_repeated else ()
    return Selection(objects=tuple(objects[key] for key in sorted(objects)), notes=notes)


def _manifest_object(base: S3Uri, entry: Any, *, channel: Channel, where: str) -> ChannelObject:
    if not isinstance(entry, str) or not entry or entry.endswith("/"):
        shown = json.dumps(entry)[:100]
        raise AgentError(
            f"Channel {channel.name}: {where} is {shown}, expected the rest of an object's key as a string.",
            fault=Fault.USER,
        )
    key = base.key + entry
    if {".", ".."}.intersection(key.split("/")):  # the store may resolve them, even if the key is no file's path
        raise refused_key(key, f'a part of it is "." or "..", in {where}', channel=channel.name)
    path = _file_path(entry, key=key, channel=channel)
    return ChannelObject(bucket=base.bucket, key=key, path=path, size_bytes=None)


def _file_path(relative_key: str, *, key: str, channel: Channel) -> tuple[str, ...]:
    """Return the path of an object below the channel's folder; empty for a pipe, where any key is allowed."""
    if channel.input_mode is InputMode.PIPE:
        return ()
    return checked_parts(relative_key, key=key, channel=channel.name)


def _bad_manifest(uri: S3Uri, channel: Channel, reason: str) -> AgentError:
    return AgentError(f"Channel {channel.name}: manifest {uri} cannot be used: {reason}.", fault=Fault.USER)
