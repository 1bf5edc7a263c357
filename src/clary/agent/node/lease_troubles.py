"""Leases whose files this machine refuses to read or to write: since when, and why.

Where: `lease_table` notes each refusal. A lease that cannot be read stays what it was: it is neither started again nor
reported as gone, because its files may say that its processes run. A lease whose end cannot be written is gone. Other
leases are not affected.
"""

from __future__ import annotations

import time

from clary.agent.node.daemon_log import say

LASTING_S = 60.0  # refusals without a success for this long do not pass: the lease can be ended without its files


class LeaseTroubles:
    """Refusals by lease, from the first until the files could be used again."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}
        self._words: dict[str, str] = {}

    def note(self, lease: str, error: OSError) -> None:
        """Note a refusal; log it if it is a new one."""
        self._since_s.setdefault(lease, time.monotonic())
        words = f"its files cannot be used: {error}"
        if self._words.get(lease) != words:
            say(f"{lease}: {words}; it is tried again")
        self._words[lease] = words

    def clear(self, lease: str) -> None:
        """Forget the refusals of a lease whose files could be used, or that is gone."""
        if self._since_s.pop(lease, None) is not None:
            say(f"{lease}: its files can be used again, or are gone")
        self._words.pop(lease, None)

    def age_s(self, lease: str) -> float:
        """Return the seconds since the first refusal; 0 without a refusal."""
        since_s = self._since_s.get(lease)
        return 0.0 if since_s is None else time.monotonic() - since_s

    def is_lasting(self, lease: str) -> bool:
        """Whether the files of a lease were refused for too long."""
        return self.age_s(lease) > LASTING_S

    def why(self, lease: str) -> str:
        """Return the last refusal in words; empty without one."""
        return self._words.get(lease, "")
