"""Checkpoints in shared and separate folders, and with a file missing; run by test_smp_checkpoint on two ranks."""

import contextlib
import logging
from dataclasses import replace
from pathlib import Path

import smdistributed.modelparallel.torch as smp
import torch
from smdistributed.modelparallel.torch.exceptions import CheckpointError
from smp_core_program import failure_of, shared_folder, start, train, wrapped
from smp_models import SharedPerceptron, make

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


def test_a_resume_may_leave_out_the_sharded_state_of_the_optimizer(rank, size):
    keys = {"ddp": True, "sharded_data_parallel_degree": 2, "sdp_param_persistence_threshold": 10}
    for is_half in (False, True):
        folder = shared_folder(rank)
        start(fp16=is_half, **keys)
        model = smp.DistributedModel(make(SharedPerceptron))
        optimizer = sharded_optimizer(model, init_scale=256.0)
        train(model, optimizer, SharedPerceptron, (0,))
        scale, masters = optimizer.loss_scale, [flat.master_S.detach().clone() for flat in model.sharded.flats]
        smp.save_checkpoint(folder, "tag", model=model, optimizer=optimizer)
        for loads_all in (False, True):
            start(fp16=is_half, **keys)
            model = smp.DistributedModel(make(SharedPerceptron))
            optimizer = sharded_optimizer(model, init_scale=2.0)
            smp.resume_from_checkpoint(folder, "tag", load_sharded_optimizer_state=loads_all)
            assert bool(optimizer.state) == loads_all, (is_half, loads_all, optimizer.state)
            assert optimizer.loss_scale == scale, (is_half, loads_all, optimizer.loss_scale)
            assert all(flat.master_S.equal(one) for flat, one in zip(model.sharded.flats, masters, strict=True))
            train(model, optimizer, SharedPerceptron, (1,))


def sharded_optimizer(model, init_scale):
    adam = torch.optim.AdamW(model.parameters(), lr=0.05)
    return smp.DistributedOptimizer(adam, dynamic_loss_scale=True, dynamic_loss_args={"init_scale": init_scale})


def test_without_shards_the_whole_state_is_loaded_and_a_line_says_so(rank, size):
    folder = shared_folder(rank)
    model, optimizer = trained(partitions=2)
    smp.save_checkpoint(folder, "tag", model=model, optimizer=optimizer)
    start(partitions=2)
    model, optimizer = wrapped(SharedPerceptron)
    with noted_lines("clary.smp") as lines:
        smp.resume_from_checkpoint(folder, "tag", load_sharded_optimizer_state=False)
    assert any("without sharded_data_parallel_degree" in line for line in lines), lines
    train(model, optimizer, SharedPerceptron, (1,))
    counts = [float(one["step"]) for one in optimizer.state.values()]
    assert counts, counts
    assert set(counts) == {2.0}, counts


@contextlib.contextmanager
def noted_lines(name):
    lines, handler = [], logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger(name).addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger(name).removeHandler(handler)
