"""Coordinates of ranks: the documented tables, and properties of every mesh."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.train.parallel.layout.mesh import PLACEMENTS, Along, Axis, Mesh, make_mesh

# 8 ranks, two on every axis: (rdp, pp, tp) of each rank, then groups written as digits.
TABLES = {
    "DPT": ("000 001 010 011 100 101 110 111", "01 23 45 67", "02 13 46 57", "04 15 26 37", "0123 4567", "0145 2367"),
    "TPD": ("000 100 010 110 001 101 011 111", "04 15 26 37", "02 13 46 57", "01 23 45 67", "0246 1357", "0145 2367"),
    "PTD": ("000 100 001 101 010 110 011 111", "02 13 46 57", "04 15 26 37", "01 23 45 67", "0246 1357", "0123 4567"),
    "DTP": ("000 010 001 011 100 110 101 111", "02 13 46 57", "01 23 45 67", "04 15 26 37", "0123 4567", "0246 1357"),
    "TDP": ("000 010 100 110 001 011 101 111", "04 15 26 37", "01 23 45 67", "02 13 46 57", "0145 2367", "0246 1357"),
    "PDT": ("000 001 100 101 010 011 110 111", "01 23 45 67", "04 15 26 37", "02 13 46 57", "0145 2367", "0123 4567"),
}


def digits(groups):
    return {tuple(map(int, group)) for group in groups.split()}


@pytest.mark.parametrize("placement", TABLES)
def test_every_placement_equals_the_documented_tables(placement):
    mesh = make_mesh(8, pipeline_degree=2, tensor_degree=2, placement=placement)
    places, *groups = TABLES[placement]
    axes = (Axis.RDP, Axis.PP, Axis.TP)
    assert ["".join(str(mesh.coordinate(rank, axis)) for axis in axes) for rank in range(8)] == places.split()
    for along, expected in zip((Along.TP, Along.PP, Along.RDP, Along.MP, Along.DP), groups, strict=True):
        assert set(mesh.groups(along)) == digits(expected)


def test_cluster_and_spread_are_the_two_documented_orders():
    assert make_mesh(8, pipeline_degree=2, tensor_degree=2) == make_mesh(
        8, pipeline_degree=2, tensor_degree=2, placement="DPT"
    )
    cluster, spread = (make_mesh(8, pipeline_degree=2, placement=name) for name in ("cluster", "spread"))
    assert set(cluster.groups(Along.MP)) == digits("01 23 45 67")
    assert set(cluster.groups(Along.DP)) == digits("0246 1357")
    assert set(spread.groups(Along.MP)) == digits("04 15 26 37")
    assert set(spread.groups(Along.DP)) == digits("0123 4567")


def test_ranks_within_groups_are_numbered_as_in_the_developer_guide():
    mesh = make_mesh(8, pipeline_degree=2, tensor_degree=2, placement="DTP")
    for rank in range(8):
        rdp, tp, pp = (mesh.coordinate(rank, axis) for axis in (Axis.RDP, Axis.TP, Axis.PP))
        assert mesh.group_rank(Along.DP, rank) == rdp * 2 + tp
        assert mesh.group_rank(Along.MP, rank) == tp * 2 + pp


meshes = st.builds(
    lambda pipeline, tensor, replicas, placement: make_mesh(
        pipeline * tensor * replicas, pipeline_degree=pipeline, tensor_degree=tensor, placement=placement
    ),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(1, 5),
    st.sampled_from(sorted(PLACEMENTS)),
)


@given(meshes)
def test_groups_of_every_kind_contain_each_rank_once(mesh):
    for along in Along:
        groups = mesh.groups(along)
        assert sorted(itertools.chain.from_iterable(groups)) == list(range(mesh.size))
        assert {len(group) for group in groups} == {mesh.degree(along)}
        for rank in range(mesh.size):
            assert mesh.group(along, rank)[mesh.group_rank(along, rank)] == rank


@given(meshes)
def test_groups_along_different_axes_share_exactly_one_rank(mesh):
    for one, other in itertools.combinations((Along.PP, Along.TP, Along.RDP), 2):
        for rank in range(mesh.size):
            assert set(mesh.group(one, rank)) & set(mesh.group(other, rank)) == {rank}
    for rank in range(mesh.size):
        assert set(mesh.group(Along.MP, rank)) & set(mesh.group(Along.RDP, rank)) == {rank}
        assert set(mesh.group(Along.PP, rank)) & set(mesh.group(Along.DP, rank)) == {rank}


@given(meshes)
def test_degrees_multiply_as_documented(mesh):
    pp, tp, rdp = (mesh.degree(along) for along in (Along.PP, Along.TP, Along.RDP))
    assert pp * tp * rdp == mesh.size == mesh.degree(Along.WORLD)
    assert mesh.degree(Along.MP) == pp * tp
    assert mesh.degree(Along.DP) == tp * rdp
    assert mesh.degree(Along.EP) == mesh.degree(Along.CP) == 1


@given(meshes)
def test_rank_at_inverts_coordinate(mesh):
    for rank in range(mesh.size):
        assert mesh.rank_at({axis: mesh.coordinate(rank, axis) for axis in Axis}) == rank


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"size": 6, "pipeline_degree": 4}, "6 ranks cannot be cut.*multiple of 4"),
        ({"size": 0}, "0 ranks"),
        ({"size": 4, "tensor_degree": 0}, "tensor_parallel_degree is 0; expected 1 or more"),
        ({"size": 4, "placement": "DDP"}, "placement_strategy is 'DDP'; expected one of cluster, spread, DPT"),
    ],
)
def test_an_impossible_layout_is_refused_with_the_rule(arguments, words):
    with pytest.raises(ValueError, match=words):
        make_mesh(**arguments)


def test_ranks_and_coordinates_beyond_the_mesh_are_refused():
    mesh = Mesh((Axis.RDP, Axis.PP), (2, 3))
    with pytest.raises(ValueError, match=r"rank 6 is not in 0\.\.5 of mesh of 6 ranks \(rdp=2, pp=3; slowest first\)"):
        mesh.group(Along.DP, 6)
    with pytest.raises(ValueError, match=r"pp 3 is not in 0\.\.2"):
        mesh.rank_at({Axis.PP: 3})
    assert mesh.coordinate(5, Axis.TP) == 0
