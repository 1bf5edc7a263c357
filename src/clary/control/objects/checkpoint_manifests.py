"""Manifests of checkpoint sets: their keys, their content, and checks of the content.

Where: `checkpoint_sets` lists sets and `checkpoint_verification` reads every file of them. Anyone with a key may have
written to the bucket of a manifest, so its content is checked before use.
"""

from __future__ import annotations

import asyncio
import http
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from clary.base.errors import ContractError, ObjectStoreError
from clary.contract.checkpoint_sets import (
    OWN_FOLDER,
    CheckpointFile,
    CheckpointSet,
    content_key,
    folded,
    manifest_key,
    read_manifest,
    read_manifest_key,
)
from clary.control.objects.listing import pages
from clary.control.objects.store_client import StoreClient

# A manifest of this size names some 200,000 files. Agents read larger manifests; the service does no other work while
# it parses JSON of this size.
MAX_MANIFEST_BYTES = 64 * 1024 * 1024
TOO_LARGE = f"the manifest has more than {MAX_MANIFEST_BYTES} bytes: it can be restored, but it is not read here"
MAX_HOSTS = 1000  # most hosts below one prefix
MAX_OBJECT_BYTES = 1 << 50  # more than any store holds in one object
MAX_FAULT_CHARACTERS = 500  # length of the text about the fault of one set
MAX_PART_BYTES = 255  # NAME_MAX of Linux file systems
MAX_PATH_BYTES = 3800  # PATH_MAX of Linux is 4096; the difference is left for the parent folder
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class CheckpointPlace:
    """The bucket and prefix that CheckpointConfig.S3Uri names."""

    bucket: str
    prefix: str  # ends with a slash; empty for the whole bucket

    @classmethod
    def of(cls, uri: str) -> CheckpointPlace:
        """Parse a URI; repeated slashes count as one, as for agents.

        Raises: ContractError if it names no valid bucket.
        """
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        if not uri.startswith("s3://") or not _BUCKET.fullmatch(bucket):
            raise ContractError(f"CheckpointConfig.S3Uri is {uri[:200]!a}, expected s3://bucket/prefix")
        key = folded(key)
        return cls(bucket, key if not key or key.endswith("/") else f"{key}/")

    def key(self, relative: str) -> str:
        """Return the full object key of a path below the prefix."""
        return self.prefix + relative


@dataclass(frozen=True, kw_only=True)
class ManifestObject:
    """A manifest in the listing; its content is not read yet."""

    host: str
    number: int
    size_bytes: int


async def find_manifests(
    client: StoreClient, place: CheckpointPlace, *, host: str | None = None
) -> dict[str, tuple[ManifestObject, ...]]:
    """Return host -> its manifests, newest first; hosts in the order of their numbers, at most MAX_HOSTS.

    Args:
        host: list only this host's manifests; None lists every host's.
    Raises: ObjectStoreError.
    """
    own_folder = place.key(f"{OWN_FOLDER}/")
    folders = [] if host is None else [f"{own_folder}{host}/"]
    if host is None:
        async for page in pages(client, place.bucket, own_folder, with_folders=True):
            folders += page.folders
    found: dict[str, list[ManifestObject]] = {}
    for folder in sorted(folders, key=host_order)[:MAX_HOSTS]:
        async for page in pages(client, place.bucket, f"{folder}set-"):
            for item in page.objects:
                named = read_manifest_key(item.key.removeprefix(place.prefix))
                if named is not None and named[0] not in (".", ".."):
                    manifest = ManifestObject(host=named[0], number=named[1], size_bytes=item.size_bytes)
                    found.setdefault(manifest.host, []).append(manifest)
    return {name: tuple(sorted(manifests, key=lambda manifest: -manifest.number)) for name, manifests in found.items()}


async def load_set(client: StoreClient, place: CheckpointPlace, *, host: str, number: int) -> CheckpointSet:
    """Read the manifest of a set, check its content and return it.

    Args:
        client: open.
        place: bucket and prefix of the job's checkpoints.
        host: name of the host that stored the set, such as algo-1.
        number: number of the set; host and number make the manifest's key, and its content must name them too.
    Raises: ContractError for a missing or faulty manifest; ObjectStoreError.
    """
    key = place.key(manifest_key(host, number))
    async with client.open(place.bucket, key) as stream:
        if stream.status == http.HTTPStatus.NOT_FOUND:
            raise ContractError("the manifest is gone")
        if stream.status != http.HTTPStatus.OK:
            raise ObjectStoreError(
                f"the object store answered {stream.status} when asked for s3://{place.bucket}/{ascii(key)[1:-1]}",
                retryable=stream.status >= http.HTTPStatus.INTERNAL_SERVER_ERROR,
                details={"bucket": place.bucket, "key": key, "status": stream.status},
            )
        data = bytearray()
        async for piece in stream.pieces():
            data += piece
            if len(data) > MAX_MANIFEST_BYTES:
                raise ContractError(TOO_LARGE)
    return await asyncio.to_thread(_believed, bytes(data), host, number)


def why_unbelievable(checkpoints: CheckpointSet, *, host: str, number: int) -> str:
    """Return the fault of a manifest's content, or an empty string; the result is safe for a terminal. Pure.

    Agents apply the same rules before they restore a set.

    Args:
        host, number: from the manifest's key.
    """
    if (checkpoints.host, checkpoints.number) != (host, number):
        return f"the manifest says that it is set {str(checkpoints.number)[:40]} of {_shown(checkpoints.host)}"
    for file in checkpoints.files:
        if reason := why_no_path(file.path) or why_no_key(file, host):
            return f"file {_shown(file.path)}: {reason}"
        if not 0 <= file.size_bytes <= MAX_OBJECT_BYTES:
            return f"file {_shown(file.path)}: no file has {str(file.size_bytes)[:40]} bytes"
        if not _SHA256.fullmatch(file.sha256):
            return f"file {_shown(file.path)}: {_shown(file.sha256)} is no SHA-256"
    links = checkpoints.links or {}
    for path in (*checkpoints.folders, *links, *checkpoints.gone):
        if reason := why_no_path(path):
            return f"{_shown(path)}: {reason}"
    for path, target in links.items():
        inside = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if not target or inside == ".." or inside.startswith(("../", "/")):
            return f"link {_shown(path)} leaves the folder"
    return _why_not_together([*(file.path for file in checkpoints.files), *links], checkpoints.folders)


def why_no_path(path: str) -> str:
    """Return why a path cannot lie below the checkpoint folder, or an empty string. Pure."""
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return 'a part of its path is empty, "." or ".."'
    if "\0" in path:
        return "its path holds a NUL byte"
    try:
        size_bytes, longest = len(path.encode()), max(len(part.encode()) for part in parts)
    except UnicodeEncodeError:
        return "its path is not UTF-8"
    if size_bytes > MAX_PATH_BYTES or longest > MAX_PART_BYTES:
        return f"its path has {size_bytes} bytes, a part of it {longest}; {MAX_PATH_BYTES} and {MAX_PART_BYTES} fit"
    if parts[0] == OWN_FOLDER:
        return f"its path lies in {OWN_FOLDER}, which is Clary's own"
    return ""


def why_no_key(file: CheckpointFile, host: str) -> str:
    """Return why an object cannot be a file of a host's set, or an empty string. Pure."""
    content = content_key(host, "")
    if file.key == file.path or (file.key.startswith(content) and not why_no_path(file.key.removeprefix(content))):
        return ""
    return f"its key {_shown(file.key)} is neither its path nor below {content}"


def host_order(name: str) -> tuple[str, int, str]:
    """Return a sort key that puts algo-2 before algo-10."""
    number = _DIGITS.search(name)
    return _DIGITS.sub("", name), int(number[0][:18]) if number else 0, name


def newest_numbers(found: Mapping[str, Iterable[ManifestObject]]) -> dict[str, int]:
    """Return host -> number of its newest set. Pure."""
    return {host: max(manifest.number for manifest in manifests) for host, manifests in found.items()}


def _believed(data: bytes, host: str, number: int) -> CheckpointSet:
    checkpoints = read_manifest(data)
    if reason := why_unbelievable(checkpoints, host=host, number=number):
        raise ContractError(reason)
    return checkpoints


def _why_not_together(paths: Sequence[str], folders: Sequence[str]) -> str:
    """Return a sentence on two paths that cannot exist in one folder, or an empty string."""
    names = set(paths)
    if len(names) < len(paths):
        doubled = next(path for path, times in Counter(paths).items() if times > 1)
        return f"{_shown(doubled)} is named twice"
    for path in folders:
        if path in names:
            return f"{_shown(path)} is a file and a folder"
    for path in (*paths, *folders):
        above = path.rpartition("/")[0]
        while above:
            if above in names:
                return f"{_shown(above)} is a file and, for {_shown(path)}, also a folder"
            above = above.rpartition("/")[0]
    return ""


def _shown(text: str) -> str:
    """Return text from a manifest without control characters."""
    return ascii(text[:200])
