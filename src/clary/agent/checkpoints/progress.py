"""Progress of the mirror, for the facts sent to the service and for the detection of stalls. Pure except for its clock.

The mirror has stalled if, for more than three intervals, files wait to be stored and the store accepts no data, or
every round fails. A file that the program is still writing is no stall; a large upload with progress is no stall
either.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from clary.agent.checkpoints.grouping import NOTHING, GroupContent
from clary.agent.checkpoints.sights import Sight
from clary.base.clock import Clock
from clary.contract.agent_protocol import CheckpointFacts
from clary.contract.checkpoint_sets import CheckpointSet

_STALL_INTERVALS = 3
MAX_MISSED = 20


@dataclass(frozen=True, kw_only=True)
class _Dirty:
    num_files: int = 0
    size_bytes: int = 0
    since_s: float | None = None


class Progress:
    """The mirror's facts; thread-safe.

    Args:
        facts: the facts at the start of the mirror.
        interval_s: between two rounds.
    """

    def __init__(self, facts: CheckpointFacts, *, interval_s: float, clock: Clock) -> None:
        self._lock = threading.Lock()
        self._facts = facts
        self._interval_s = interval_s
        self._clock = clock
        self._dirty = _Dirty()
        self._ready_since_s: float | None = None
        self._ready_at: datetime | None = None

    @property
    def facts(self) -> CheckpointFacts:
        """The facts at this moment."""
        with self._lock:
            lag_s = 0 if self._dirty.since_s is None else round(self._clock.monotonic() - self._dirty.since_s)
            return replace(
                self._facts,
                dirty_files=self._dirty.num_files,
                dirty_bytes=self._dirty.size_bytes,
                lag_s=max(0, lag_s),
                stalled_since=self._ready_at if self._is_stalled() else None,
            )

    def saw(self, sights: Mapping[str, Sight], taken: Mapping[str, GroupContent]) -> None:
        """Record the results of a look."""
        num_files = size_bytes = 0
        for name, sight in sights.items():
            known = taken.get(name, NOTHING).files
            changed = [facts for path, facts in sight.content.files.items() if known.get(path) != facts]
            num_files += len(changed)
            size_bytes += sum(facts.size_bytes for facts in changed)
        since_s = min((s.dirty_since_s for s in sights.values() if s.dirty_since_s is not None), default=None)
        with self._lock:
            self._dirty = _Dirty(num_files=num_files, size_bytes=size_bytes, since_s=since_s)
            if since_s is None:
                self._ready_since_s = self._ready_at = None

    def begins(self) -> None:
        """Record that there are files to store, or that the folder cannot be read."""
        with self._lock:
            if self._ready_since_s is None:
                self._ready_since_s, self._ready_at = self._clock.monotonic(), self._clock.now()

    def moves(self) -> None:
        """Record that the store has accepted data; after a failed round, only a successful round ends a stall."""
        with self._lock:
            if self._ready_since_s is not None and not self._facts.error:
                self._ready_since_s, self._ready_at = self._clock.monotonic(), self._clock.now()

    def went_well(self, newest: CheckpointSet | None, *, is_new: bool) -> None:
        """Record a round without an error."""
        with self._lock:
            self._ready_since_s = self._ready_at = None
            self._facts = replace(self._facts, error="")
        if is_new:
            self.committed(newest)

    def committed(self, newest: CheckpointSet | None) -> None:
        """Record a new set."""
        if newest is None:
            return
        with self._lock:
            self._ready_since_s = self._ready_at = None
            self._facts = replace(
                self._facts,
                set_number=newest.number,
                committed_at=self._clock.now(),
                num_files=len(newest.files),
                size_bytes=newest.size_bytes,
            )

    def failed(self, error: str) -> None:
        """Record a failed round."""
        with self._lock:
            self._facts = replace(self._facts, error=error)

    def missed(self, paths: tuple[str, ...], *, torn: tuple[str, ...] = (), size_bytes: int) -> None:
        """Record the files that the last flush did not store, and the torn files that it left out.

        Args:
            paths: files that are not stored, without torn files; the facts name `MAX_MISSED` of them.
            torn: files that were left out because they are not whole.
            size_bytes: of all `paths` together; a deleted file counts 0.
        """
        with self._lock:
            self._facts = replace(self._facts, missed=paths[:MAX_MISSED], torn=torn[:MAX_MISSED])
            self._dirty = replace(self._dirty, num_files=len(paths), size_bytes=size_bytes)

    def _is_stalled(self) -> bool:
        if self._ready_since_s is None:
            return False
        return self._clock.monotonic() - self._ready_since_s > _STALL_INTERVALS * self._interval_s
