"""Findings that the service has not taken yet: numbered, bounded, the oldest given up first.

Where: `training_watch` appends and takes batches, both in its one thread.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from clary.contract.training_values import MAX_DATA_CHARACTERS, MAX_FINDINGS, Finding, TrainingBatch, TrainingProgress

MAX_BYTES = 16 * 1024 * 1024
MAX_NAMES = 5_000  # metrics and tags of one host; more are left out
BURST = 20_000.0  # findings of one name that are taken at once
PER_S = 20.0  # of one name in the long run; a table in a database is no place for more
_FINDING_BYTES = 300  # of one besides its data
_MAX_HELD_DATA_BYTES = 64 * 1024 * 1024  # of pictures of one host in all


@dataclass
class _Allowance:
    """A token bucket."""

    left: float
    at_s: float


class FindingStore:
    """The findings of one host of one attempt; used by one thread."""

    def __init__(self, *, max_bytes: int = MAX_BYTES, burst: float = BURST, per_s: float = PER_S) -> None:
        self._max_bytes = max_bytes
        self._burst = burst
        self._per_s = per_s
        self._findings: deque[Finding] = deque()
        self._size_bytes = 0
        self._data_bytes = 0
        self._first = 0
        self._allowances: dict[str, _Allowance] = {}
        self.num_dropped = 0  # given up: they came too fast, or stood in the way of newer ones
        self.num_unnamed = 0  # left out: there were too many names

    @property
    def first(self) -> int:
        """Number of the oldest finding that is kept."""
        return self._first

    @property
    def end(self) -> int:
        """Number of the finding that comes next."""
        return self._first + len(self._findings)

    def append(self, finding: Finding, *, now_s: float) -> None:
        """Take a finding, unless there are too many of its name."""
        if not self._may_come(finding.name, now_s):
            return
        if finding.data:
            self._data_bytes += len(finding.data)
            if self._data_bytes > _MAX_HELD_DATA_BYTES:
                self.num_dropped += 1
                return
        self._findings.append(finding)
        self._size_bytes += _size_of(finding)
        while self._size_bytes > self._max_bytes:
            self._forget()
            self.num_dropped += 1

    def batch(self, progress: TrainingProgress | None) -> TrainingBatch:
        """Return the oldest findings, as many as one batch may hold."""
        chosen: list[Finding] = []
        num_characters = 0
        for finding in self._findings:
            num_characters += len(finding.data)
            if len(chosen) == MAX_FINDINGS or (chosen and num_characters > MAX_DATA_CHARACTERS):
                break
            chosen.append(finding)
        return TrainingBatch(first=self._first, findings=tuple(chosen), progress=progress, num_dropped=self.num_dropped)

    def let_go(self, end: int) -> None:
        """Forget findings below a number, which the service has."""
        while self._findings and self._first < end:
            self._forget()

    def give_up(self, end: int) -> None:
        """Forget findings below a number, which the service will not have."""
        self.num_dropped += max(0, min(end, self.end) - self._first)
        self.let_go(end)

    def _may_come(self, name: str, now_s: float) -> bool:
        allowance = self._allowances.get(name)
        if allowance is None:
            if len(self._allowances) >= MAX_NAMES:
                self.num_unnamed += 1
                return False
            allowance = self._allowances[name] = _Allowance(self._burst, now_s)
        allowance.left = min(self._burst, allowance.left + (now_s - allowance.at_s) * self._per_s)
        allowance.at_s = now_s
        if allowance.left < 1:
            self.num_dropped += 1
            return False
        allowance.left -= 1
        return True

    def _forget(self) -> None:
        self._size_bytes -= _size_of(self._findings.popleft())
        self._first += 1


def _size_of(finding: Finding) -> int:
    return _FINDING_BYTES + len(finding.data)
