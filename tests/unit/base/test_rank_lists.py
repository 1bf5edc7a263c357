"""Lists of ranks as short texts, and back."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.base.rank_lists import MAX_RANKS, rank_text, ranks_of, spans_of


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((), ""),
        ((3,), "3"),
        ((0, 1), "0,1"),
        (range(8), "0-7"),
        (range(0, 16, 2), "0-14:2"),
        ((0, 1, 2, 3, 9), "0-3,9"),
        ((1, 4, 6), "1,4,6"),
        ((7, 0, 0, 1, 2), "0-2,7"),
    ],
)
def test_evenly_spaced_ranks_are_one_span(ranks, text):
    assert rank_text(ranks) == text
    assert ranks_of(text) == tuple(sorted(set(ranks)))


@given(st.sets(st.integers(min_value=0, max_value=5000), max_size=60))
def test_ranks_survive_conversion_to_text_and_back(ranks):
    assert ranks_of(rank_text(ranks)) == tuple(sorted(ranks))


@pytest.mark.parametrize("text", ["x", "1-", "-1", "1,,2", "0-7:", "5:2", "1 2", "99999999999", f"0-{MAX_RANKS + 5}"])
def test_texts_of_another_form_name_no_ranks(text):
    assert ranks_of(text) == ()


def test_large_spans_are_neither_written_nor_read_rank_by_rank():
    began_s = time.process_time()
    for first in range(20_000):
        assert spans_of(rank_text(range(first, first + 60_000))) == (range(first, first + 60_000),)
    assert time.process_time() - began_s < 5
