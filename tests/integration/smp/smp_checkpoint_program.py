"""Checkpoints in shared and separate folders, and with a file missing; run by test_smp_checkpoint on two ranks."""

from dataclasses import replace
from pathlib import Path

import smdistributed.modelparallel.torch as smp
from smdistributed.modelparallel.torch.exceptions import CheckpointError
from smp_core_program import failure_of, shared_folder, start, train, wrapped
from smp_models import SharedPerceptron

from clary.train.parallel import runtime


def trained(**config):
    start(**config)
    model, optimizer = wrapped(SharedPerceptron)
    train(model, optimizer, SharedPerceptron, (0,))
    return model, optimizer


def test_hosts_may_share_a_folder_or_have_their_own(rank, size):
    for folder in (shared_folder(rank), Path(shared_folder(rank)) / str(rank)):
        model, optimizer = trained(partitions=2)
        # as if each rank ran on a host of its own
        runtime.current().place = replace(runtime.current().place, local_rank=0)
        is_alone = Path(folder).name == str(rank)
        for number in range(4):
            smp.save_checkpoint(
                str(folder), f"step_{number}", model=model, optimizer=optimizer, num_kept_partial_checkpoints=2
            )
            smp.barrier()
            found = sorted(one.name for one in Path(folder).iterdir())
            expected = ["newest", *(f"step_{one}_partial" for one in range(max(0, number - 1), number + 1))]
            assert found == expected, found
            names = {one.name for one in (Path(folder) / f"step_{number}_partial").iterdir()}
            assert len(names) == (4 if is_alone else 6), names
        model, optimizer = trained(partitions=2)
        runtime.current().place = replace(runtime.current().place, local_rank=0)
        smp.resume_from_checkpoint(str(folder))


def test_loading_at_other_degrees_without_all_optimizer_files_loads_nothing(rank, size):
    folder = shared_folder(rank)
    model, optimizer = trained(partitions=2)
    smp.save_checkpoint(folder, "tag", model=model, optimizer=optimizer)
    if rank == 0:
        (Path(folder) / "tag_partial/optimizer_1.pt").unlink()
    start(ddp=True)
    model, _ = wrapped(SharedPerceptron)
    before = model.state_dict()
    error = failure_of(lambda: smp.resume_from_checkpoint(folder, "tag"))
    assert isinstance(error, CheckpointError), repr(error)
    assert "has 1 of 2 files optimizer_*.pt" in str(error)
    for name, value in model.state_dict().items():
        assert value.equal(before[name]), name
    smp.resume_from_checkpoint(folder, "tag", load_optimizer=False)
