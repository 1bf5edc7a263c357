"""A keeper of checkpoints, with and without failures: 4 ranks on two hosts without a shared folder."""

import os
import shutil
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from checkpoint_states import WIDTH, assert_same, base, host_folder, make, refused, train, whole
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from clary.train import checkpoint
from clary.train.checkpoint import saving, staging, states
from clary.train.checkpoint.folders import order_of, scan
from clary.train.checkpoint.parts import write_part

LIMIT_S = 20


def open_keeper(name, rank, size, **options):
    return checkpoint.Keeper(host_folder(name, rank, size), limit_s=LIMIT_S, **options)


def numbered(step):
    return {"tensor": torch.full((1000,), float(step)), "step": step}


def restored(keeper):
    """Restore and return the step; check that every value belongs to it."""
    state = {"tensor": torch.zeros(1000), "step": -1}
    step = keeper.restore(state)
    if step is not None:
        assert state["step"] == step
        assert state["tensor"].eq(step).all(), (step, state["tensor"].unique())
    return step


def failing_write(folder, index, pieces):
    raise OSError("no space is left, said for this test")


def test_changes_after_the_call_of_save_are_not_saved(rank, size):
    keeper = open_keeper("later", rank, size)
    state = make("sharded", 1)
    train(state, 1)
    before = whole(state)
    keeper.save(5, state)
    train(state, 2)
    keeper.wait()
    assert keeper.restore(state) == 5
    assert_same(whole(state), before)
    keeper.close()
    keeper.close()
    refused(lambda: keeper.save(6, state), ValueError, "is closed")


def test_copies_made_during_the_next_backward_pass_hold_the_saved_values(rank, size):
    states.LEAST_LATE_BYTES = 0  # the tests' models are small
    for kind in ("sharded", "replicated"):
        keeper = open_keeper(f"staging-{kind}", rank, size, async_staging=True)
        state = make(kind, 1)
        for step in range(3):
            train(state, 1)
            before = whole(state)
            keeper.save(step, state)
        train(state, 2)
        keeper.wait()
        assert keeper.restore(state) == 2
        assert_same(whole(state), before)
        keeper.close()


def test_a_tensor_changed_too_early_on_one_rank_loses_the_step_on_all(rank, size):
    states.LEAST_LATE_BYTES = 0
    keeper = open_keeper("staging-changed", rank, size, async_staging=True)
    state = make("sharded", 1)
    train(state, 1)
    keeper.save(1, state)
    keeper.wait()
    real = staging.torch._foreach_copy_

    def late_copy(targets, sources):
        time.sleep(0.5)
        real(targets, sources)

    staging.torch._foreach_copy_ = late_copy
    keeper.save(2, state)
    if rank == 1:
        state["model"].second.weight.to_local().data.mul_(3)
    refused(keeper.wait, checkpoint.CheckpointError, "rank 1: ", "step 2", "model/second.weight", "changed between")
    staging.torch._foreach_copy_ = real
    assert keeper.restore(state) == 1
    keeper.close()


def test_only_the_last_steps_are_kept_on_every_host(rank, size):
    keeper = open_keeper("keep", rank, size, keep=2)
    for step in (1, 2, 3, 4):
        keeper.save(step, numbered(step))
    assert restored(keeper) == 4
    dist.barrier()
    assert sorted(os.listdir(keeper.folder)) == ["step-000000000003", "step-000000000004"]
    # Step 9, which one host has lost, has the highest number, but does not displace the steps saved later.
    keeper.save(9, numbered(9))
    assert restored(keeper) == 9
    dist.barrier()
    if rank == 3:
        shutil.rmtree(keeper.folder / "step-000000000009")
    dist.barrier()
    assert restored(keeper) == 4
    for step in (5, 6):
        keeper.save(step, numbered(step))
    assert restored(keeper) == 6
    dist.barrier()
    assert sorted(os.listdir(keeper.folder)) == ["step-000000000005", "step-000000000006"]
    keeper.close()


def test_saving_a_step_again_replaces_it(rank, size):
    keeper = open_keeper("again", rank, size)
    for value in (1, 2):
        keeper.save(7, {"tensor": torch.full((3,), float(value))})
    keeper.wait()
    found = {"tensor": torch.zeros(3)}
    assert keeper.restore(found) == 7
    assert found["tensor"].tolist() == [2.0] * 3
    keeper.close()


def test_a_failed_write_of_one_rank_raises_in_the_next_call_on_all_ranks(rank, size):
    keeper = open_keeper("failed", rank, size)
    keeper.save(1, numbered(1))
    keeper.wait()
    for call in ("save", "wait"):
        saving.write_part = failing_write if rank == 2 else write_part
        keeper.save(2, numbered(2))
        act = (lambda: keeper.save(3, numbered(3))) if call == "save" else keeper.wait
        told = refused(act, checkpoint.CheckpointError, "rank 2: ", "step 2", "no space is left")
        assert str(keeper.folder.parent) in told
        saving.write_part = write_part
        assert restored(keeper) == 1
        dist.barrier()
        assert os.listdir(keeper.folder) == ["step-000000000001"]
    keeper.save(4, numbered(4))
    keeper.wait()
    assert restored(keeper) == 4
    keeper.close()


def test_a_state_that_cannot_be_saved_raises_on_all_ranks_before_any_write(rank, size):
    keeper = open_keeper("refused", rank, size)
    odd = (lambda: None) if rank == 0 else 1
    words = "was not copied" if rank == 0 else "another rank could not save"
    refused(lambda: keeper.save(1, {"odd": odd}), checkpoint.CheckpointError, words)
    refused(lambda: keeper.save(rank, numbered(1)), checkpoint.CheckpointError, "others steps 0 to 3")
    for state, step in (({"a/b": 1}, 1), ({"=": 1}, 1), ({"a": 1}, -1)):
        refused(lambda state=state, step=step: keeper.save(step, state), ValueError, "expected")
    keeper.save(2, numbered(2))
    keeper.wait()
    assert restored(keeper) == 2
    keeper.close()


def test_the_error_names_the_part_of_a_state_that_does_not_fit(rank, size):
    keeper = open_keeper("fit", rank, size)
    state = make("replicated", 1)
    train(state, 1)
    keeper.save(1, {"model": state["model"], "optimizer": state["optimizer"]})
    keeper.wait()
    error = checkpoint.CheckpointError
    refused(lambda: keeper.restore({"modle": torch.nn.Linear(2, 2), "loader": {}}), error, "'loader'", "model")
    refused(lambda: keeper.restore({"model": torch.nn.Linear(2, 2)}), error, "lacks 2 of its names", "model/bias")
    other = make("plain", 3)
    other["model"].second = torch.nn.Linear(5, 3, bias=False)
    refused(lambda: keeper.restore({"model": other["model"]}), error, "model/second.weight", "[3, 14]")
    alone = make("sharded", 3)
    assert keeper.restore({"model": alone["model"]}) == 1
    found, saved = whole(alone), whole(state)
    for key in saved:
        if key.startswith("model "):
            assert torch.equal(found[key], saved[key]), key
    keeper.close()


def test_values_of_the_lowest_rank_are_restored_unless_names_differ_by_rank(rank, size):
    keeper = open_keeper("values", rank, size)
    keeper.save(1, {"both": {"rank": rank, "tensor": torch.tensor([rank])}, f"of {rank}": torch.tensor([rank, 7])})
    keeper.wait()
    found = {"both": {}, f"of {rank}": None}
    assert keeper.restore(found) == 1
    assert found["both"] == {"rank": 0, "tensor": torch.tensor([0])}
    assert found[f"of {rank}"].tolist() == [rank, 7]
    keeper.close()


def test_steps_that_are_numbered_anew_are_the_newest_though_one_host_lost_the_others(rank, size):
    keeper = open_keeper("anew", rank, size, keep=3)
    for step in (8, 9):
        keeper.save(step, {"step": step})
    keeper.close()
    dist.barrier()
    if rank == 0:
        shutil.rmtree(keeper.folder)
    dist.barrier()
    keeper = open_keeper("anew", rank, size, keep=3)
    keeper.save(1, numbered(1))
    keeper.wait()
    saves = {found.path.name: found.save for found in scan(keeper.folder)}
    assert [order_of(save) for name, save in sorted(saves.items())] == ([3] if rank < 2 else [3, 1, 2])
    assert restored(keeper) == 1
    keeper.rejoin()
    keeper.save(0, numbered(0))
    assert restored(keeper) == 0
    keeper.close()


def test_an_incomplete_step_is_skipped(rank, size):
    keeper = open_keeper("lack", rank, size, keep=3)
    for step in (1, 2, 3):
        keeper.save(step, numbered(step))
    keeper.wait()
    dist.barrier()
    if rank == 3:
        (keeper.folder / "step-000000000003" / "part-00002.json").unlink()
        with (keeper.folder / "step-000000000002" / "part-00003.bin").open("ab") as file:
            file.write(b"x")
    dist.barrier()
    assert restored(keeper) == 1
    keeper.close()


def test_a_whole_step_still_hidden_on_one_host_is_restored_and_renamed(rank, size):
    keeper = open_keeper("between", rank, size)
    for step in (1, 2):
        keeper.save(step, numbered(step))
    keeper.wait()
    dist.barrier()
    shown = keeper.folder / "step-000000000002"
    if rank == 2:
        save = next(found.save for found in scan(keeper.folder) if found.path == shown)
        (shown / "checkpoint.json").unlink()
        shown.rename(keeper.folder / f".step-000000000002.{save}")
    dist.barrier()
    assert restored(keeper) == 2
    dist.barrier()
    assert (shown / "checkpoint.json").exists()
    keeper.close()


def test_snapshots_reuse_memory_and_the_plan(rank, size):
    keeper = open_keeper("again-memory", rank, size)
    state = make("sharded", 1)
    train(state, 1)
    keeper.save(1, state)
    plan, address = keeper._plan, keeper._snapshot.tensors.data_ptr()
    train(state, 1)
    keeper.save(2, state)
    assert keeper._plan is plan
    assert keeper._snapshot.tensors.data_ptr() == address
    state["more"] = torch.ones(3) if rank == 0 else None  # a change on one rank makes a new plan on all
    keeper.save(3, state)
    assert keeper._plan is not plan
    keeper.wait()
    keeper.close()


def test_tensor_parallel_states_restore_with_other_numbers_of_shards(rank, size):
    def cut(seed, dimensions):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.Linear(8, 12))
        mesh = init_device_mesh("cpu", dimensions, mesh_dim_names=("dp", "tp"))
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
        if dimensions[0] > 1:
            fully_shard(model, mesh=mesh["dp"])
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(2, 12)).sum().backward()
        optimizer.step()
        return {"model": model, "optimizer": optimizer}

    def values(state):
        names = {parameter: name for name, parameter in state["model"].named_parameters()}
        found = {names[one]: one.full_tensor().detach() for one in names}
        moments = state["optimizer"].state
        return found | {f"{names[one]} moment": moments[one]["exp_avg"].full_tensor() for one in names}

    keeper = open_keeper("tensor", rank, size)
    for step, (before, after) in enumerate((((2, 2), (1, 4)), ((1, 4), (2, 2)))):
        saved, state = cut(1 + step, before), cut(7, after)
        keeper.save(step, saved)
        keeper.wait()
        assert keeper.restore(state) == step
        assert_same(values(state), values(saved))
    keeper.close()


def test_fsdp1_is_refused_by_name(rank, size):
    keeper = open_keeper("first-form", rank, size)
    model = FullyShardedDataParallel(torch.nn.Linear(4, 4), device_id=torch.device("cpu"))
    refused(lambda: keeper.save(1, {"model": model}), ValueError, "FullyShardedDataParallel", "fully_shard")
    keeper.close()


def test_a_stop_notice_on_one_host_reaches_all_ranks_at_the_same_call(rank, size):
    keeper = open_keeper("stop", rank, size)
    notice = base() / f"notice-{rank}"
    os.environ["CLARY_STOP_NOTICE"] = str(notice)
    try:
        assert not keeper.should_stop()
        dist.barrier()
        if rank == 3:
            notice.write_text("{}")
        assert keeper.should_stop()
    finally:
        del os.environ["CLARY_STOP_NOTICE"]
    keeper.close()


def train_until_stopped(name, rank, size, *, first_seed, notice_at):
    """Train at most 8 steps as in docs/training-checkpoints.md; return the state and the numbers of the steps."""
    notice = base() / f"notice-{name}-{notice_at}"
    os.environ["CLARY_STOP_NOTICE"] = str(notice)
    state = make("sharded", first_seed)
    keeper = open_keeper(name, rank, size)
    found = keeper.restore(state)
    steps = []
    for step in range(0 if found is None else found + 1, 8):
        torch.manual_seed(step)
        state["optimizer"].zero_grad()
        state["model"](torch.randn(8, WIDTH)).square().mean().backward()
        state["optimizer"].step()
        state["counter"].count += 1
        steps.append(step)
        if step == notice_at and rank == 1:
            notice.write_text("{}")
        if keeper.should_stop() or step == 7:
            keeper.save(step, state)
            break
    keeper.close()
    del os.environ["CLARY_STOP_NOTICE"]
    return state, steps


def test_a_stopped_program_resumes_with_the_same_result_as_an_unbroken_one(rank, size):
    unbroken, steps = train_until_stopped("unbroken", rank, size, first_seed=1, notice_at=None)
    assert steps == list(range(8))
    _, before = train_until_stopped("stopped", rank, size, first_seed=1, notice_at=3)
    assert before[-1] in (3, 4)  # a rank may check before the notice exists; all leave at the same step
    state, after = train_until_stopped("stopped", rank, size, first_seed=2, notice_at=None)
    assert before + after == steps
    assert_same(whole(state), whole(unbroken))


def begin_anew(name, rank, size):
    """Leave the default group and form a new one, as ranks do after a host was replaced."""
    dist.barrier()
    dist.destroy_process_group()
    store = dist.FileStore(str(base() / f"store-{name}"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=LIMIT_S))


def test_a_replaced_host_restores_its_parts_from_memory_of_other_hosts(rank, size):
    keeper = open_keeper("peers", rank, size, peers=True)
    state = make("sharded", 1)
    train(state, 1)
    saved = whole(state)
    keeper.save(1, state)
    keeper.wait()
    begin_anew("peers", rank, size)
    if rank in (0, 2):
        shutil.rmtree(keeper.folder)  # no disk holds a step: the restored step was in memory
    dist.barrier()
    if rank >= 2:
        keeper = open_keeper("peers", rank, size, peers=True)
    else:
        keeper.rejoin()
    state = make("sharded", 2)  # sharded over the new group
    assert keeper.restore(state) == 1
    assert_same(whole(state), saved)
    train(state, 1)
    saved = whole(state)
    keeper.save(2, state)  # saves continue, with copies in memory
    keeper.wait()
    assert sorted(one.index.step for one in keeper._memory.memories()) == [2]
    assert keeper.restore(state) == 2
    assert_same(whole(state), saved)
    keeper.close()


def test_a_newer_step_in_memory_is_preferred_to_an_older_one_on_disk(rank, size):
    keeper = open_keeper("newer", rank, size, peers=True)
    keeper.save(1, numbered(1))
    keeper.wait()
    saving.write_part = failing_write if rank == 1 else write_part
    keeper.save(2, numbered(2))
    refused(keeper.wait, checkpoint.CheckpointError, "rank 1: ", "step 2")
    saving.write_part = write_part
    begin_anew("newer", rank, size)
    if rank >= 2:
        keeper = open_keeper("newer", rank, size, peers=True)
    else:
        keeper.rejoin()
    assert restored(keeper) == 2
    keeper.close()


def test_failed_copies_to_memory_lose_no_step(rank, size):
    keeper = open_keeper("no-copies", rank, size, peers=True)
    exchange = keeper._memory.exchange

    def failing_exchange(ranks, snapshot, partners):
        if rank == 1:
            raise RuntimeError("no memory is left, said for this test")
        ranks.group = keeper._company.copiers.group
        raise RuntimeError("a peer does not answer, said for this test")

    keeper._memory.exchange = failing_exchange
    keeper.save(1, numbered(1))
    keeper.wait()
    keeper._memory.exchange = exchange
    keeper.save(2, numbered(2))
    keeper.wait()
    assert keeper._company.copiers is None
    assert restored(keeper) == 2
    keeper.close()


def test_one_folder_that_all_hosts_see_has_one_leader(rank, size):
    dist.barrier()
    (base() / "shared").mkdir(exist_ok=True)
    (base() / "shared" / ".rank-0ff-0").touch()  # left by a rank that was killed while joining
    dist.barrier()
    keeper = checkpoint.Keeper(base() / "shared", limit_s=LIMIT_S)
    assert {place.leader for place in keeper._company.places} == {0}
    keeper.save(1, numbered(1))
    keeper.close()
    keeper = checkpoint.Keeper(base() / "shared", limit_s=LIMIT_S)
    assert restored(keeper) == 1
    keeper.close()
    dist.barrier()
    assert os.listdir(keeper.folder) == ["step-000000000001"]
    assert len(list(Path(keeper.folder / "step-000000000001").glob("part-*.bin"))) == size


def test_a_save_returns_before_its_bytes_are_on_the_disk(rank, size):
    keeper = open_keeper("async", rank, size)
    keeper.save(1, numbered(1))
    keeper.wait()
    may_write = base() / "may-write"

    def slow_write(folder, index, pieces):
        deadline_s = time.monotonic() + LIMIT_S
        while not may_write.exists() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        write_part(folder, index, pieces)

    saving.write_part = slow_write
    try:
        keeper.save(2, numbered(2))
        dist.barrier()
        assert not (keeper.folder / "step-000000000002").exists()
        if rank == 0:
            may_write.touch()
        keeper.wait()
    finally:
        saving.write_part = write_part
    assert restored(keeper) == 2
    keeper.close()
