"""Findings that the service has not acknowledged yet; `outbox` describes how they are numbered and bounded.

Where: `training_watch` appends and takes batches, both in its one thread.
Pictures (histograms and images) have a limit of their own, so that they displace no scalar. A picture beyond the limit
waits, if `MAX_WAITING_BYTES` allow it, until it fits or a newer picture of its tag replaces it, so that the last
picture of a tag is sent.
"""

from __future__ import annotations

from clary.agent.outbox import Outbox
from clary.base.token_bucket import TokenBucket
from clary.contract.training_values import (
    MAX_DATA_CHARACTERS,
    MAX_FINDINGS,
    MAX_HISTOGRAM_TAGS,
    MAX_IMAGE_TAGS,
    Finding,
    FindingKind,
    TrainingBatch,
    TrainingProgress,
)

MAX_BYTES = 16 * 1024 * 1024
MAX_NAMES = 5_000  # metrics of one host; more are left out
BURST = 20_000.0  # findings of one name that are accepted at once
PER_S = 20.0  # findings of one name in the long run; the service's database is not made for more
PICTURE_BURST_BYTES = 64 * 1024 * 1024.0  # of pictures of one host that are accepted at once
PICTURE_BYTES_PER_S = 32 * 1024.0  # of pictures of one host in the long run; the service keeps some per tag
MAX_WAITING_BYTES = 4 * 1024 * 1024  # of waiting pictures
_FINDING_BYTES = 300  # memory of a finding besides its data
_MAX_TAGS = {FindingKind.HISTOGRAM: MAX_HISTOGRAM_TAGS, FindingKind.IMAGE: MAX_IMAGE_TAGS}


class FindingStore(Outbox[Finding]):
    """The findings of one host of one attempt; used by one thread.

    Attributes:
        num_dropped: number of findings that were given up or made room for newer findings, that arrived too fast, or
            that are pictures replaced while waiting or without room to wait.
        num_unnamed: number of findings left out because there were too many names.
    """

    def __init__(
        self,
        *,
        max_bytes: int = MAX_BYTES,
        burst: float = BURST,
        per_s: float = PER_S,
        picture_burst_bytes: float = PICTURE_BURST_BYTES,
        picture_bytes_per_s: float = PICTURE_BYTES_PER_S,
    ) -> None:
        super().__init__(size_of=_size_of, max_bytes=max_bytes)
        self._burst = burst
        self._per_s = per_s
        self._picture_burst_bytes = picture_burst_bytes
        self._picture_bytes_per_s = picture_bytes_per_s
        self._allowances: dict[str, TokenBucket] = {}
        self._pictures: TokenBucket | None = None  # set with the first picture
        self._tags: dict[FindingKind, set[str]] = {kind: set() for kind in _MAX_TAGS}
        self._waiting: dict[tuple[FindingKind, str], Finding] = {}  # the newest of its tag
        self._waiting_bytes = 0
        self.num_unnamed = 0

    def offer(self, finding: Finding, *, now_s: float) -> None:
        """Append a finding, unless its name exceeds a limit; a picture may have to wait."""
        if finding.kind is not FindingKind.SCALAR:
            self._append_picture(finding, now_s)
        elif self._may_come(finding.name, now_s):
            self.append(finding)

    def admit_waiting(self, *, now_s: float, is_last: bool) -> None:
        """Append the waiting pictures that fit now; with `is_last`, all pictures that displace no other finding."""
        for tag, finding in list(self._waiting.items()):
            has_place = is_last and self._size_bytes + _size_of(finding) <= self._max_bytes
            if has_place or self._has_room(finding, now_s):
                del self._waiting[tag]
                self._waiting_bytes -= _size_of(finding)
                self.append(finding)

    def batch(self, progress: TrainingProgress | None) -> TrainingBatch:
        """Return the oldest findings, as many as one batch may hold."""
        found = self.oldest(
            max_items=MAX_FINDINGS, weight_of=lambda finding: len(finding.data), max_weight=MAX_DATA_CHARACTERS
        )
        return TrainingBatch(first=found.first, findings=found.items, progress=progress, num_dropped=found.num_dropped)

    def _may_come(self, name: str, now_s: float) -> bool:
        allowance = self._allowances.get(name)
        if allowance is None:
            if len(self._allowances) >= MAX_NAMES:
                self.num_unnamed += 1
                return False
            allowance = TokenBucket(rate_per_s=self._per_s, capacity=self._burst, now_s=now_s)
            self._allowances[name] = allowance
        if not allowance.admit(1, now_s):
            self.num_dropped += 1
            return False
        return True

    def _append_picture(self, finding: Finding, now_s: float) -> None:
        known, tag = self._tags[finding.kind], (finding.kind, finding.name)
        if finding.name not in known and len(known) >= _MAX_TAGS[finding.kind]:
            self.num_unnamed += 1
            return
        known.add(finding.name)
        older = self._waiting.pop(tag, None)
        if older is not None:
            self._waiting_bytes -= _size_of(older)
            self.num_dropped += 1
        if self._has_room(finding, now_s):
            self.append(finding)
        elif self._waiting_bytes + _size_of(finding) <= MAX_WAITING_BYTES:
            self._waiting[tag] = finding
            self._waiting_bytes += _size_of(finding)
        else:
            self.num_dropped += 1

    def _has_room(self, finding: Finding, now_s: float) -> bool:
        """Whether a picture may be appended now; takes its bytes from the token bucket."""
        if self._pictures is None:
            most, per_s = self._picture_burst_bytes, self._picture_bytes_per_s
            self._pictures = TokenBucket(rate_per_s=per_s, capacity=most, now_s=now_s)
        size_bytes = _size_of(finding)
        return self._size_bytes + size_bytes <= self._max_bytes // 2 and self._pictures.admit(size_bytes, now_s)


def _size_of(finding: Finding) -> int:
    return _FINDING_BYTES + len(finding.data)
