"""Thinning of pictures: the first, the last and evenly spaced pictures are kept, however often a tag is thinned."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.contract.training_values import FindingKind
from clary.control.jobs import kept_pictures
from clary.control.jobs.kept_pictures import LEAST_OF_TAG, MOST_OF_TAG, TagSize, surplus, tags_to_thin


def stays(steps, most):
    gone = set(surplus(steps, most))
    return [step for place, step in enumerate(steps) if place not in gone]


def size(num_kept, kept_bytes=0, kind=FindingKind.IMAGE, tag="t"):
    return TagSize(kind=kind, tag=tag, num_kept=num_kept, kept_bytes=kept_bytes)


def test_few_pictures_are_all_kept():
    assert surplus([], 5) == []
    assert surplus([1], 5) == []
    assert surplus([1, 2, 3], 5) == []
    assert stays([1, 2, 3, 4], 0) == [1, 4], "the first and the last in any case"


def test_evenly_spaced_steps_stay_evenly_spaced():
    assert stays(list(range(9)), 5) == [0, 2, 4, 6, 8]


def test_spacing_is_by_step_and_not_by_the_number_of_pictures():
    crowded = [0, 1, 2, 3, 4, 5, 6, 50, 100]
    assert stays(crowded, 4) == [0, 6, 50, 100]


def test_pictures_of_the_same_step_are_spaced_by_their_order():
    gone = surplus([0] * 9, 5)
    assert [place for place in range(9) if place not in gone] == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("most", [4, 20, 100])
def test_a_row_that_grows_and_is_thinned_repeatedly_stays_even(most):
    kept = []
    for step in range(0, 20_000, 7):
        kept.append(step)
        if len(kept) > most + most // 4:
            kept = stays(kept, most)
            gaps = [right - left for left, right in itertools.pairwise(kept)]
            assert len(kept) == most
            assert (kept[0], kept[-1]) == (0, step)
            assert max(gaps) <= 2 * step / (most - 1) + 7


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=80), st.integers(-3, 90))
def test_as_many_pictures_as_allowed_are_kept_and_both_ends_among_them(steps, most):
    steps = sorted(steps)
    found = stays(steps, most)
    assert len(found) == min(len(steps), max(most, LEAST_OF_TAG))
    assert found[:1] + found[-1:] == steps[:1] + steps[-1:]


def test_a_tag_is_thinned_when_it_exceeds_its_limit_by_a_quarter():
    most = MOST_OF_TAG[FindingKind.IMAGE]
    assert tags_to_thin([size(most + most // 4)]) == []
    many = size(most + most // 4 + 1)
    assert tags_to_thin([size(1), many]) == [(many, most)]
    assert tags_to_thin([size(most + most // 4 + 1, kind=FindingKind.HISTOGRAM)]) == [], "of which more stay"


def test_a_job_with_too_many_bytes_thins_its_large_tags(monkeypatch):
    monkeypatch.setattr(kept_pictures, "MAX_JOB_BYTES", 10_000)
    small, large, huge = size(40, 400, tag="a"), size(40, 8_000, tag="b"), size(4, 90_000, tag="c")
    assert tags_to_thin([small, large]) == []
    assert tags_to_thin([small, large, huge]) == [(large, 16), (huge, LEAST_OF_TAG)]


def test_only_the_fullest_tags_are_thinned_in_one_pass(monkeypatch):
    monkeypatch.setattr(kept_pictures, "AT_ONCE", 2)
    tags = [size(num_kept, tag=str(num_kept)) for num_kept in (100, 900, 10, 300)]
    assert [tag.tag for tag, _ in tags_to_thin(tags)] == ["900", "300"]
