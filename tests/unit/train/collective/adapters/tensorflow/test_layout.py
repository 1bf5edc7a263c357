"""Places of tensors in one block."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from clary.train.collective.adapters.tensorflow.layout import ALIGNMENT, LARGE_BYTES, lay_out


def test_small_tensors_are_one_run_at_the_beginning_and_a_large_one_is_its_own():
    layout = lay_out([8, LARGE_BYTES, 100, 0, 64])
    assert layout.offsets == (0, 256, 64, 0, 192)
    small, large = layout.runs
    assert (small.members, small.offset, small.num_bytes, small.is_read_in_place) == ((0, 2, 4), 0, 256, False)
    assert (large.members, large.offset, large.num_bytes, large.is_read_in_place) == ((1,), 256, LARGE_BYTES, True)
    assert layout.num_bytes == 256 + LARGE_BYTES


def test_a_list_of_nothing_has_no_runs():
    assert lay_out([]).runs == ()
    assert lay_out([0, 0]).num_bytes == 0


@given(st.lists(st.integers(0, 3 * LARGE_BYTES), max_size=12))
def test_tensors_are_aligned_and_lie_apart_inside_of_their_runs(sizes):
    layout = lay_out(sizes)
    assert lay_out(list(sizes)) == layout
    members = sorted(index for run in layout.runs for index in run.members)
    assert members == [index for index, size in enumerate(sizes) if size]
    for run in layout.runs:
        for index in run.members:
            assert layout.offsets[index] % ALIGNMENT == 0
            assert run.offset <= layout.offsets[index]
            assert layout.offsets[index] + sizes[index] <= run.offset + run.num_bytes <= layout.num_bytes
    places = sorted((layout.offsets[index], sizes[index]) for index in members)
    assert all(first + size <= second for (first, size), (second, _) in itertools.pairwise(places))
