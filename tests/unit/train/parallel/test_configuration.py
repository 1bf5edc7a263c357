"""The keys of SMP v1: documented defaults, values of the wrong type, keys that exclude each other."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.train.parallel.configuration import Configuration, parse_parameters, read_configuration
from clary.train.parallel.layout.mesh import Along

DDP = {"ddp": True}


def test_defaults_equal_the_documented_ones():
    found = read_configuration({})
    assert (found.partitions, found.microbatches, found.active_microbatches) == (1, 1, 3)
    assert (found.pipeline, found.optimize, found.placement_strategy) == ("interleaved", "memory", "cluster")
    assert (found.memory_weight, found.activation_loading_horizon, found.ddp) == (0.8, 4, False)
    assert (found.sdp_reduce_bucket_size, found.sdp_max_live_parameters) == (5e8, 1e9)
    assert found.without_effect() == ()


def test_defaults_that_depend_on_other_keys_follow_them():
    found = read_configuration({"partitions": 4, "optimize": "speed"})
    assert (found.active_microbatches, found.memory_weight) == (6, 0.2)
    assert read_configuration({"partitions": 4, "active_microbatches": 2}).active_microbatches == 2


def test_the_job_s_keys_win_and_missing_keys_come_from_the_script():
    found = read_configuration({"microbatches": 8}, {"microbatches": 2, "partitions": 2, "pipeline": "simple"})
    assert (found.microbatches, found.partitions, found.pipeline) == (8, 2, "simple")


def test_the_two_names_of_the_pipeline_degree_are_one_key():
    for name in ("partitions", "pipeline_parallel_degree"):
        found = read_configuration({name: 2})
        assert found.partitions == found.pipeline_parallel_degree == 2
    assert read_configuration({"pipeline_parallel_degree": 4}, {"partitions": 2}).partitions == 4
    assert read_configuration({"pipeline_parallel_degree": 2, "partitions": 2}).partitions == 2
    with pytest.raises(ValueError, match="two names of the same key"):
        read_configuration({"pipeline_parallel_degree": 4, "partitions": 2})


def test_values_are_accepted_as_scripts_write_them():
    found = read_configuration({"sdp_reduce_bucket_size": 5e8, "static_mode": 0, "fast_mode": 1, **DDP})
    assert found.sdp_reduce_bucket_size == 500_000_000
    assert isinstance(found.sdp_reduce_bucket_size, int)
    assert (found.static_mode, found.fast_mode) == (False, True)
    assert found.without_effect() == ("fast_mode",)


def test_undocumented_keys_of_public_scripts_are_accepted_and_reported():
    found = read_configuration(
        {"_match_weights": True, "_any": [1]}, {"checkpoint_attentions": True, "_match_weights": 0}
    )
    assert found.without_effect() == ("checkpoint_attentions", "_match_weights", "_any")
    assert (found._match_weights, found._any, found.checkpoint_attentions) == (True, [1], True)
    assert found != read_configuration({})
    assert copy.copy(found) == found
    with pytest.raises(AttributeError, match="_other is not a key"):
        _ = found._other


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"partitions": 0}, "partitions is 0; expected a whole number, 1 or more"),
        ({"partitions": float("inf")}, "partitions is inf; expected a whole number, 1 or more"),
        ({"partitions": 1.5}, "partitions is 1.5"),
        ({"partitions": True}, "partitions is True"),
        ({"microbatches": "4"}, "microbatches is '4'"),
        ({"ddp": "yes"}, "ddp is 'yes'; expected true or false"),
        ({"ddp": 2}, "ddp is 2"),
        ({"pipeline": "gpipe"}, "pipeline is 'gpipe'; expected one of interleaved, simple"),
        ({"placement_strategy": "DDP"}, "placement_strategy is 'DDP'"),
        ({"memory_weight": 1.1}, "memory_weight is 1.1; expected a number from 0 to 1"),
        ({"partition_file": 3}, "partition_file is 3; expected text"),
        ({"microbatch": 4}, "microbatch is not a key of model parallelism; did you mean microbatches?"),
        ({"undocumented": {}}, "undocumented is not a key"),
        ({"zzz": 4}, "zzz is not a key of model parallelism$"),
        ({"auto_partition": False}, "default_partition must say"),
        ({"partitions": 2, "auto_partition": False, "default_partition": 2}, "must be below partitions, which is 2"),
        ({"horovod": True, **DDP}, "horovod and ddp exclude"),
        ({"fp16": True, "bf16": True}, "fp16 and bf16 exclude"),
        ({"tensor_parallel_degree": 2}, "tensor_parallel_degree above 1 needs ddp"),
        ({"shard_optimizer_state": True}, "shard_optimizer_state needs ddp"),
        ({"sharded_data_parallel_degree": 2}, "sharded_data_parallel_degree above 1 needs ddp"),
        ({"ddp_port": 1234}, "ddp_port and ddp_dist_backend need ddp"),
        ({"ddp_dist_backend": "nccl"}, "ddp_port and ddp_dist_backend need ddp"),
        ({"sharded_data_parallel_degree": 2, "partitions": 2, **DDP}, "goes with no pipeline"),
        ({"sharded_data_parallel_degree": 2, "shard_optimizer_state": True, **DDP}, "leave shard_optimizer_state out"),
        ({"sharded_data_parallel_degree": 2, "tensor_parallel_degree": 2, **DDP}, "together need prescaled_batch"),
    ],
)
def test_impossible_values_are_refused_with_the_rule(keys, words):
    with pytest.raises(ValueError, match=words):
        read_configuration(keys)


@given(
    st.dictionaries(st.sampled_from(sorted(Configuration.__dataclass_fields__)), st.none() | st.text() | st.floats())
)
def test_any_value_of_a_key_is_accepted_or_refused_by_name(keys):
    try:
        found = read_configuration(keys)
    except ValueError as error:
        words = str(error)
    else:
        words = str(found)
    assert any(key in words for key in Configuration.__dataclass_fields__)


def test_ranks_are_laid_out_as_configured():
    found = read_configuration({"partitions": 2, "tensor_parallel_degree": 2, "placement_strategy": "spread", **DDP})
    assert found.mesh(8).group(Along.TP, 0) == (0, 4)
    with pytest.raises(ValueError, match="start a multiple of 4 processes"):
        found.mesh(6)
    sharded = read_configuration({"sharded_data_parallel_degree": 4, **DDP})
    assert sharded.mesh(8).degree(Along.RDP) == 8
    with pytest.raises(ValueError, match="it must divide the 6 ranks that hold the same part of the model"):
        sharded.mesh(6)


def test_parameters_of_a_job_are_a_json_object_or_empty():
    assert parse_parameters('{"partitions": 2, "ddp": true}') == {"partitions": 2, "ddp": True}
    assert parse_parameters("") == parse_parameters(" ") == parse_parameters("{}") == {}
    for text in ("[2]", "2", "partitions=2"):
        with pytest.raises(ValueError, match="mp_parameters is"):
            parse_parameters(text)
