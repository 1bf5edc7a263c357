"""Short forms of lists of names and numbers, as Slurm 22.05 writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.control.engines.slurm.host_lists import MAX_INDICES, expand, read_indices, write_indices


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node-3", "node-3"),
        ("node-[1-3,7]", "node-1 node-2 node-3 node-7"),
        ("n[08-11],gpu1", "n08 n09 n10 n11 gpu1"),
        ("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"),
        ("a[1-2]x,b", "a1x a2x b"),
        ("(null)", ""),
        ("", ""),
    ],
)
def test_names_have_the_order_of_scontrol_show_hostnames(text, names):
    assert expand(text) == tuple(names.split())


@pytest.mark.parametrize("text", ["n[1-", "n[a-b]", "n[]", "n[1-99999999]", "a[1-9999]b[1-9999]", "]n[", "n[1-2"])
def test_invalid_or_endless_lists_give_no_names(text):
    assert expand(text) == ()


@given(st.sets(st.integers(0, MAX_INDICES - 1), min_size=1, max_size=60))
def test_indices_survive_writing_and_reading(indices):
    assert read_indices(write_indices(indices)) == tuple(sorted(indices))


def test_indices_are_written_short():
    assert write_indices({4, 0, 1, 2, 6}) == "0-2,4,6"


@pytest.mark.parametrize("text", ["", ",", "1,", "-1", "2-1", "0-100000", "0-99999999999", "1x", "0-2-4", "\u0661"])
def test_indices_of_other_forms_are_not_read(text):
    assert read_indices(text) == ()
