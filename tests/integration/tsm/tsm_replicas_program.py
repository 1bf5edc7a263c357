"""Sharded states where FSDP shards nothing: a model's process group is its replicas, and the first replica saves."""

import copy

import torch.distributed as dist
from torch.distributed import checkpoint
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType
from tsm_sharded_program import (
    SHARDED,
    check_experts,
    check_other_degrees,
    check_resume,
    folder,
    folder_of_slice,
    made,
)
from tsm_tensor_models import families
from tsm_tensor_program import begun, train_cut

from clary.train.parallel.fsdp.checkpoint.saving import save
from clary.train.parallel.fsdp.state import state


def test_slices_in_replicas_resume_bit_for_bit(rank, size):
    """The process group of a model is its replicas; the first replica saves and waits for no other."""
    check_resume(1)


def test_slices_of_flat_parameters_in_replicas_resume_bit_for_bit(rank, size):
    """FSDP shards moments of flat parameters over the replicas, and only one replica saves them."""
    check_resume(1, use_orig_params=False)
    check_resume(1, ["neox"], tensor=1, use_orig_params=False)
    check_resume(1, ["neox"], is_later=True, use_orig_params=False)


def test_full_states_of_replicas_resume_bit_for_bit(rank, size):
    for use_orig_params in (False, True):
        begun(1)
        one = made(families()["neox"], use_orig_params=use_orig_params)
        train_cut(*one[:2], steps=2)
        with FSDP.state_dict_type(one[0], StateDictType.FULL_STATE_DICT):
            saved = copy.deepcopy((one[0].state_dict(), FSDP.optim_state_dict(*one[:2])))
        expected = train_cut(*one[:2], steps=2)
        other = made(families()["neox"], seed=6, use_orig_params=use_orig_params)
        with FSDP.state_dict_type(other[0], StateDictType.FULL_STATE_DICT):
            other[0].load_state_dict(saved[0])
            other[1].load_state_dict(FSDP.optim_state_dict_to_load(*other[:2], saved[1]))
        assert train_cut(*other[:2], steps=2) == expected, use_orig_params
    state.reset()


def test_slices_in_replicas_are_saved_while_training_continues(rank, size):
    check_resume(1, ["neox"], is_later=True)


def test_a_model_in_replicas_that_is_not_cut_resumes(rank, size):
    check_resume(1, ["neox"], tensor=1)


def test_replicas_that_all_save_write_each_shard_once(rank, size):
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
