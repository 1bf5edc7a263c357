"""Space in a file: taken extents do not overlap, returned extents are reused."""

import itertools
import random

import pytest

from clary.train.parallel.memory.extents import ALIGNMENT, Extents


def test_returned_space_is_reused_before_the_file_grows() -> None:
    extents = Extents()
    first, second, third = (extents.take(ALIGNMENT) for _ in range(3))
    extents.give_back(second)
    assert extents.take(ALIGNMENT) == second
    extents.give_back(first)
    extents.give_back(second)
    assert extents.take(2 * ALIGNMENT).offset == first.offset
    assert third.end == extents.end == 3 * ALIGNMENT


def test_sizes_are_rounded_up_to_pages() -> None:
    extents = Extents()
    assert extents.take(1).size == ALIGNMENT
    assert extents.take(ALIGNMENT + 1).size == 2 * ALIGNMENT


def test_free_space_at_the_end_is_extended_and_not_skipped() -> None:
    extents = Extents()
    extents.take(ALIGNMENT)
    last = extents.take(ALIGNMENT)
    extents.give_back(last)
    assert extents.take(3 * ALIGNMENT).offset == last.offset
    assert extents.end == 4 * ALIGNMENT


def test_extents_never_overlap_and_no_space_is_lost_in_any_order() -> None:
    draw = random.Random(5)
    extents, held = Extents(), []
    for _ in range(3000):
        if held and draw.random() < 0.5:
            extents.give_back(held.pop(draw.randrange(len(held))))
        else:
            held.append(extents.take(draw.randint(1, 9 * ALIGNMENT)))
        ordered = sorted(held)
        assert all(before.end <= after.offset for before, after in itertools.pairwise(ordered))
        assert extents.taken_bytes == sum(extent.size for extent in held)
    for extent in held:
        extents.give_back(extent)
    assert extents.taken_bytes == 0
    assert extents.take(extents.end).offset == 0


def test_an_empty_extent_is_refused() -> None:
    with pytest.raises(ValueError, match="an extent of 0 bytes"):
        Extents().take(0)
