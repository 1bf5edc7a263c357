"""Rate limit on a host's output in the log: excess lines are dropped, counted and reported.

Where: `log_intake` checks every line that a process prints; the agent's own sentences are exempt. Dropping is the only
response to a flood that neither slows down the program nor fills the disk and the service's store.
"""

from __future__ import annotations

from clary.base.token_bucket import TokenBucket
from clary.contract.launch_plan import LogRules

BURST_S = 10.0  # burst: as many lines as the limits allow in this many seconds may arrive at once
NOTICE_INTERVAL_S = 1.0


class LogLimit:
    """Decides line by line; not thread-safe.

    Args:
        rules: limits on lines and bytes per second; 0: no limit.
        now_s: monotonic time.
    """

    def __init__(self, rules: LogRules, *, now_s: float) -> None:
        self.num_dropped = 0  # total number of dropped lines
        self._rules = rules
        self._lines = _bucket(rules.max_lines_per_s, now_s)
        self._bytes = _bucket(rules.max_bytes_per_s, now_s)
        self._dropped_lines = 0  # dropped lines since the last notice
        self._dropped_bytes = 0
        self._broken: set[str] = set()  # limits exceeded since the last notice
        self._noticed_at_s = now_s - NOTICE_INTERVAL_S

    def admit(self, lines: list[str], now_s: float) -> list[str]:
        """Return the lines that may enter the log, in order; count other lines as dropped."""
        if self._lines is None and self._bytes is None:
            return lines
        sizes = [_size_bytes(line) for line in lines]
        if not self._broken_bounds(len(lines), sum(sizes), now_s):  # the usual case
            self._take(len(lines), sum(sizes))
            return lines
        return [line for line, size_bytes in zip(lines, sizes, strict=True) if self._admit_one(size_bytes, now_s)]

    def notice(self, now_s: float, *, is_last: bool = False) -> str | None:
        """Return a sentence about lines dropped since the last sentence, at most once per second, or None.

        Args:
            now_s: monotonic time.
            is_last: whether no output follows, so that the sentence must not be delayed.
        """
        if not self._dropped_lines or (now_s - self._noticed_at_s < NOTICE_INTERVAL_S and not is_last):
            return None
        bounds = " and ".join(sorted(self._broken))
        sentence = f"{self._dropped_lines} lines ({self._dropped_bytes} bytes) were dropped here: more than {bounds}"
        self._dropped_lines = self._dropped_bytes = 0
        self._broken.clear()
        self._noticed_at_s = now_s
        return sentence

    def _admit_one(self, size_bytes: int, now_s: float) -> bool:
        broken = self._broken_bounds(1, size_bytes, now_s, may_owe=True)
        if not broken:
            self._take(1, size_bytes)
            return True
        self.num_dropped += 1
        self._dropped_lines += 1
        self._dropped_bytes += size_bytes
        self._broken.update(broken)
        return False

    def _broken_bounds(self, num_lines: int, size_bytes: int, now_s: float, *, may_owe: bool = False) -> list[str]:
        """Return phrases about the limits that are currently exceeded."""
        broken = []
        if self._lines is not None and not self._lines.has(num_lines, now_s, may_owe=may_owe):
            broken.append(f"{self._rules.max_lines_per_s} lines/s (setting log_max_lines_per_s)")
        if self._bytes is not None and not self._bytes.has(size_bytes, now_s, may_owe=may_owe):
            broken.append(f"{self._rules.max_bytes_per_s} bytes/s (setting log_max_bytes_per_s)")
        return broken

    def _take(self, num_lines: int, size_bytes: int) -> None:
        if self._lines is not None:
            self._lines.take(num_lines)
        if self._bytes is not None:
            self._bytes.take(size_bytes)


def _bucket(rate_per_s: int, now_s: float) -> TokenBucket | None:
    if not rate_per_s:
        return None
    return TokenBucket(rate_per_s=rate_per_s, capacity=rate_per_s * BURST_S, now_s=now_s)


def _size_bytes(line: str) -> int:
    return len(line) if line.isascii() else len(line.encode("utf-8", "backslashreplace"))
