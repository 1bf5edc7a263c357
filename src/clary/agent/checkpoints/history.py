"""A host's knowledge of its S3 prefix when the mirror starts: the result of a restore."""

from __future__ import annotations

from dataclasses import dataclass, field

from clary.agent.checkpoints.scanning import Snapshot
from clary.contract.checkpoint_sets import CheckpointSet


@dataclass(frozen=True, kw_only=True)
class History:
    """The sets and objects below the prefix, and the files restored into the folder."""

    last: CheckpointSet | None = None  # this host's set that was restored
    numbers: frozenset[int] = frozenset()  # numbers of this host's manifests, also of damaged ones
    standing: frozenset[str] = frozenset()  # plain paths that have an object
    contents: frozenset[str] = frozenset()  # keys of this host's content that has no plain path
    announced: frozenset[str] = frozenset()  # pieces of sets that were never finished; they are not restored
    inherited: Snapshot = field(default_factory=Snapshot)  # restored files that do not come from this host's own set
    of_others: frozenset[str] = frozenset()  # paths of other hosts' sets
    baseline: Snapshot = field(default_factory=Snapshot)  # content of the folder after the restore


@dataclass(frozen=True, kw_only=True)
class Writer:
    """The writer of sets: its host, job and attempt."""

    host: str
    is_first: bool  # whether the host has the lowest number: only that host writes to the paths that users read
    others: tuple[str, ...]  # the job's other hosts
    job_arn: str
    attempt: int
