"""Buckets are few and ordered, and no count is lost."""

from __future__ import annotations

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.agent.training.buckets import buckets_text
from clary.contract.training_values import MAX_BUCKETS


def kept(rows, **ends):
    return json.loads(buckets_text(rows, **ends), parse_constant=pytest.fail)


def test_few_buckets_are_unchanged_and_empty_buckets_are_removed():
    assert kept([(0.0, 1.0, 5.0), (1.0, 2.0, 0.0), (2.0, 4.0, 7.5)]) == [[0, 1, 5], [2, 4, 7.5]]
    assert kept([]) == []
    assert kept([(0.0, 1.0, 0.0)]) == []


def test_the_outermost_end_at_the_least_and_greatest_value():
    rows = [(-10.0, 0.0, 1.0), (0.0, 10.0, 2.0)]
    assert kept(rows, least=-0.5, greatest=3.25) == [[-0.5, 0, 1], [0, 3.25, 2]]
    assert kept(rows, least=5.0, greatest=-5.0) == [[-10, 0, 1], [0, 10, 2]], "ends that the buckets contradict"
    assert kept(rows, least=math.nan, greatest=math.nan) == [[-10, 0, 1], [0, 10, 2]]


def test_buckets_that_grow_from_zero_are_joined_near_it_and_stay_fine_where_they_are_wide():
    edges = [1e-12 * 1.1**place for place in range(400)]
    rows = [(left, right, 1.0) for left, right in itertools.pairwise(edges)]
    found = kept(rows)
    assert 10 < len(found) <= MAX_BUCKETS
    assert sum(row[2] for row in found) == len(rows)
    assert found[0][:1] + found[-1][1:2] == pytest.approx([edges[0], edges[-1]])
    assert found[-1][2] == 1, "the widest is none that had to be joined"


def test_counts_that_add_up_to_no_number_stay_json():
    found = kept([(float(place), float(place + 1), 1.7e308) for place in range(1000)])
    assert len(found) <= MAX_BUCKETS


def test_a_range_that_overflows_a_float_is_joined():
    rows = [((place - 170) * 1e306, (place - 169) * 1e306, 1.0) for place in range(340)]
    found = kept(rows)
    assert len(found) <= MAX_BUCKETS
    assert sum(row[2] for row in found) == 340


numbers = st.floats(allow_nan=True, allow_infinity=True)


@given(st.lists(st.tuples(numbers, numbers, numbers), max_size=300), numbers, numbers)
def test_hostile_rows_become_buckets_from_left_to_right(rows, least, greatest):
    found = kept(rows, least=least, greatest=greatest)
    assert len(found) <= MAX_BUCKETS
    assert all(left <= right and count > 0 for left, right, count in found)
    assert all(math.isfinite(number) for row in found for number in row)
    assert [row[0] for row in found] == sorted(row[0] for row in found)
