"""A token bucket never passes more than its burst and rate allow, and debts are paid back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clary.base.token_bucket import TokenBucket

# Binary fractions, so that sums are exact.
steps = st.lists(st.tuples(st.integers(0, 64).map(lambda eighths: eighths / 8), st.integers(0, 200)), max_size=60)


@given(steps, st.integers(1, 50), st.integers(1, 100))
def test_no_stretch_of_time_lets_through_more_than_burst_and_rate(moves, rate, capacity) -> None:
    now_s = 0.0
    bucket = TokenBucket(rate_per_s=rate, capacity=capacity, now_s=now_s)
    passed: list[tuple[float, int]] = []
    for elapsed_s, amount in moves:
        now_s += elapsed_s
        if bucket.admit(amount, now_s):
            passed.append((now_s, amount))
    for first, (begin_s, _) in enumerate(passed):
        total = 0
        for at_s, amount in passed[first:]:
            total += amount
            assert total <= capacity + rate * (at_s - begin_s)


@given(st.integers(1, 50), st.integers(1, 100), st.integers(1, 400))
def test_an_amount_beyond_the_capacity_passes_a_full_bucket_and_is_paid_back(rate, capacity, surplus) -> None:
    bucket = TokenBucket(rate_per_s=rate, capacity=capacity, now_s=0.0)
    amount = capacity + surplus
    assert not bucket.has(amount, 0.0)
    assert bucket.has(amount, 0.0, may_owe=True)
    bucket.take(amount)
    assert not bucket.has(1, surplus / rate)
    assert bucket.has(1, (surplus + 2) / rate)
