"""A full disk on one of two hosts; CLARY_TEST_SMALL_DISK is a folder on that disk."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from checkpoint_states import base, refused

from clary.train import checkpoint

SMALL, LARGE = 50_000, 2_000_000  # numbers of 4 bytes; the disk holds 4 MiB


def test_a_full_disk_is_reported_to_all_ranks_and_loses_only_that_step(rank, size):
    folder = Path(os.environ["CLARY_TEST_SMALL_DISK"]) / "host-b" if rank else base() / "host-a"
    keeper = checkpoint.Keeper(folder, limit_s=20)

    def state(step, count):
        return {f"of {rank}": torch.full((count,), float(step))}

    keeper.save(1, state(1, SMALL))
    keeper.save(2, state(2, LARGE))
    told = refused(keeper.wait, checkpoint.CheckpointError, "rank 1: ", "step 2", "No space left")
    assert "rank 0: " not in told, told
    dist.barrier()
    assert os.listdir(folder) == ["step-000000000001"]
    found = state(0, SMALL)
    assert keeper.restore(found) == 1
    assert found[f"of {rank}"].eq(1).all()
    keeper.save(3, state(3, SMALL))  # a step that fits can be saved again
    keeper.wait()
    assert keeper.restore(found) == 3
    assert found[f"of {rank}"].eq(3).all()
    keeper.close()
