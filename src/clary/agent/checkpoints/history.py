"""A host's knowledge of its prefix when it begins to mirror: the outcome of a restore."""

from __future__ import annotations

from dataclasses import dataclass, field

from clary.agent.checkpoints.scanning import Snapshot
from clary.contract.checkpoint_sets import CheckpointSet


@dataclass(frozen=True, kw_only=True)
class History:
    """The sets and objects below the prefix, and the ones restored into the folder."""

    last: CheckpointSet | None = None  # this host's set that was restored
    numbers: frozenset[int] = frozenset()  # of this host's manifests, damaged ones included
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
    is_first: bool  # whether it has the lowest number: only this host writes to the paths that users read
    others: tuple[str, ...]  # the job's other hosts
    job_arn: str
    attempt: int
