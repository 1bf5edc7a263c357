"""Keys of SMP v2: their precedence, refusals with their messages, and the ranks that hold shards."""

import json
from pathlib import Path
from typing import Any

import pytest

from clary.train.parallel.fsdp.configuration import (
    FsdpConfiguration,
    read_fsdp_configuration,
    read_job,
    read_script,
)
from clary.train.parallel.fsdp.ranker import Ranker


def test_defaults_are_those_of_the_documentation() -> None:
    one = read_fsdp_configuration({})
    assert (one.hybrid_shard_degree, one.sm_activation_offloading, one.activation_loading_horizon) == (0, True, 2)
    assert (one.fsdp_cache_flush_warnings, one.allow_empty_shards, one.random_seed) == (True, False, 12345)
    assert (one.tensor_parallel_degree, one.context_parallel_degree, one.expert_parallel_degree) == (1, 1, 1)


def test_the_job_wins_over_the_script_and_the_script_over_assigned_values() -> None:
    one = read_fsdp_configuration(
        {"hybrid_shard_degree": 8},
        {"hybrid_shard_degree": 4, "random_seed": 4},
        {"hybrid_shard_degree": 2, "random_seed": 2, "activation_loading_horizon": 5},
    )
    assert (one.hybrid_shard_degree, one.random_seed, one.activation_loading_horizon) == (8, 4, 5)


def test_keys_with_an_underscore_are_accepted_and_reported_without_effect() -> None:
    one = read_fsdp_configuration({"_any": 1, "allow_empty_shards": True})
    assert one.without_effect() == ("allow_empty_shards", "_any")
    assert read_fsdp_configuration({}).without_effect() == ()


def test_a_script_gives_a_file_a_dict_or_none(tmp_path: Path) -> None:
    path = tmp_path / "smp.json"
    path.write_text(json.dumps({"hybrid_shard_degree": 2}))
    assert read_script(str(path)) == read_script(path) == read_script({"hybrid_shard_degree": 2})
    assert read_script(None) == {}
    path.write_text("[1]")
    with pytest.raises(ValueError, match=r"smp\.json holds '\[1\]'; expected a JSON object"):
        read_script(path)
    with pytest.raises(TypeError, match="the path of a JSON file; got int"):
        read_script(3)


def test_a_job_gives_its_keys_in_json() -> None:
    assert read_job({"SM_HP_MP_PARAMETERS": '{"hybrid_shard_degree": 2}'}) == {"hybrid_shard_degree": 2}
    assert read_job({}) == read_job({"SM_HP_MP_PARAMETERS": " "}) == {}
    with pytest.raises(ValueError, match=r"mp_parameters holds '\{', which is not JSON"):
        read_job({"SM_HP_MP_PARAMETERS": "{"})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"hybrid_shard_degre": 2}, "did you mean hybrid_shard_degree"),
        ({"hybrid_shard_degree": -1}, "hybrid_shard_degree is -1; expected a whole number, 0 or more"),
        ({"hybrid_shard_degree": True}, "hybrid_shard_degree is True; expected a whole number"),
        ({"activation_loading_horizon": float("inf")}, "activation_loading_horizon is inf; expected a whole number"),
        ({"activation_loading_horizon": 0}, "expected a whole number, 1 or more"),
        ({"sm_activation_offloading": "yes"}, "sm_activation_offloading is 'yes'; expected true or false"),
        ({"tensor_parallel_degree": 2, "expert_parallel_degree": 2}, "exclude each other"),
        ({"context_parallel_degree": 4, "hybrid_shard_degree": 2}, "must divide hybrid_shard_degree, which is 2"),
    ],
)
def test_impossible_values_are_refused_by_name(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_fsdp_configuration(given)


@pytest.mark.parametrize(
    ("given", "size", "words"),
    [
        ({"tensor_parallel_degree": 3}, 8, "it must divide the 8 ranks"),
        ({"hybrid_shard_degree": 16}, 8, "hybrid_shard_degree is 16; it must divide 8, the number of all 8 ranks"),
        ({"hybrid_shard_degree": 3}, 8, "hybrid_shard_degree is 3"),
        (
            {"hybrid_shard_degree": 8, "tensor_parallel_degree": 2},
            8,
            "it must divide 4, the number of all 8 ranks divided by tensor_parallel_degree 2",
        ),
        ({"context_parallel_degree": 3}, 8, "context_parallel_degree is 3"),
        ({"expert_parallel_degree": 3}, 8, "expert_parallel_degree is 3"),
    ],
)
def test_degrees_must_fit_the_ranks(given: dict[str, Any], size: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_fsdp_configuration(given).check_size(size)


def test_degrees_that_fit_are_accepted() -> None:
    for degree in (0, 1, 2, 4, 8):
        FsdpConfiguration(hybrid_shard_degree=degree).check_size(8)


def test_replication_groups_hold_the_same_shard() -> None:
    ranker = Ranker(8, shard_degree=2)
    assert ranker.get_rep_groups() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert [ranker.get_rep_rank(rank) for rank in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert ranker.get_shard_groups() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert Ranker(8).get_rep_groups() == [[rank] for rank in range(8)]
    assert Ranker(8, shard_degree=1).get_rep_groups() == [list(range(8))]


@pytest.mark.parametrize("tensor", [1, 2, 4])
@pytest.mark.parametrize("shard", [0, 1, 2])
def test_groups_of_every_kind_hold_every_rank_once(tensor: int, shard: int) -> None:
    ranker = Ranker(16, shard, tensor, context_degree=2)
    for groups in (
        ranker.get_rep_groups(),
        ranker.get_shard_groups(),
        ranker.get_tp_groups(),
        ranker.get_cp_groups(),
    ):
        assert sorted(rank for group in groups for rank in group) == list(range(16))
    for group in ranker.get_tp_groups():
        assert len({ranker.get_rep_rank(rank) for rank in group}) == 1
        assert len(group) == tensor
    for group in ranker.get_shard_groups():
        assert len({rank % tensor for rank in group}) == 1
        assert len(group) == ranker.num_shards
