"""Names of objects and trees in the cache. Pure.

An object whose ETag is an MD5 sum has two names: a name by content (MD5, size, bucket, and the key without the numbers
of its folders) and a name by location (endpoint, bucket, key, ETag, size). It is stored under the name by content only
after the sum was compared with the fetched content, since some ETags look like MD5 sums but are not (encryption by KMS
keys). SDKs upload the same code and data under a new prefix for every job, with the time or a random number in it: only
the name by content finds them again. MD5 and size alone do not identify an object: two texts of one sum are made in
seconds, and one of them at a place of a stranger would stand for the other elsewhere.

A stored file carries a stamp in the nanoseconds of its mtime: a hash of its name and size. A write or truncation
changes the mtime, and the file no longer counts as the object.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

SECOND_NS = 1_000_000_000
_MD5_ETAG = re.compile(r'"?([0-9a-f]{32})"?')
# Times, counters and random numbers in the names of folders: whole words of digits, or of four and more hexadecimal
# digits.
_NUMBER = re.compile(r"(?<![^-_./])(?:[0-9]{1,20}(?:T[0-9]{1,6}Z?)?|(?=[a-f]{0,40}[0-9])[0-9a-f]{4,64})(?![^-_./])")
_NAME_CHARACTERS = 40  # hexadecimal characters of SHA-256: 160 bits


@dataclass(frozen=True, kw_only=True)
class Identity:
    """An object's names in the cache."""

    content: str | None  # None if the ETag is no MD5 sum
    place: str
    md5: str | None  # MD5 sum of the content according to the ETag

    @property
    def name(self) -> str:
        """The object's name that goes into the name of a snapshot."""
        return self.content or self.place


def identity_of(*, endpoint_url: str, bucket: str, key: str, etag: str, size_bytes: int, is_unpacked: bool) -> Identity:
    """Return the names of one version of an object.

    Args:
        endpoint_url: of the store.
        bucket: of the object.
        key: of the object.
        etag: with or without quotes; with an ETag that is no MD5 sum there is no name by content.
        size_bytes: of the object in the store, even if it is unpacked here.
        is_unpacked: whether the cache holds its unpacked content.
    """
    match = _MD5_ETAG.fullmatch(etag)
    md5 = match[1] if match else None
    form = "unpacked" if is_unpacked else "plain"
    return Identity(
        content=_digest("content", md5, size_bytes, form, *_family(bucket, key, size_bytes)) if md5 else None,
        place=_digest("place", endpoint_url, bucket, key, etag, size_bytes, form),
        md5=md5,
    )


def _family(bucket: str, key: str, size_bytes: int) -> tuple[str, ...]:
    """Return the common part of the keys of objects that may stand for one another if sum and size are equal."""
    if not size_bytes:
        return ()  # there is one empty content
    folders, slash, name = key.rpartition("/")
    return bucket, _NUMBER.sub("#", folders) + slash + name


def snapshot_name(files: Iterable[tuple[tuple[str, ...], str]], folders: Iterable[tuple[str, ...]]) -> str:
    """Return the name of a tree.

    Args:
        files: (path parts, the object's name) of every file.
        folders: path parts of folders that contain none of these files.
    """
    return _digest("snapshot", sorted(files), sorted(set(folders)))


def stamped_ns(time_ns: int, *, name: str, size_bytes: int) -> int:
    """Return an mtime with the stamp of a stored file, up to two seconds before `time_ns`.

    Args:
        time_ns: since 1970; the stamp replaces the fraction of a second.
        name: of the object.
        size_bytes: of the file.
    """
    return (time_ns // SECOND_NS - 1) * SECOND_NS + _stamp(name, size_bytes)


def is_as_stored(status: os.stat_result, *, name: str) -> bool:
    """Whether size and mtime show that a file is unchanged since it was stored under `name`."""
    return status.st_mtime_ns % SECOND_NS == _stamp(name, status.st_size)


def lock_place(name: str) -> int:
    """Return the offset of an object's byte in the lock file."""
    return int(name[:15], 16)  # 60 bits, within the kernel's range of offsets


def _stamp(name: str, size_bytes: int) -> int:
    return int(_digest("stamp", name, size_bytes)[:15], 16) % SECOND_NS


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:_NAME_CHARACTERS]
