"""Checkpoint sets: the files of a host's checkpoint folder at one moment, as objects in the object store.

Where: agents write and restore them (`agent.checkpoints`), the service lists and verifies them. Below the prefix that
CheckpointConfig.S3Uri names:

    PATH                                          files under the names that SageMaker uses, for people and other tools
    .clary-checkpoints/HOST/set-00000012.json     manifest of a set; the set exists once this object exists
    .clary-checkpoints/HOST/files/NAME            content that has no path of its own under PATH
    .clary-checkpoints/HOST/announced.json        paths that an unfinished set will put under PATH

A manifest is written after all its files, by one PUT, so that it also commits the set. It contains its own SHA-256: a
truncated manifest does not count as a set. Objects that the newest set of a host names are never replaced or removed.

An object under PATH that no set names was written by a user and is restored, too, unless it is announced: an announced
object belongs to an unfinished set, and restoring it would restore half a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from clary.base.errors import ContractError
from clary.base.plain import from_plain, to_plain
from clary.contract.checkpoint_evidence import Evidence, count_evidence
from clary.contract.step_counts import StepCounts

OWN_FOLDER = ".clary-checkpoints"
FORMAT = 1
_SET_KEY = re.compile(r"([A-Za-z0-9.-]+)/set-(\d{8})\.json")


@dataclass(frozen=True, kw_only=True)
class CheckpointFile:
    """One file of a set."""

    path: str  # below the checkpoint folder, with `/`
    size_bytes: int
    sha256: str  # hexadecimal
    key: str  # key of the object with the content, below the prefix of CheckpointConfig.S3Uri
    mode: int = 0o644  # permission bits
    modified_ns: int = 0  # st_mtime_ns; restored, since some scripts load the newest file
    evidence: str = ""  # value of `checkpoint_evidence.Evidence`
    rested_s: float = 0.0  # seconds without changes, if this time is the only evidence


@dataclass(frozen=True, kw_only=True)
class CheckpointSet:
    """All files of one host's checkpoint folder at one moment."""

    host: str  # algo-1
    number: int  # grows by one with every set of the host under this prefix, whichever job wrote it
    job_arn: str
    attempt: int
    taken_at: datetime  # when the folder was read; no file of the set changed from then until all of them were stored
    files: tuple[CheckpointFile, ...]
    folders: tuple[str, ...] = ()  # empty folders
    links: Mapping[str, str] | None = None  # path -> target of symbolic links to targets inside the folder
    gone: tuple[str, ...] = ()  # paths below the prefix that were deleted in the folder: not restored
    left_out: tuple[str, ...] | None = None  # files left out, see `may_lack`; None in sets of earlier releases
    step_counts: StepCounts | None = None  # of the debugger when the newest file was written; None if unknown
    format: int = FORMAT

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def evidence_counts(self) -> dict[str, int]:
        """Value of Evidence -> number of files, or of names that the set may lack, with this evidence."""
        left_out = (Evidence.LEFT_OUT.value for _ in self.may_lack)
        return count_evidence([*(file.evidence for file in self.files), *left_out])

    @property
    def may_lack(self) -> tuple[str, ...]:
        """Return the files that were incomplete when the set was stored, and the folders that may have been incomplete.

        Folders have a slash at their end; the checkpoint folder itself is `.`. Earlier releases left out files that
        took too long to store, and their manifests do not name these files.
        """
        if self.left_out is not None:
            return self.left_out
        return tuple(sorted({rest_of_group(path.partition("/")[0] if "/" in path else "") for path in self._paths}))

    @property
    def _paths(self) -> list[str]:
        return [file.path for file in self.files]

    @property
    def least_rest_s(self) -> float:
        """Shortest time without changes, in seconds, of the files without other evidence; 0 without such files."""
        return min((file.rested_s for file in self.files if file.evidence == Evidence.RESTED), default=0.0)


def rest_of_group(name: str) -> str:
    """Return the `left_out` entry for a top-level folder that may lack files; for the top if `name` is empty."""
    return f"{name}/" if name else "."


def folded(key: str) -> str:
    """Return the key of CheckpointConfig.S3Uri with repeated slashes merged and leading slashes removed.

    SeaweedFS normalises keys in this way, and finds no object below a prefix with repeated slashes.
    """
    return re.sub("/+", "/", key).removeprefix("/")


def manifest_key(host: str, number: int) -> str:
    """Return a manifest's key below the prefix."""
    return f"{OWN_FOLDER}/{host}/set-{number:08d}.json"


@dataclass(frozen=True, kw_only=True)
class Announcement:
    """Announcement of the files that an unfinished set will put under PATH; void once this or a later set exists."""

    number: int  # number of the set
    paths: tuple[str, ...]  # paths at which no object existed before


def content_key(host: str, name: str) -> str:
    """Return the key, below the prefix, of content that has no path of its own; `name` is unique for the host."""
    return f"{OWN_FOLDER}/{host}/files/{name}"


def announcement_key(host: str) -> str:
    """Return the key of a host's announcement, below the prefix."""
    return f"{OWN_FOLDER}/{host}/announced.json"


def read_manifest_key(key: str) -> tuple[str, int] | None:
    """Return host and number of a manifest's key below the prefix; None for any other key."""
    match = _SET_KEY.fullmatch(key.removeprefix(f"{OWN_FOLDER}/")) if key.startswith(f"{OWN_FOLDER}/") else None
    return (match[1], int(match[2])) if match else None


def write_manifest(checkpoints: CheckpointSet) -> bytes:
    """Return a manifest's bytes."""
    content = to_plain(checkpoints)
    return json.dumps({"sha256": _digest(content), "set": content}, indent=1).encode()


def read_manifest(data: bytes) -> CheckpointSet:
    """Parse a manifest and return its set.

    Raises: ContractError for a manifest that was truncated or changed, or that a newer release wrote.
    """
    try:
        document = json.loads(data)
        content, digest = document["set"], document["sha256"]
        own_digest = _digest(content)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        shown = f"{type(error).__name__} {error}"[:200]
        raise ContractError(f"this is no manifest of checkpoints ({len(data)} bytes): {shown}") from error
    if digest != own_digest:
        raise ContractError("the manifest of checkpoints does not match its own SHA-256: it was changed or cut short")
    written_as = content.get("format", 0) if isinstance(content, dict) else 0
    if isinstance(written_as, int) and written_as > FORMAT:
        raise ContractError(
            f"the manifest of checkpoints has format {written_as}, this release knows up to {FORMAT}: upgrade"
        )
    return from_plain(CheckpointSet, content)


def write_announcement(announcement: Announcement) -> bytes:
    """Return an announcement's bytes."""
    return json.dumps(to_plain(announcement)).encode()


def read_announcement(data: bytes) -> Announcement:
    """Return the announcement that a document holds. Raises: ContractError for any other document."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"this is no announcement of checkpoints ({len(data)} bytes): {error}") from error
    return from_plain(Announcement, document)


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
