"""The rank that keeps the optimizer's state of each parameter."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from clary.train.parallel.sharded.owners import assign_owners


@given(st.lists(st.integers(0, 1000), max_size=40), st.integers(1, 8))
def test_every_parameter_has_one_owner_and_loads_add_up(numels: list[int], num_ranks: int) -> None:
    found = assign_owners(numels, num_ranks)
    assert len(found.owners) == len(numels)
    loads = [sum(numels[one] for one, owner in enumerate(found.owners) if owner == rank) for rank in range(num_ranks)]
    assert tuple(loads) == found.loads


@settings(max_examples=60)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=7), st.integers(1, 3))
def test_the_largest_load_is_within_grahams_bound_of_the_optimum(numels: list[int], num_ranks: int) -> None:
    best = min(
        max(sum(n for n, rank in zip(numels, ranks, strict=True) if rank == one) for one in range(num_ranks))
        for ranks in itertools.product(range(num_ranks), repeat=len(numels))
    )
    assert max(assign_owners(numels, num_ranks).loads) <= best * (4 / 3 - 1 / (3 * num_ranks)) + 1e-9


def test_equal_parameters_are_assigned_round_robin() -> None:
    assert assign_owners([5, 5, 5, 5], 2).owners == (0, 1, 0, 1)


def test_the_reason_names_the_obstacle_to_balance() -> None:
    found = assign_owners([100, 1, 1, 1], 2)
    assert found.loads == (100, 3)
    assert "the largest parameter alone has 100" in found.reason
    assert "1.000 of the mean" in assign_owners([3, 3, 3, 3], 2).reason
    assert assign_owners([], 2).reason.startswith("0 parameters on 2 ranks")
