"""The parameters that share a buffer, the part that each rank keeps, and how groups are distributed over hosts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.train.parallel.sharded.layout import (
    BUCKET_ELEMENTS,
    FlatLayout,
    ParameterSpec,
    host_grid,
    plan_flats,
    segment_of,
)

shapes = st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=1, max_size=6)


@given(shapes, st.integers(1, 8))
def test_pieces_of_all_segments_contain_every_parameter_once(found: list[tuple[int, ...]], degree: int) -> None:
    layout = FlatLayout(tuple(map(str, range(len(found)))), tuple(found), degree)
    seen: list[list[int]] = [[] for _ in found]
    for segment in range(degree):
        for place, piece in enumerate(layout.pieces(segment)):
            assert 0 <= piece.at <= piece.at + piece.length <= layout.segment_numel
            if piece.length:
                at = segment * layout.segment_numel + piece.at
                assert at == layout.offsets[place] + piece.start
            seen[place] += range(piece.start, piece.start + piece.length)
    assert [sorted(one) for one in seen] == [list(range(numel)) for numel in layout.numels]


@given(shapes, st.integers(1, 8))
def test_a_buffer_wastes_fewer_elements_than_its_degree(found: list[tuple[int, ...]], degree: int) -> None:
    layout = FlatLayout(tuple(map(str, range(len(found)))), tuple(found), degree)
    assert 0 <= layout.padded_numel - sum(layout.numels) < degree


def spec(name: str, numel: int, *users: int, kind: str = "float32") -> ParameterSpec:
    return ParameterSpec(name, (numel,), frozenset(users), kind)


def names_of(specs: list[ParameterSpec], **options: int) -> list[tuple[tuple[str, ...], bool]]:
    chosen = {"degree": 4, "persistence_threshold": 10, "most_elements": 1000, **options}
    return [(plan.names, plan.is_sharded) for plan in plan_flats(specs, **chosen)]


def test_parameters_of_one_unit_share_a_buffer_and_small_ones_stay_whole_together() -> None:
    specs = [spec("a.w", 100, 1), spec("a.b", 9, 1), spec("b.w", 100, 2), spec("b.b", 9, 2), spec("b.v", 10, 2)]
    assert names_of(specs) == [(("a.w",), True), (("a.b", "b.b"), False), (("b.w", "b.v"), True)]


def test_parameters_of_several_units_have_a_separate_buffer() -> None:
    specs = [spec("a.w", 100, 1), spec("tied", 100, 1, 2), spec("b.w", 100, 2)]
    plans = plan_flats(specs, degree=2, persistence_threshold=0, most_elements=1000)
    assert [(plan.names, sorted(plan.users)) for plan in plans] == [
        (("a.w",), [1]),
        (("tied",), [1, 2]),
        (("b.w",), [2]),
    ]


def test_different_kinds_of_parameters_have_separate_buffers() -> None:
    specs = [spec("a.w", 100, 1), spec("a.frozen", 100, 1, kind="not trained")]
    assert names_of(specs) == [(("a.w",), True), (("a.frozen",), True)]


def test_a_buffer_exceeds_the_bucket_only_for_a_single_parameter() -> None:
    specs = [spec("a", 600, 1), spec("b", 400, 1), spec("c", 1, 1), spec("d", 5000, 1), spec("e", 20, 1)]
    found = names_of(specs, persistence_threshold=0)
    assert [names for names, _ in found] == [("a", "b"), ("c",), ("d",), ("e",)]


def test_degree_1_shards_no_parameter() -> None:
    specs = [spec("a", BUCKET_ELEMENTS, 1), spec("b", 1, 2)]
    assert names_of(specs, degree=1, most_elements=10**9) == [(("a",), False), (("b",), False)]


@pytest.mark.parametrize(
    ("hosts", "degree", "grid"),
    [
        ("aabb", 4, (2, 2)),
        ("aabb", 2, None),  # each group within one host
        ("abab", 4, None),  # neighbouring ranks are on different hosts
        ("aaab", 4, None),  # different numbers of ranks per host
        ("abcd", 4, None),  # one rank per host
        ("aaaa", 4, None),
        ("aabbccdd", 4, (2, 2)),
        ("aabbcccc", 4, None),  # different numbers of hosts per group
        ("aaabbbcccddd", 12, (4, 3)),
    ],
)
def test_a_grid_needs_several_hosts_with_equally_many_neighbouring_ranks(
    hosts: str, degree: int, grid: tuple[int, int] | None
) -> None:
    assert host_grid(list(hosts), degree) == grid


def test_ranks_with_the_same_local_index_keep_neighbouring_segments() -> None:
    grid = (3, 2)
    segments = [segment_of(member, grid) for member in range(6)]
    assert sorted(segments) == list(range(6))
    for place in range(2):
        across = [segments[host * 2 + place] for host in range(3)]
        assert across == list(range(across[0], across[0] + 3))
    assert [segment_of(member, None) for member in range(4)] == [0, 1, 2, 3]
