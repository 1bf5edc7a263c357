"""Four ranks with SMP: pipelines of every length, replicated, on every placement; run by test_smp_hybrid."""

import torch
from smp_axes_program import Tall, cut_model, make_tall, share
from smp_core_program import assert_like_alone, failure_of, shared_folder, smp, start, train_step
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


def test_a_pipeline_of_tensor_groups_exports_whole_tensors_before_its_first_step(rank, size):
    folder = shared_folder(rank)
    keys = {"partitions": 2, "tensor_parallel_degree": 2, "prescaled_batch": True}
    model, optimizer = cut_model(2, **keys)
    torch.manual_seed(7)
    for name, value in Tall().state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    train_step(model, *share(Tall, 0))
    optimizer.step()
    smp.save_checkpoint(folder, "tag", model=model, optimizer=optimizer)
    expected = model.state_dict()
    start(microbatches=2, ddp=True, **keys)
    model = smp.DistributedModel(make_tall())
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.05))
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    assert shapes == {name: value.shape for name, value in expected.items()}
    smp.resume_from_checkpoint(folder, "tag")
    found = model.state_dict(gather_to_rank0=True)
    assert set(found) == (set(expected) if smp.mp_rank() == 0 else set())
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected[name]), name
    assert "the first step places it" in str(failure_of(optimizer.state_dict))
