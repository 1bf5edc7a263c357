"""Four ranks with SMP: pipelines of every length, replicated, on every placement; run by test_smp_hybrid."""

import torch
from smp_core_program import assert_like_alone, smp
from smp_models import SharedPerceptron, Winding


def test_pipelines_of_two_in_two_replicas_on_every_placement(rank, size):
    for placement in ("cluster", "spread"):
        assert_like_alone(Winding, 2, partitions=2, ddp=True, placement_strategy=placement)
        assert smp.pp_size() == 2
        assert smp.dp_size() == 2


def test_a_pipeline_of_four_trains_as_one_process_does(rank, size):
    for pipeline in ("simple", "interleaved"):
        model = assert_like_alone(Winding, 4, partitions=4, pipeline=pipeline)
        assert set(model.owners.values()) == {0, 1, 2, 3}


def test_four_replicas_train_as_one_process_does(rank, size):
    assert_like_alone(SharedPerceptron, 2, ddp=True)


def test_a_deterministic_server_processes_requests_alike_in_every_replica(rank, size):
    sums = []
    for _ in range(2):
        model = assert_like_alone(Winding, 4, partitions=2, ddp=True, deterministic_server=True)
        sums.append({name: value.clone() for name, value in model.local_named_parameters()})
    peers = smp.allgather(sums[0], smp.RDP_GROUP)
    for name, value in peers[0].items():
        assert torch.equal(value, peers[1][name]), name
