"""Sharded states where FSDP shards nothing: the group of a model is its replicas, of which the first saves."""

import unittest

import torch.distributed as dist
from torch.distributed import checkpoint
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from tsm_sharded_program import (
    SHARDED,
    check_experts,
    check_other_degrees,
    check_resume,
    folder,
    folder_of_slice,
    made,
    refused,
)
from tsm_tensor_models import families
from tsm_tensor_program import begun, train_cut

from clary.train.parallel.fsdp.logs import get_logger
from clary.train.parallel.fsdp.saving import save
from clary.train.parallel.fsdp.session import state


def test_slices_in_replicas_resume_bit_for_bit(rank, size):
    """The group of a model is its replicas, of which the first saves: it waits for no other."""
    check_resume(1)


def test_replicas_of_flat_parameters_have_no_state_in_shards(rank, size):
    begun(1)
    with unittest.TestCase().assertLogs(get_logger(), "WARNING") as told:
        model, *_ = made(families()["neox"], use_orig_params=False)
    assert "use_orig_params is False" in told.output[0]
    with FSDP.state_dict_type(model, SHARDED):
        refused(model.state_dict, ValueError, "use_orig_params=True")
    state.reset()


def test_slices_in_replicas_saved_while_training_goes_on(rank, size):
    check_resume(1, ["neox"], is_later=True)


def test_a_model_in_replicas_that_is_not_cut_resumes(rank, size):
    check_resume(1, ["neox"], tensor=1)


def test_replicas_that_all_save_write_once(rank, size):
    begun(1)
    at = folder("replicas")
    model, optimizer, _ = made(families()["neox"])
    train_cut(model, optimizer, steps=1)
    with FSDP.state_dict_type(model, SHARDED):
        saved = {"model": model.state_dict(), "optimizer": FSDP.optim_state_dict(model, optimizer)}
    group = model.process_group
    checkpoint.save(saved, checkpoint_id=folder_of_slice(at / "torch"), process_group=group)
    save(saved, checkpoint_id=folder_of_slice(at / "ours"), process_group=group, coordinator_rank=state.tp_rank)
    dist.barrier()
    for folder_of_all in (at / "torch", at / "ours"):
        files = sorted(path.name for path in folder_of_slice(folder_of_all).iterdir())
        assert files == [".metadata", "__0_0.distcp", "slice.json"], files
    state.reset()


def test_experts_in_replicas_resume(rank, size):
    check_experts(rank, size, "fused", {"expert_parallel_degree": 2, "hybrid_shard_degree": 1})
    check_experts(rank, size, "listed", {"expert_parallel_degree": 2, "hybrid_shard_degree": 1}, is_later=True)


def test_slices_of_replicas_are_loaded_into_shards_and_back(rank, size):
    check_other_degrees(rank, size, "neox", 2, 2, hybrid=(1, 2))
    check_other_degrees(rank, size, "neox", 2, 1, hybrid=(2, 1))
