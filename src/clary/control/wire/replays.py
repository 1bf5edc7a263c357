"""Recently used signatures, so that nobody can send a recorded request again.

Where: `signatures` calls it for every request that changes something. A signature is valid for the clock skew before
and after its time, and need not be remembered longer.

[Note: floor] Memory is bounded. When it is full the oldest signing times are forgotten, and from then on requests
signed at those times are refused as if they had been seen: a forgotten request cannot be replayed.

[Note: when it is forgotten] A signature is forgotten twice the skew after it was seen, by monotonic time: setting the
clock forward and back makes no recorded request acceptable.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from threading import Lock

from clary.base.clock import Clock
from clary.control.wire.replay_journal import KEPT_BYTES, ReplayJournal

BUCKET_S = 5
MAX_SIGNATURES = 500_000  # about 60 MB; five minutes at 1,600 changes per second


class ReplayGuard:
    """Remembers signatures by the time that they were made.

    Args:
        skew_s: a signature is valid for this number of seconds before and after its signing time.
        max_signatures: maximum number of signatures that are remembered at once.
        journal: keeps signatures over restarts of the service; without it, they are forgotten at a restart.
        now_s: monotonic time at which the journal's signatures count as seen.
    """

    def __init__(
        self,
        *,
        skew_s: float,
        max_signatures: int = MAX_SIGNATURES,
        journal: ReplayJournal | None = None,
        now_s: float = 0.0,
    ) -> None:
        self._skew_s = skew_s
        self._max_signatures = max_signatures
        self._buckets: dict[int, set[bytes]] = {}
        self._newest_s: dict[int, float] = {}  # bucket -> time of its last addition, monotonic
        self._count = 0
        self._floor = 0  # signing times in lower buckets are refused
        self._lock = Lock()
        self._journal = journal
        # Signatures that were used before the start have expired by then, whatever the clock showed at the start.
        self._doubtful_until_s = now_s + 2 * skew_s + BUCKET_S
        for second, kept in journal.seen if journal is not None else ():
            self._add(second // BUCKET_S, kept, now_s=now_s)

    def is_new(self, signature: str, *, signed_at: datetime, clock: Clock) -> bool:
        """Remember a signature; return False if it was seen before, or if its signing time is refused.

        The journal contains the signature before this method returns.

        Args:
            signature: verified signature, in hexadecimal.
            signed_at: signing time, aware.
            clock: its monotonic time decides when signatures are forgotten; the journal uses its time of day.
        """
        kept, bucket = _kept(signature), _bucket_of(signed_at)
        now_s = clock.monotonic()
        with self._lock:
            self._forget(before_s=now_s - 2 * self._skew_s - BUCKET_S)
            if bucket < self._floor:
                return False
            trusted_from = self._journal.trusted_from if self._journal is not None else None
            if trusted_from is not None and signed_at < trusted_from and now_s < self._doubtful_until_s:
                return False
            if not self._add(bucket, kept, now_s=now_s):
                return False
            if self._journal is not None:
                self._journal.note(int(signed_at.timestamp()), kept, now=clock.now())
            return True

    def give_back(self, signature: str, *, signed_at: datetime) -> None:
        """Forget the signature of a request that changed nothing: its client may send the same request again."""
        kept, bucket = _kept(signature), _bucket_of(signed_at)
        with self._lock:
            if kept in self._buckets.get(bucket, ()):
                self._buckets[bucket].remove(kept)
                self._count -= 1

    def _add(self, bucket: int, kept: bytes, *, now_s: float) -> bool:
        seen = self._buckets.setdefault(bucket, set())
        if kept in seen:
            return False
        seen.add(kept)
        self._newest_s[bucket] = now_s
        self._count += 1
        while self._count > self._max_signatures:
            self._floor = min(self._buckets) + 1
            self._drop([bucket for bucket in self._buckets if bucket < self._floor])
        return True

    def __len__(self) -> int:
        return self._count

    def _forget(self, *, before_s: float) -> None:
        self._drop([bucket for bucket, newest_s in self._newest_s.items() if newest_s < before_s])

    def _drop(self, buckets: Sequence[int]) -> None:
        for bucket in buckets:
            self._count -= len(self._buckets.pop(bucket))
            del self._newest_s[bucket]


def _kept(signature: str) -> bytes:
    return bytes.fromhex(signature)[:KEPT_BYTES]


def _bucket_of(at: datetime) -> int:
    return int(at.timestamp()) // BUCKET_S
