"""Encoding of ballots and messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clary.train._native.interface import Dtype
from clary.train.horovod.ballots import News, decode_news, encode_news, read_ballot, write_ballot
from clary.train.horovod.requests import Description, Reduction, Verb

DESCRIPTIONS = st.builds(
    Description,
    st.sampled_from(Verb),
    st.sampled_from(Dtype),
    st.lists(st.integers(0, 1 << 40), max_size=4).map(tuple),
    st.sampled_from(Reduction),
    st.integers(0, 9),
    st.text(max_size=5),
    st.integers(0, 9),
    st.sampled_from(["cpu", "gpu"]),
    st.lists(st.integers(0, 99), max_size=3).map(tuple),
)
NEWS = st.builds(
    News,
    st.booleans(),
    st.lists(st.tuples(st.text(max_size=9), st.booleans(), DESCRIPTIONS), max_size=3).map(tuple),
    st.lists(st.text(max_size=9), max_size=2).map(tuple),
)


def combine(*ballots: bytearray) -> bytes:
    combined = bytes([255] * len(ballots[0]))
    for ballot in ballots:
        combined = bytes(a & b for a, b in zip(combined, ballot, strict=True))
    return combined


@given(NEWS)
def test_news_are_decoded_unchanged(news):
    assert decode_news(encode_news(news)) == news


@given(st.lists(st.integers(0, 2**70 - 1), min_size=1, max_size=4))
def test_masks_are_combined_by_and(masks):
    expected = masks[0]
    for mask in masks[1:]:
        expected &= mask
    outcome = read_ballot(combine(*(write_ballot(b"", mask, 70) for mask in masks)))
    assert outcome.ready_mask == expected
    assert (outcome.has_news, outcome.is_same) == (False, True)


@given(st.lists(st.sampled_from([b"", b"one", b"two"]), min_size=1, max_size=5))
def test_equal_news_are_recognised_as_equal(messages):
    outcome = read_ballot(combine(*(write_ballot(message, 0, 3) for message in messages)))
    assert outcome.has_news == any(messages)
    assert outcome.is_same == (len(set(messages)) == 1)
