"""Distributed checkpoints of `torch.sagemaker`: synchronous and asynchronous saves, each complete or refused."""

import tempfile
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import CheckpointException, DefaultSavePlanner

from clary.train.parallel.fsdp.checkpoint import asynchronous
from clary.train.parallel.fsdp.checkpoint.asynchronous import AsyncCallsQueue, async_save, maybe_finalize_async_calls
from clary.train.parallel.fsdp.checkpoint.loading import load
from clary.train.parallel.fsdp.checkpoint.saving import CheckpointError, save
from clary.train.parallel.fsdp.checkpoint.storage import DistributedFileSystemWriter


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


def test_a_group_saves_without_the_others(rank, size):
    at = folder("group")
    groups = [dist.new_group(range(first, first + 2)) for first in range(0, size, 2)]
    own, first = groups[rank // 2], rank // 2 * 2
    path = at / str(first)
    save({"rank": torch.tensor([first])}, checkpoint_id=path, process_group=own, coordinator_rank=first)
    async_save(
        {"rank": torch.tensor([first])}, checkpoint_id=at / f"a{first}", process_group=own, coordinator_rank=first
    )
    assert len(maybe_finalize_async_calls(blocking=True, process_group=own)) == 1
    for one in (path, at / f"a{first}"):
        found = {"rank": torch.tensor([-1])}
        load(found, checkpoint_id=one, process_group=own)
        assert found["rank"].item() == first
    refused(
        lambda: save({}, checkpoint_id=path, process_group=own, coordinator_rank=(first + 2) % size),
        ValueError,
        "not in process_group",
    )


def test_an_unfinished_checkpoint_cannot_be_loaded(rank, size):
    at = folder("unfinished")
    queue = AsyncCallsQueue()
    tensors = {f"of {rank}": torch.full((3,), float(rank))}
    may_write = threading.Event()
    writer = DistributedFileSystemWriter(at, pre_write_hooks=[may_write.wait] if rank == size - 1 else [])
    async_save(tensors, storage_writer=writer, queue=queue)
    tensors[f"of {rank}"].zero_()
    assert queue.maybe_finalize_async_calls(blocking=False) == []
    assert queue.get_num_unfinalized_calls() == 1
    found = {f"of {rank}": torch.zeros(3)}
    refused(lambda: load(found, checkpoint_id=at), CheckpointException, "was not finished")
    refused(lambda: async_save(tensors, checkpoint_id=at, queue=queue), ValueError, "is not finished")
    may_write.set()
    assert queue.maybe_finalize_async_calls(blocking=True) == [1]
    load(found, checkpoint_id=at)
    assert found[f"of {rank}"].tolist() == [float(rank)] * 3


def broken():
    raise OSError("no space is left, said for this test")


def test_a_save_that_fails_on_one_rank_fails_on_all_and_leaves_no_checkpoint(rank, size):
    at = folder("failed")
    tensors = {f"of {rank}": torch.ones(2)}
    save(tensors, checkpoint_id=at)
    load(tensors, checkpoint_id=at)
    for is_async in (False, True):
        writer = DistributedFileSystemWriter(at, pre_write_hooks=[broken] if rank == 1 else [])
        if is_async:
            async_save(tensors, storage_writer=writer)
            refused(maybe_finalize_async_calls, CheckpointError, "rank 1: ")
            assert maybe_finalize_async_calls() == []
        else:
            refused(lambda writer=writer: save(tensors, storage_writer=writer), CheckpointError, "no space is left")
            save(tensors, checkpoint_id=at)
            refused(lambda writer=writer: save(tensors, storage_writer=writer), CheckpointError, "none at its path")
        refused(lambda: load(tensors, checkpoint_id=at), CheckpointException, "was not finished")


def test_a_writer_that_exceeds_its_time_limit_fails_the_save_on_all_ranks(rank, size):
    at, may_write = folder("silent"), threading.Event()
    writer = DistributedFileSystemWriter(at, pre_write_hooks=[may_write.wait] if rank == 1 else [])
    limit, asynchronous.WRITE_LIMIT_S = asynchronous.WRITE_LIMIT_S, 0.2
    try:
        async_save({f"of {rank}": torch.ones(2)}, storage_writer=writer)
        refused(maybe_finalize_async_calls, CheckpointError, "rank 1: ")
    finally:
        asynchronous.WRITE_LIMIT_S = limit
        may_write.set()
    assert maybe_finalize_async_calls() == []


class BrokenPlanner(DefaultSavePlanner):
    """Fails when it resolves an item's data."""

    def resolve_data(self, write_item):
        broken()


def test_a_copy_to_host_memory_that_fails_on_one_rank_fails_at_once_on_all(rank, size):
    at = folder("copy")
    planner = BrokenPlanner() if rank == 1 else None
    refused(
        lambda: async_save({f"of {rank}": torch.ones(2)}, checkpoint_id=at, planner=planner),
        CheckpointError,
        "rank 1: ",
    )
    assert maybe_finalize_async_calls() == []
    save({f"of {rank}": torch.ones(2)}, checkpoint_id=at)


def test_a_plan_that_fails_on_one_rank_fails_on_all(rank, size):
    class Broken:
        def state_dict(self):
            broken()

        def load_state_dict(self, _):
            broken()

    at = folder("plan")
    earlier = {"part": torch.full((1,), 4.0)}
    save(earlier, checkpoint_id=at)
    for words in ("rank 0: ", "failed; an earlier one at its path is unchanged"):
        refused(
            lambda: save({"part": Broken() if rank == 0 else torch.ones(1)}, checkpoint_id=at), CheckpointError, words
        )
    found = {"part": torch.zeros(1)}
    load(found, checkpoint_id=at)
    assert found["part"].item() == 4.0
