"""A token bucket: bounds the amount that passes at once and the rate in the long run. Pure.

Where: an agent's `log.log_limit` has one for lines and one for bytes, `training.finding_store` one for each name and
for pictures; the service's `store.metric_values.metric_allowance` has one for each job.
"""

from __future__ import annotations


class TokenBucket:
    """Fills at a steady rate up to its capacity; each amount that passes is taken out. Not safe for several threads.

    Within any stretch of time no more than `capacity + rate_per_s * seconds` passes. An amount larger than `capacity`,
    which could never pass, may be let through a full bucket: it leaves a debt.

    Args:
        rate_per_s: amount that may pass per second in the long run; above 0.
        capacity: amount that may pass at once after a pause; above 0.
        now_s: monotonic time; the bucket begins full.
    """

    def __init__(self, *, rate_per_s: float, capacity: float, now_s: float) -> None:
        self._rate_per_s = rate_per_s
        self._capacity = capacity
        self._level = capacity
        self._filled_at_s = now_s

    def has(self, amount: float, now_s: float, *, may_owe: bool = False) -> bool:
        """Whether `amount` may pass now; takes nothing out.

        Args:
            amount: 0 or more.
            now_s: monotonic time.
            may_owe: whether an amount larger than the capacity passes a full bucket.
        """
        elapsed_s = now_s - self._filled_at_s
        if elapsed_s > 0:
            self._level = min(self._capacity, self._level + elapsed_s * self._rate_per_s)
            self._filled_at_s = now_s
        return self._level >= (min(amount, self._capacity) if may_owe else amount)

    def take(self, amount: float) -> None:
        """Take out an amount; call `has` before."""
        self._level -= amount

    def admit(self, amount: float, now_s: float) -> bool:
        """Take out `amount` if it may pass now; return whether it may."""
        may_pass = self.has(amount, now_s)
        if may_pass:
            self.take(amount)
        return may_pass
