"""Sets of time intervals compared with a count of every moment."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from clary.control.traces.intervals import total, union, within, without

PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda pair: tuple(sorted(pair))), max_size=12)


def moments(intervals):
    return {moment for begin, end in intervals for moment in range(begin, end)}


@given(PAIRS, PAIRS)
def test_union_and_difference_hold_exactly_the_right_moments(some, others):
    assert moments(union(some)) == moments(some)
    assert moments(without(union(some), union(others))) == moments(some) - moments(others)
    assert total(union(some)) == len(moments(some))


@given(PAIRS, st.integers(0, 40), st.integers(0, 40))
def test_intervals_are_cut_at_the_ends_of_a_window(some, begin, end):
    assert moments(within(some, begin, end)) == moments(some) & set(range(begin, end))


@given(PAIRS)
def test_intervals_of_a_union_are_sorted_and_do_not_touch(some):
    found = union(some)
    assert all(early[1] < late[0] for early, late in pairwise(found))
