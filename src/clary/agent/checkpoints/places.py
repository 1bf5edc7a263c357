"""Names of checkpoints: paths below the folder, keys below the prefix, and checks of both.

Where: the modules that scan, upload, publish, list and restore use it. Manifests and keys come from a bucket that
anyone may have written to, names in the folder come from a program: no name may lead out of the folder or the prefix.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass

from clary.contract.checkpoint_sets import OWN_FOLDER, CheckpointSet, content_key, folded
from clary.contract.object_store import S3Uri, parse_s3_uri

_MAX_PART_BYTES = 255  # NAME_MAX of Linux file systems
_MAX_PATH_BYTES = 3800  # PATH_MAX of Linux is 4096; the rest is for the folder above
_MAX_KEY_BYTES = 1024  # limit of S3
_UNSAFE = re.compile(r"[\\\x00-\x1f\x7f]")  # among the "characters to avoid" of Amazon S3's guide
_HIDDEN_ENDINGS = (".versions", ".uploads")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Prefix:
    """Location of a job's checkpoints in the object store: CheckpointConfig.S3Uri."""

    uri: S3Uri

    @property
    def bucket(self) -> str:
        """Name of the bucket."""
        return self.uri.bucket

    @property
    def base(self) -> str:
        """The URI's key as a folder path; every written key starts with it."""
        key = self.uri.key
        return key if not key or key.endswith("/") else f"{key}/"

    def key(self, relative: str) -> str:
        """Return the whole key of the object at `relative` below the prefix."""
        return self.base + relative

    def can_hold(self, relative: str) -> bool:
        """Whether stores accept the key of a relative path and list it unchanged.

        SeaweedFS 4.48 turns a backslash into a slash, and hides the content of folders that are named like its own
        folders.
        """
        if len(self.key(relative).encode()) > _MAX_KEY_BYTES or _UNSAFE.search(relative):
            return False
        return not any(part.endswith(_HIDDEN_ENDINGS) for part in relative.split("/"))


def prefix_of(uri: str) -> Prefix:
    """Return the prefix that a URI names, with repeated slashes collapsed. Raises: AgentError as `parse_s3_uri`."""
    parsed = parse_s3_uri(uri)
    return Prefix(S3Uri(parsed.bucket, folded(parsed.key)))


class TakenNames:
    """Paths below the prefix that have an object. A path is free only if no object lies at, above or below it."""

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self._paths: set[str] = set()
        self._folders: set[str] = set()
        for path in paths:
            self.add(path)

    def __contains__(self, path: str) -> bool:
        return path in self._paths

    def add(self, path: str) -> None:
        """Add the path of an object."""
        self._paths.add(path)
        self._folders.update(folders_above(path))

    def collides(self, path: str) -> bool:
        """Whether `path` and an object's path would need one name for a file and a folder, which some stores refuse."""
        return path in self._folders or any(folder in self._paths for folder in folders_above(path))

    def is_free(self, path: str) -> bool:
        """Whether an object can be written at `path` without a conflict with another object."""
        return path not in self._paths and not self.collides(path)


def folders_above(path: str) -> list[str]:
    """Return a path's parent folders, outermost first."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[: depth + 1]) for depth in range(len(parts))]


def path_problem(path: str) -> str | None:
    """Return None if a path can be a file below the folder, else the reason why not."""
    parts = path.split("/")
    if not all(parts):
        return "a part of it is empty"
    if any(part in (".", "..") for part in parts):
        return 'a part of it is "." or ".."'
    if "\0" in path:
        return "it holds a NUL byte"
    try:
        sizes = [len(part.encode()) for part in parts]
    except UnicodeEncodeError:
        return "it is not UTF-8 text"
    if max(sizes) > _MAX_PART_BYTES:
        return f"a part of it has {max(sizes)} bytes, at most {_MAX_PART_BYTES} fit"
    if sum(sizes) + len(parts) > _MAX_PATH_BYTES:
        return f"it has more than {_MAX_PATH_BYTES} bytes"
    return None


def inner_target(path: str, target: str, *, root: str) -> str | None:
    """Return a link's target as a relative, normalised path; None if it leaves the folder.

    In the returned target `..` appears only at the front, so that no other link in the path can make it lead out.

    Args:
        path: of the link, below the folder.
        target: text of the link.
        root: the folder's path in the program's view, for absolute targets.
    """
    here = posixpath.dirname(path)
    try:
        target.encode()
    except UnicodeEncodeError:
        return None
    if target.startswith("/"):
        if not f"{target}/".startswith(f"{root.rstrip('/')}/"):
            return None
        target = posixpath.relpath(posixpath.normpath(target), posixpath.join(root, here))
    inside = posixpath.normpath(posixpath.join(here, target))
    if inside == ".." or inside.startswith(("../", "/")) or not target:
        return None
    return posixpath.relpath(inside, here or ".")


def set_problem(checkpoints: CheckpointSet, *, host: str, number: int) -> str | None:
    """Return the reason why an undamaged manifest cannot be trusted; None if it can be.

    Args:
        host: the host in the manifest's key.
        number: number of the set in the manifest's key.
    """
    if (checkpoints.host, checkpoints.number) != (host, number):
        return f"it says that it is set {checkpoints.number} of {checkpoints.host!a}"
    own_content = content_key(host, "")
    names = TakenNames()
    links = checkpoints.links or {}
    for path in [*(file.path for file in checkpoints.files), *links]:
        problem = path_problem(path) or ("it stands there twice" if not names.is_free(path) else None)
        if problem or path.split("/")[0] == OWN_FOLDER:
            return f"its path {path[:200]!a} cannot be restored: {problem or 'that folder is not of checkpoints'}"
        names.add(path)
    for folder in checkpoints.folders:
        if path_problem(folder) or folder in names or any(above in names for above in folders_above(folder)):
            return f"its folder {folder[:200]!a} cannot be restored"
    for path, target in links.items():
        if inner_target(path, target, root="/") != target:
            return f"its link {path[:200]!a} leaves the folder"
    for file in checkpoints.files:
        is_own = file.key.startswith(own_content) and not path_problem(file.key)
        if not is_own and file.key != file.path:
            return f"it names {file.key[:200]!a}, which is not a key of this host, for {file.path[:200]!a}"
        if file.size_bytes < 0 or not _SHA256.fullmatch(file.sha256):
            return f"size or hash of {file.path[:200]!a} make no sense"
    return None
