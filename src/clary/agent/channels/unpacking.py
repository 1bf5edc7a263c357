"""`CompressionType: Gzip`: decompression of objects during the transfer, and the names of the results.

Where: File and Pipe channels read packed objects through this.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import BinaryIO

from clary.agent.channels.layout import require_distinct
from clary.agent.channels.selection import ChannelObject, Selection
from clary.base.errors import AgentError, Fault
from clary.contract.launch_plan import Channel

_COPY_BYTES = 1 << 20
_GZIP = "Gzip"


def is_packed(channel: Channel) -> bool:
    """Whether every object of the channel is unpacked during the transfer."""
    return channel.compression == _GZIP


def with_unpacked_names(
    objects: tuple[ChannelObject, ...], selection: Selection, *, channel: Channel
) -> tuple[ChannelObject, ...]:
    """Return the objects under the names that they have when unpacked.

    Args:
        objects: of one host.
        selection: of the channel; no object may have the path of one of its folders.
        channel: for messages.
    Raises: AgentError (fault USER) if two objects get the same path, or an object gets the path of a folder.
    """
    renamed = tuple(replace(item, path=(*item.path[:-1], _unpacked_name(item.path[-1]))) for item in objects)
    require_distinct(((item.path, item.key) for item in renamed), selection.folders, channel=channel.name)
    return renamed


def unpacked(packed: BinaryIO, item: ChannelObject, *, channel: Channel) -> Iterator[bytes]:
    """Yield the content of a gzip stream piece by piece.

    Args:
        packed: read to its end; stays open.
        item: the packed object, for messages.
        channel: of the object, for messages.
    Raises: AgentError (fault USER) naming the key of an object that is not gzip data or is damaged.
    """
    with gzip.GzipFile(fileobj=packed, mode="rb") as plain:
        while True:
            try:
                data = plain.read(_COPY_BYTES)
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise AgentError(
                    f"Channel {channel.name}: S3 key {item.key!a} is not whole gzip data ({error}), "
                    "which CompressionType Gzip expects of every object.",
                    fault=Fault.USER,
                    details={"channel": channel.name, "key": ascii(item.key)},
                ) from error
            if not data:
                return
            yield data


def write_unpacked(packed: BinaryIO, item: ChannelObject, descriptor: int, *, channel: Channel) -> int:
    """Write the content of a gzip stream to an open file and return its unpacked size.

    Args: as `unpacked`.
        descriptor: of the file, written from its current offset; stays open.
    Raises: as `unpacked`; OSError.
    """
    size_bytes = 0
    for data in unpacked(packed, item, channel=channel):
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        size_bytes += len(data)
    return size_bytes


def _unpacked_name(name: str) -> str:
    if name.endswith(".tgz") and name != ".tgz":
        return name.removesuffix(".tgz") + ".tar"
    return name.removesuffix(".gz") or name
