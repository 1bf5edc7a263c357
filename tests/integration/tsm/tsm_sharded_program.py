"""Sharded states of cut models, saved and loaded as in AWS's shared scripts: one folder for each slice.

Source: aws/amazon-sagemaker-examples, sm-distributed_model_parallel_v2/shared-scripts/checkpoints.py (Apache-2.0): the
calls, their groups, and their order.
"""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import tsm_experts_program as experts
from torch.distributed import checkpoint
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType
from torch.distributed.fsdp.api import ShardedOptimStateDictConfig
from tsm_tensor_models import families
from tsm_tensor_program import begun, full_state, optimizer_of, train_cut, wrapped

from clary.train.parallel.fsdp.checkpoint import export
from clary.train.parallel.fsdp.checkpoint.asynchronous import AsyncCallsQueue, async_save
from clary.train.parallel.fsdp.checkpoint.loading import load
from clary.train.parallel.fsdp.checkpoint.saving import save
from clary.train.parallel.fsdp.checkpoint.storage import DistributedFileSystemReader
from clary.train.parallel.fsdp.session import init
from clary.train.parallel.fsdp.state import state
from clary.train.parallel.fsdp.training import transform

SHARDED = StateDictType.SHARDED_STATE_DICT


def folder(name):
    """Return a folder that all ranks see, new for every function."""
    made = [tempfile.mkdtemp(prefix=f"clary-{name}-") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(made)
    return Path(made[0])


def refused(call, kind, words):
    told = None
    try:
        call()
    except kind as error:
        told = str(error)
    assert told is not None, f"nothing was raised; expected {words!r}"
    assert words in told, told


def made(make, seed=5, **options):
    torch.manual_seed(seed)
    model = wrapped(transform(make()), **options)
    optimizer = optimizer_of(model)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)


def groups_of(model):
    """Return the group that saves together, the coordinator rank, and whether this rank saves at all."""
    group = model.process_group
    return group, min(dist.get_process_group_ranks(group)), state.ranker.get_rep_rank(dist.get_rank()) == 0


def folder_of_slice(at):
    if state.tensor_parallel_degree > 1:
        at = at / f"tp{state.tensor_parallel_degree}-{state.tp_rank}"
    if state.expert_parallel_degree > 1:
        at = at / f"ep{state.expert_parallel_degree}-{state.ep_rank}"
    return at


def save_slices(at, model, optimizer, scheduler, queue=None):
    with FSDP.state_dict_type(model, SHARDED):
        moments = FSDP.optim_state_dict(model, optimizer)
        saved = {"model": model.state_dict(), "optimizer": moments, "scheduler": scheduler.state_dict(), "steps": 2}
    group, coordinator, is_saving = groups_of(model)
    if is_saving and queue is not None:
        async_save(
            saved,
            checkpoint_id=str(folder_of_slice(at)),
            process_group=group,
            coordinator_rank=coordinator,
            queue=queue,
        )
    elif is_saving:
        checkpoint.save_state_dict(
            state_dict=saved,
            storage_writer=checkpoint.FileSystemWriter(folder_of_slice(at)),
            planner=checkpoint.DefaultSavePlanner(),
            process_group=group,
            coordinator_rank=coordinator,
        )
    dist.barrier()


def load_slices(
    at, model, optimizer, scheduler, load_fn=checkpoint.load_state_dict, reader=checkpoint.FileSystemReader
):
    group, coordinator, _ = groups_of(model)
    config = ShardedOptimStateDictConfig(offload_to_cpu=True)
    with FSDP.state_dict_type(model, SHARDED, optim_state_dict_config=config):
        found = {"model": model.state_dict(), "scheduler": scheduler.state_dict(), "steps": 0}
        load_fn(
            state_dict=found,
            storage_reader=reader(folder_of_slice(at)),
            process_group=group,
            coordinator_rank=coordinator,
            planner=checkpoint.DefaultLoadPlanner(),
        )
        model.load_state_dict(found["model"])
        scheduler.load_state_dict(found["scheduler"])
        moments = load_sharded_optimizer_state_dict(
            model_state_dict=found["model"],
            optimizer_key="optimizer",
            storage_reader=reader(folder_of_slice(at)),
            process_group=model.process_group,
        )
        flat = FSDP.optim_state_dict_to_load(model=model, optim=optimizer, optim_state_dict=moments["optimizer"])
        optimizer.load_state_dict(flat)
    assert found["steps"] == 2


def check_resume(hybrid, names=("llama", "neox"), *, is_later=False, tensor=2, **options):
    """Check that training after a load gives the same bits as training after the save."""
    queue = AsyncCallsQueue() if is_later else None
    later = {"load_fn": load, "reader": DistributedFileSystemReader} if is_later else {}
    for name in names:
        begun(hybrid, tensor)
        at = folder("slices")
        one = made(families()[name], **options)
        train_cut(*one[:2], steps=2)
        save_slices(at, *one, queue=queue)
        expected = train_cut(*one[:2], steps=2)
        if queue is not None and groups_of(one[0])[2]:
            assert queue.maybe_finalize_async_calls(blocking=True, process_group=one[0].process_group)
        dist.barrier()  # replicas that do not save load the files of the replica that saves
        other = made(families()[name], seed=6, **options)
        load_slices(at, *other, **later)
        assert train_cut(*other[:2], steps=2) == expected, name
        for key, value in full_state(one[0]).items():
            assert torch.equal(full_state(other[0])[key], value), (name, key)
    state.reset()


def test_slices_in_shards_resume_bit_for_bit(rank, size):
    check_resume(2)


def test_slices_of_flat_parameters_resume_bit_for_bit(rank, size):
    check_resume(0, ["neox"], use_orig_params=False)


def test_slices_of_one_rank_each_resume_bit_for_bit(rank, size):
    check_resume(0, ["neox"], tensor=4)


def test_slices_are_saved_while_training_continues(rank, size):
    check_resume(0, ["llama tied"], is_later=True)


def test_saving_different_slices_into_one_folder_is_refused(rank, size):
    begun()
    model, *_ = made(families()["neox"])
    with FSDP.state_dict_type(model, SHARDED):
        found = {"model": model.state_dict()}
    for call in (
        lambda: checkpoint.save(found, checkpoint_id=folder("together")),
        lambda: async_save(found, checkpoint_id=folder("together")),
        lambda: load(found, checkpoint_id=folder("together")),
    ):
        refused(call, ValueError, f"tp2-{rank % 2}")
    state.reset()


def wrapped_experts(layout, seed):
    torch.manual_seed(seed)
    model = transform(experts.Model(layout), config={"moe_load_balancing": "none"})
    model = wrapped(model, experts.DecoderLayer)
    optimizer = experts.optimizer_of(model)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)


def train_experts(model, optimizer, rank, size):
    losses = []
    for step in experts.batches(size)[:2]:
        optimizer.zero_grad()
        loss = experts.loss_of(model, step[rank])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def check_experts(rank, size, layout, degrees, *, is_later=False):
    state.reset()
    init(degrees)
    queue = AsyncCallsQueue() if is_later else None
    later = {"load_fn": load, "reader": DistributedFileSystemReader} if is_later else {}
    at = folder("experts")
    one = wrapped_experts(layout, 5)
    train_experts(*one[:2], rank, size)
    save_slices(at, *one, queue=queue)
    expected = train_experts(*one[:2], rank, size)
    if queue is not None and groups_of(one[0])[2]:
        assert queue.maybe_finalize_async_calls(blocking=True, process_group=one[0].process_group)
    dist.barrier()
    other = wrapped_experts(layout, 6)
    load_slices(at, *other, **later)
    assert train_experts(*other[:2], rank, size) == expected
    state.reset()


def test_experts_in_shards_resume_bit_for_bit(rank, size):
    check_experts(rank, size, "fused", {"expert_parallel_degree": 2})
    check_experts(rank, size, "listed", {"expert_parallel_degree": 2})


def test_experts_that_differ_between_all_ranks_resume(rank, size):
    check_experts(rank, size, "fused", {"expert_parallel_degree": 2, "hybrid_shard_degree": 2}, is_later=True)
    check_experts(rank, size, "fused", {"expert_parallel_degree": 4, "hybrid_shard_degree": 2})


def test_a_model_is_saved_and_loaded_in_one_call(rank, size):
    begun()
    at = folder("export")
    model, optimizer, scheduler = made(families()["neox"])
    train_cut(model, optimizer, steps=2)
    values = {"total_steps": 2, "names": ["one"]}
    given = {"optimizer": optimizer, "scheduler": scheduler, "extra_exports": values}
    export.save_model_checkpoint(model, SHARDED, str(at), model.sharding_strategy, groups_of(model), True, **given)
    dist.barrier()
    expected = train_cut(model, optimizer, steps=2)
    other = made(families()["neox"], seed=6)
    given = {"optimizer": other[1], "scheduler": other[2], "extra_imports": dict.fromkeys(values, 0)}
    told = export.load_model_checkpoint(other[0], SHARDED, str(at), None, groups_of(other[0]), **given)
    assert told[export.EXPORT_KEY_IDENTITY] == values
    assert told[export.EXPORT_KEY_MODEL] is other[0]
    assert train_cut(*other[:2], steps=2) == expected
    refused(
        lambda: export.save_model_checkpoint(model, StateDictType.FULL_STATE_DICT, str(at)), ValueError, "SHARDED_STATE"
    )
    state.reset()


def check_other_degrees(rank, size, name, saved, wanted, *, hybrid=(0, 0), **options):
    """Check that a model and its optimizer, loaded at other degrees, equal the saved ones."""
    begun(hybrid[0], saved)
    at = folder("degrees")
    one = made(families()[name], **options)
    train_cut(*one[:2], steps=2)
    save_slices(at, *one)
    with FSDP.state_dict_type(one[0], StateDictType.FULL_STATE_DICT):
        expected = one[0].state_dict(), FSDP.optim_state_dict(*one[:2])["state"]
    begun(hybrid[1], wanted)
    other = made(families()[name], seed=6, **options)
    load_slices(at, *other)
    with FSDP.state_dict_type(other[0], StateDictType.FULL_STATE_DICT):
        found = other[0].state_dict(), FSDP.optim_state_dict(*other[:2])["state"]
    for key, value in expected[0].items():
        assert torch.equal(found[0][key], value), (name, saved, wanted, key)
        moments = expected[1].get(key, {})
        assert all(torch.equal(found[1][key][moment], moments[moment]) for moment in moments), (key, saved, wanted)
    state.reset()


def test_slices_are_loaded_into_other_degrees(rank, size):
    check_other_degrees(rank, size, "neox", 2, 4)
    check_other_degrees(rank, size, "llama tied", 2, 1)
    check_other_degrees(rank, size, "llama", 1, 2)


def test_a_folder_of_another_slice_is_refused(rank, size):
    begun()
    one = made(families()["neox"])
    at = folder("taken")
    train_cut(*one[:2], steps=1)
    save_slices(at, *one)
    with FSDP.state_dict_type(one[0], SHARDED):
        found = {"model": one[0].state_dict()}
    other = at / f"tp2-{1 - state.tp_rank}"
    for call in (
        lambda: save(found, checkpoint_id=other, process_group=one[0].process_group, coordinator_rank=state.tp_rank),
        lambda: load(found, checkpoint_id=other, process_group=one[0].process_group),
    ):
        refused(call, BaseException, f"holds slice tp2-{1 - state.tp_rank}")
    load_slices(at, *one)
    state.reset()


def test_experts_are_loaded_into_other_degrees(rank, size):
    state.reset()
    init({"expert_parallel_degree": 2})
    at = folder("experts")
    one = wrapped_experts("fused", 5)
    train_experts(*one[:2], rank, size)
    save_slices(at, *one)
    expected = full_state(one[0])
    state.reset()
    init({"expert_parallel_degree": 4})
    other = wrapped_experts("fused", 6)
    load_slices(at, *other)
    found = full_state(other[0])
    assert all(torch.equal(found[key], value) for key, value in expected.items())
    state.reset()
