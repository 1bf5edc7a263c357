"""Grants of an attempt's key as plain data, and the checks, decisions and refusals made with them.

Where: `jobs.job_grants` derives grants from a job's request; `s3_rules`, `api_rules` and `tracking_rules` decide by
them. The owner's key has no `Grants` and permits everything. Pure.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass, field

SETTING = "job_api_access"
OWN, FULL = "own", "full"


@dataclass(frozen=True)
class Place:
    """Objects of a bucket: one key and all keys below it (`key/...`), or every key with a prefix."""

    bucket: str
    key: str = ""  # without a trailing slash; empty for the whole bucket
    is_prefix: bool = False

    def covers(self, bucket: str, key: str) -> bool:
        """Whether an object belongs to the place."""
        if bucket != self.bucket:
            return False
        if self.is_prefix or not self.key:
            return key.startswith(self.key)
        return key == self.key or key.startswith(f"{self.key}/")

    def covers_all_below(self, bucket: str, prefix: str) -> bool:
        """Whether every key that begins with a prefix belongs to the place."""
        if bucket != self.bucket:
            return False
        return prefix.startswith(self.key if self.is_prefix or not self.key else f"{self.key}/")

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}{'*' if self.is_prefix else ''}"


@dataclass(frozen=True, kw_only=True)
class Grants:
    """A job's identity, and the S3 places and experiment records that its request names."""

    job_name: str
    job_arn: str
    job_id: str  # the same for all attempts of the job; another job of the same name has another id
    reads: tuple[Place, ...] = ()
    writes: tuple[Place, ...] = ()  # these places may be read as well
    # (bucket, key) of the manifests of channels. The job may not write them, wherever they lie: an agent reads the
    # objects that a manifest names, with rights that the job lacks.
    manifests: frozenset[tuple[str, str]] = frozenset()
    experiments: frozenset[str] = frozenset()  # names in lower case, like trials and components
    trials: frozenset[str] = frozenset()
    components: frozenset[str] = frozenset()

    def may_read(self, bucket: str, key: str) -> bool:
        """Whether an object may be read."""
        return any(place.covers(bucket, key) for place in (*self.reads, *self.writes))

    def may_write(self, bucket: str, key: str) -> bool:
        """Whether an object may be written and removed."""
        return not self.is_manifest(bucket, key) and any(place.covers(bucket, key) for place in self.writes)

    def is_manifest(self, bucket: str, key: str) -> bool:
        """Whether a key names a channel's manifest, or a folder above one, in any spelling that the store resolves."""
        place = _resolved(key)
        return any(
            bucket == other and (place == (kept := _resolved(manifest)) or kept.startswith(f"{place}/"))
            for other, manifest in self.manifests
        )

    def may_list(self, bucket: str, prefix: str) -> bool:
        """Whether every key that begins with a prefix may be seen."""
        return any(place.covers_all_below(bucket, prefix) for place in (*self.reads, *self.writes))

    def knows_bucket(self, bucket: str) -> bool:
        """Whether any key of a bucket may be read."""
        return any(place.bucket == bucket for place in (*self.reads, *self.writes))


def _resolved(key: str) -> str:
    """Return a key as a path, without repeated slashes and parts that are dots."""
    return posixpath.normpath(f"/{key}").lstrip("/")


@dataclass(frozen=True)
class Decision:
    """Whether a request is allowed, and if not, why."""

    is_allowed: bool
    reason: str = ""
    # (kind, name) of experiment records; the request is allowed if each was made by this job, or does not exist.
    if_made: tuple[tuple[str, str], ...] = ()
    # Whether the listing is filtered to the keys that the caller may read.
    is_filtered: bool = False


ALLOWED = Decision(True)


@dataclass(frozen=True)
class Refused:
    """Facts of one refusal: the caller, the action, the resource, and the resources that the caller's key permits."""

    grants: Grants
    action: str  # sagemaker:CreateTrainingJob
    resource: str
    expected: str = "its own job only"

    def decision(self) -> Decision:
        """Return the refusal as a decision."""
        return Decision(False, self.text())

    def text(self) -> str:
        """Return the sentence that the client prints."""
        return (
            f"User: job {self.grants.job_name} (by its own key) is not authorized to perform: {self.action} on "
            f"resource: {self.resource[:300]}. The key of a job permits {self.expected}; with setting "
            f'{SETTING} = "{FULL}" the owner of the service permits everything to all jobs'
        )


def all_of(decisions: Iterable[Decision]) -> Decision:
    """Combine several decisions: the first refusal, else a permission with the `if_made` records of all decisions."""
    found = list(decisions)
    for decision in found:
        if not decision.is_allowed:
            return decision
    return Decision(True, if_made=tuple(record for decision in found for record in decision.if_made))


@dataclass(frozen=True, kw_only=True)
class S3Asked:
    """An S3 request as input of the rules, with parsed copy sources and parsed keys to delete."""

    method: str
    bucket: str
    key: str
    query: tuple[tuple[str, str], ...] = ()
    copy_sources: tuple[tuple[str, str], ...] = ()
    deleted_keys: tuple[str, ...] | None = None  # keys of DeleteObjects; None until its body is read
    parameters: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", frozenset(name for name, _ in self.query))

    def values(self, name: str) -> list[str]:
        """Return every value of a parameter."""
        return [value for parameter, value in self.query if parameter == name]
