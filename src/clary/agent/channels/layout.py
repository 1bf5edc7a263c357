"""Paths of objects below a channel's folder.

Keys come from buckets that anyone may have written to. A key that would lead out of the folder, or that no file system
can hold, fails the download; the error names the key. No file is renamed silently, because two keys could then map to
one file.

Slashes: leading slashes are dropped and several in a row count as one, as in SeaweedFS; a key that ends in a slash is a
folder.
"""

from __future__ import annotations

from collections.abc import Iterable

from clary.base.errors import AgentError, Fault

_MAX_PART_BYTES = 255  # NAME_MAX of Linux file systems
_MAX_PATH_BYTES = 3800  # PATH_MAX of Linux is 4096; the rest is for the folder above


def checked_parts(relative_key: str, *, key: str, channel: str) -> tuple[str, ...]:
    """Return the parts of a path below the channel's folder; an empty tuple for the folder itself.

    Args:
        relative_key: the part of the key after the channel's prefix.
        key: the whole key, for messages.
    Raises: AgentError (fault USER) naming the key and why it cannot be a file.
    """
    parts = tuple(part for part in relative_key.split("/") if part)
    if any(part in (".", "..") for part in parts):
        raise refused_key(key, 'a part of it is "." or ".."', channel=channel)
    if "\0" in relative_key:
        raise refused_key(key, "it holds a NUL byte", channel=channel)
    longest = max((len(part.encode("utf-8", "surrogatepass")) for part in parts), default=0)
    if longest > _MAX_PART_BYTES:
        raise refused_key(key, f"a part of it has {longest} bytes, at most {_MAX_PART_BYTES} fit", channel=channel)
    if len(relative_key.encode("utf-8", "surrogatepass")) > _MAX_PATH_BYTES:
        raise refused_key(key, f"it has more than {_MAX_PATH_BYTES} bytes", channel=channel)
    return parts


def require_distinct(
    files: Iterable[tuple[tuple[str, ...], str]], folders: Iterable[tuple[str, ...]], *, channel: str
) -> None:
    """Check that no two objects map to one file and that no file is also a folder.

    Args:
        files: (path parts, key) of every object.
        folders: path parts of keys that are folders.
    Raises: AgentError (fault USER) naming the keys.
    """
    key_of: dict[tuple[str, ...], str] = {}
    for path, key in files:
        other = key_of.setdefault(path, key)
        if other != key:
            raise refused_key(key, f"key {other!a} gives the same file {'/'.join(path)!a}", channel=channel)
    for path, key in key_of.items():
        for depth in range(1, len(path)):
            above = key_of.get(path[:depth])
            if above is not None:
                raise refused_key(above, f"it is a file and, for key {key!a}, also a folder", channel=channel)
    for path in folders:
        for depth in range(1, len(path) + 1):
            above = key_of.get(path[:depth])
            if above is not None:
                folder = ascii("/".join(path) + "/")
                raise refused_key(above, f"it is a file and, for folder {folder}, also a folder", channel=channel)


def refused_key(key: str, reason: str, *, channel: str) -> AgentError:
    """Return the error for a key that cannot be a file of the channel.

    Args:
        key: the whole key.
        reason: a clause without a full stop.
        channel: its name.
    """
    return AgentError(
        f"Channel {channel}: S3 key {key!a} cannot become a file: {reason}. Rename or exclude the object.",
        fault=Fault.USER,
        details={"channel": channel, "key": ascii(key)},
    )
