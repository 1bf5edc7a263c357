"""Checkpoints in shared and separate folders, and with a file missing; run by test_smp_checkpoint on two ranks."""

import contextlib
import logging
from dataclasses import replace
from functools import partial
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


def test_a_resumed_pipeline_exports_what_it_loaded_before_its_first_step(rank, size):
    """A job that restarts after its last epoch runs no step before it exports the model."""
    folder = shared_folder(rank)
    for is_half in (False, True):
        model, optimizer = trained(partitions=2, fp16=is_half)
        smp.save_checkpoint(folder, "part", model=model, optimizer=optimizer)
        smp.save_checkpoint(folder, "whole", partial=False)
        expected, of_optimizer = model.state_dict(), optimizer.state_dict()
        for tag, is_partial in (("part", True), ("whole", False)):
            start(partitions=2, fp16=is_half)
            model, optimizer = wrapped(SharedPerceptron, lr=0.01)
            smp.resume_from_checkpoint(folder, tag, partial=is_partial)
            smp.save_checkpoint(folder, "export", partial=False)
            exported = torch.load(Path(folder) / "export", weights_only=True)
            found = model.state_dict()
            assert set(found) == set(exported) == set(expected)
            for name, value in expected.items():
                assert found[name].dtype == value.dtype, (tag, name)
                assert torch.equal(found[name], value), (tag, name)
                assert torch.equal(exported[name], value), (tag, name)
            assert bool(model.state_dict(gather_to_rank0=True)) == (rank == 0)
            if is_partial:
                torch.testing.assert_close(optimizer.state_dict(), of_optimizer, atol=0.0, rtol=0.0)
            train(model, optimizer, SharedPerceptron, (1,))
        start(partitions=2, fp16=is_half)
        model, optimizer = wrapped(SharedPerceptron)
        optimizer.load_state_dict(of_optimizer)
        torch.testing.assert_close(optimizer.state_dict(), of_optimizer, atol=0.0, rtol=0.0)


def test_names_that_a_pipeline_cannot_load_are_not_exported_before_its_first_step(rank, size):
    start(partitions=2)
    model, _ = wrapped(SharedPerceptron)
    whole = make(SharedPerceptron).state_dict()
    first, *others = whole
    model.load_state_dict({name: whole[name] + 1 for name in others}, strict=False)
    found = model.state_dict()
    assert torch.equal(found[first], whole[first])
    assert all(torch.equal(found[name], whole[name] + 1) for name in others if whole[name] is not whole[first])
    model.load_state_dict({**whole, "other": torch.ones(2)})
    error = failure_of(model.state_dict)
    assert "missing [], unexpected ['other']" in str(error), error


def test_spread_state_that_no_rank_has_placed_is_not_exported(rank, size):
    folder = shared_folder(rank)
    model, optimizer = trained(partitions=2, ddp=True, shard_optimizer_state=True)
    smp.save_checkpoint(folder, "tag", model=model, optimizer=optimizer)
    start(partitions=2, ddp=True, shard_optimizer_state=True)
    model, optimizer = wrapped(SharedPerceptron)
    smp.resume_from_checkpoint(folder, "tag")
    error = failure_of(optimizer.state_dict)
    assert "the first step places it" in str(error), error
    train(model, optimizer, SharedPerceptron, (1,))


def test_options_of_groups_are_loaded_at_once_and_may_then_be_changed(rank, size):
    for keys in ({"partitions": 2}, {"partitions": 2, "ddp": True, "shard_optimizer_state": True}):
        folder = shared_folder(rank)
        model, optimizer = trained(**keys)
        smp.save_checkpoint(folder, "tag", model=model, optimizer=optimizer)
        start(**keys)
        model, optimizer = wrapped(SharedPerceptron, lr=0.5)
        smp.resume_from_checkpoint(folder, "tag")
        assert optimizer.param_groups[0]["lr"] == 0.05, (keys, optimizer.param_groups[0])
        optimizer.param_groups[0]["lr"] = 0.0
        before = model.state_dict()
        train(model, optimizer, SharedPerceptron, (1,))
        assert optimizer.param_groups[0]["lr"] == 0.0, (keys, optimizer.param_groups[0])
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name]), (keys, name)
        assert {float(one["step"]) for one in optimizer.state.values()} == {2.0}, keys


def test_a_group_may_be_added_between_a_resume_and_the_first_step(rank, size):
    folder, saved = shared_folder(rank), None
    for is_loaded in (False, True):
        start(partitions=2)
        model = smp.DistributedModel(make(SharedPerceptron))
        *first, last = model.parameters()
        optimizer = smp.DistributedOptimizer(torch.optim.AdamW(first, lr=0.05))
        if is_loaded:
            smp.resume_from_checkpoint(folder, "tag")
            optimizer.add_param_group({"params": [last], "lr": 0.25})
            failure = failure_of(partial(optimizer.load_state_dict, saved))
            assert "has 1 groups of parameters; expected 2" in str(failure), failure
        train(model, optimizer, SharedPerceptron, (0,))
        if not is_loaded:
            smp.save_checkpoint(folder, "tag", model=model, optimizer=optimizer)
            saved = optimizer.state_dict()
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.25]
    counts = {float(one["step"]) for one in optimizer.state_dict()["state"].values()}
    assert counts == {1.0, 2.0}, counts


def test_all_hosts_get_the_user_content_of_rank_0(rank, size):
    for folder in (shared_folder(rank), Path(shared_folder(rank)) / str(rank)):
        model, optimizer = trained(partitions=2)
        # as if each rank ran on a host of its own
        runtime.current().place = replace(runtime.current().place, local_rank=0)
        content = {"epoch": 3, "order": torch.arange(4)} if rank == 0 else None
        smp.save_checkpoint(str(folder), "tag", model=model, optimizer=optimizer, user_content=content)
        found = smp.resume_from_checkpoint(str(folder), "tag", load_optimizer=False)
        assert found is not None, folder
        assert found["epoch"] == 3
        assert found["order"].tolist() == [0, 1, 2, 3]


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
