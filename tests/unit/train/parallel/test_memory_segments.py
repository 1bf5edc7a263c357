"""Cuts of a sequence into segments that are recomputed together."""

import pytest

from clary.train.parallel.memory.segments import Owners, Segment, cut


def owners(*ranks: int | None) -> list[Owners]:
    return [Owners() if rank is None else Owners(frozenset({rank})) for rank in ranks]


def lengths(*ranks: int | None, strategy: str) -> list[int]:
    return [segment.stop - segment.start for segment in cut(owners(*ranks), strategy)]


def test_with_strategy_each_every_child_is_one_segment() -> None:
    assert cut(owners(0, 0, 1), "each") == [Segment(0, 1, 0), Segment(1, 2, 0), Segment(2, 3, 1)]


def test_contiguous_children_end_where_the_rank_changes() -> None:
    assert cut(owners(0, 0, 1, 1, 1, 0), "contiguous") == [Segment(0, 2, 0), Segment(2, 5, 1), Segment(5, 6, 0)]
    assert cut(owners(None, None), "contiguous") == [Segment(0, 2, None)]


def test_groups_end_at_a_change_of_ranks_and_at_the_end() -> None:
    assert lengths(*[None] * 7, strategy="group_3") == [3, 3, 1]
    assert lengths(0, 0, 0, 1, 1, strategy="group_2") == [2, 1, 2]
    assert lengths(0, 1, strategy="group_9") == [1, 1]


def test_a_child_on_several_ranks_is_a_separate_segment_without_checkpointing() -> None:
    split = Owners(frozenset({0, 1}))
    found = cut([*owners(0, 0), split, split, *owners(1)], "contiguous")
    assert found == [
        Segment(0, 2, 0),
        Segment(2, 3, None, is_checkpointed=False),
        Segment(3, 4, None, is_checkpointed=False),
        Segment(4, 5, 1),
    ]


@pytest.mark.parametrize("strategy", ["each", "contiguous", "group_1", "group_2", "group_5"])
def test_segments_cover_every_child_once_and_in_order(strategy: str) -> None:
    found = cut(owners(0, 0, 0, 1, 1, 2, 2, 2, 2, 0), strategy)
    assert [place for segment in found for place in range(segment.start, segment.stop)] == list(range(10))


@pytest.mark.parametrize("strategy", ["", "every", "group_0", "group_", "group_-1", "group_2x", None])
def test_unknown_strategies_are_refused(strategy: str) -> None:
    with pytest.raises(ValueError, match="expected each, contiguous or group_N"):
        cut([], strategy)
