"""Training on two ranks with `smdistributed.modelparallel.torch`; run by test_smp_core."""

import os
import tempfile
from pathlib import Path

import smdistributed.modelparallel.torch as smp
import torch
import torch.distributed as dist
from smdistributed.modelparallel.torch.exceptions import CheckpointError, ParallelError, RemoteFailure
from smp_models import Convolutions, Named, SharedPerceptron, Winding, batch_of, loss_of, make, train_alone


@smp.step  # before any model exists, as in Hugging Face's trainer
def train_step(model, inputs, targets):
    output = model(inputs)
    loss = loss_of(output, targets)
    model.backward(loss)
    return loss


def failure_of(call):
    """Return the exception of a call, or None if it raises nothing."""
    try:
        call()
    except (RuntimeError, ValueError, KeyError) as error:
        return error
    return None


def start(**config):
    smp.shutdown()
    smp.init(config)


def wrapped(kind, lr=0.05, **options):
    model = smp.DistributedModel(make(kind), **options)
    return model, smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=lr))


def train(model, optimizer, kind, steps=(0, 1, 2)):
    losses = []
    for number in steps:
        inputs, targets = batch_of(kind, number)
        share = len(inputs) // smp.dp_size()
        own = slice(smp.dp_rank() * share, (smp.dp_rank() + 1) * share)
        optimizer.zero_grad()
        loss = train_step(model, inputs[own], targets[own]).reduce_mean().detach()
        if smp.dp_size() > 1:
            dist.all_reduce(loss, group=smp.get_dp_process_group())
            loss /= smp.dp_size()
        optimizer.step()
        losses.append(loss.item())
    return losses


def assert_like_alone(kind, num_microbatches, **config):
    start(microbatches=num_microbatches, **config)
    model, optimizer = wrapped(kind)
    losses = train(model, optimizer, kind)
    expected, _, state = train_alone(kind, num_microbatches * smp.dp_size())
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), atol=1e-5, rtol=1e-4)
    gathered = model.state_dict()
    assert set(gathered) == set(state)
    for name, value in state.items():
        torch.testing.assert_close(
            gathered[name], value, atol=2e-5, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )
    return model


def test_pipelines_train_as_one_process_does(rank, size):
    for kind in (SharedPerceptron, Winding, Convolutions):
        for pipeline in ("simple", "interleaved"):
            model = assert_like_alone(kind, 4, partitions=2, pipeline=pipeline)
            assert 0 < len(list(model.local_parameters())) < len(list(model.parameters()))


def test_one_active_microbatch_at_a_time_is_enough(rank, size):
    assert_like_alone(Winding, 4, partitions=2, active_microbatches=1)


def test_replicas_train_as_one_process_does(rank, size):
    assert_like_alone(SharedPerceptron, 2, ddp=True)


def test_a_partition_by_hand_is_kept(rank, size):
    start(partitions=2, microbatches=2, auto_partition=False, default_partition=0)
    torch.manual_seed(7)
    module = Winding()
    smp.set_partition(module.block, 1)
    with smp.partition(1):
        module.odd = torch.nn.Linear(16, 16)
    model = smp.DistributedModel(module)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    train(model, optimizer, Winding)
    placed = {name for name, owner in model.owners.items() if owner == 1}
    assert placed == {"block", "block.0", "block.1", "block.2", "odd"}, placed


def test_a_part_beyond_the_last_is_refused(rank, size):
    start(partitions=2, auto_partition=False, default_partition=0)
    module = make(SharedPerceptron)
    smp.set_partition(module.head, 2)
    model = smp.DistributedModel(module)
    error = failure_of(lambda: train_step(model, *batch_of(SharedPerceptron, 0)))
    assert isinstance(error, ValueError)
    assert "head is placed on partition 2; there are 2" in str(error)


def test_a_step_returns_results_of_all_microbatches_on_every_rank(rank, size):
    start(partitions=2, microbatches=4)
    model, _ = wrapped(SharedPerceptron)

    @smp.step(non_split_inputs=["weights"], detach_outputs=True)
    def evaluate(model, inputs, targets, weights):
        with torch.no_grad():
            output = model(inputs)
            assert weights.shape == (3,)
            loss = loss_of(output, targets)
            return Named(loss, {"count": len(inputs), "output": output})

    inputs, targets = batch_of(SharedPerceptron, 0)
    found = evaluate(model, inputs, targets, torch.zeros(3))
    assert isinstance(found, Named)
    assert found.correct["count"] == [2, 2, 2, 2]
    expected = make(SharedPerceptron)(inputs)
    torch.testing.assert_close(found.correct["output"].concat(), expected.detach())
    torch.testing.assert_close(found.loss.reduce_mean(), loss_of(expected, targets).detach())
    assert all(not one.requires_grad for one in found.loss.outputs)


def test_loss_backward_may_be_called_without_a_pipeline(rank, size):
    start(microbatches=4, ddp=True)
    model, _ = wrapped(SharedPerceptron)

    @smp.step
    def own_step(model, inputs, targets):
        loss = loss_of(model(inputs), targets)
        loss.backward()
        return loss

    inputs, targets = batch_of(SharedPerceptron, 0)
    own_step(model, inputs, targets)
    _, grads, _ = train_alone(SharedPerceptron, 4, num_steps=1)
    for name, parameter in model.local_named_parameters():
        torch.testing.assert_close(parameter.grad, grads[name], atol=1e-6, rtol=1e-4)


def test_gradients_are_reduced_without_smp_step(rank, size):
    start(ddp=True)
    model, optimizer = wrapped(SharedPerceptron)
    inputs, targets = batch_of(SharedPerceptron, 0)
    own = slice(rank * 4, rank * 4 + 4)
    loss_of(model(inputs[own]), targets[own]).backward()
    optimizer.step()
    _, _, state = train_alone(SharedPerceptron, 2, num_steps=1)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, state[name], atol=1e-5, rtol=1e-4)


def test_gradients_add_up_over_backward_passes_before_they_are_reduced(rank, size):
    start(ddp=True)
    model, optimizer = wrapped(SharedPerceptron, backward_passes_per_step=2)
    optimizer.zero_grad()
    for number in range(2):
        inputs, targets = batch_of(SharedPerceptron, number)
        own = slice(rank * 4, rank * 4 + 4)
        train_step(model, inputs[own], targets[own])
    alone = make(SharedPerceptron)
    for number in range(2):
        inputs, targets = batch_of(SharedPerceptron, number)
        loss_of(alone(inputs), targets).backward()
    for (name, parameter), expected in zip(model.local_named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad, atol=1e-6, rtol=1e-4, msg=name)


def test_python_objects_are_sent_broadcast_and_gathered(rank, size):
    start(partitions=2)
    if smp.rank() == 0:
        smp.broadcast({"a": torch.arange(3)}, smp.WORLD)
        smp.send([1, "two"], 1, smp.RankType.PP_RANK)
        assert smp.recv_from(1, smp.RankType.WORLD_RANK) == (3,)
    else:
        assert smp.recv_from(0, smp.RankType.WORLD_RANK)["a"].tolist() == [0, 1, 2]
        assert smp.recv_from(0, smp.RankType.PP_RANK) == [1, "two"]
        smp.send((3,), 0, smp.RankType.WORLD_RANK)
    assert smp.allgather(smp.rank() * 10, smp.CommGroup.MP_GROUP) == [0, 10]
    assert smp.allgather("mine", smp.DP_GROUP) == ["mine"]
    smp.barrier()
    smp.mp_barrier()
    smp.dp_barrier()


def test_a_failure_on_another_rank_is_raised_with_its_message_rank_and_microbatch(rank, size):
    class Fails(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(8))

        def forward(self, x):
            if x.shape[0] == 2 and float(x[0, 0]) == 5.0:
                raise ArithmeticError("this batch is not to my taste")
            return x * self.weight

    start(partitions=2, microbatches=4, auto_partition=False, default_partition=0)
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Identity())
    module.add_module("fails", Fails())
    smp.set_partition(module.fails, 1)
    torch.nn.init.eye_(module[0].weight)
    torch.nn.init.zeros_(module[0].bias)
    model = smp.DistributedModel(module)

    @smp.step
    def run(model, x):
        loss = model(x).sum()
        model.backward(loss)
        return loss

    run(model, torch.zeros(8, 8))
    batch = torch.zeros(8, 8)
    batch[4] = 5.0
    for _ in range(2):  # the second call fails at once: the failure is final
        error = failure_of(lambda: run(model, batch))
        assert isinstance(error, RemoteFailure if rank == 0 else ParallelError), repr(error)
        words = str(error)
        assert "this batch is not to my taste" in words, words
        assert "rank 1 (pipeline rank 1)" in words, words
        assert "microbatch 2" in words, words


def test_a_function_that_fails_ends_the_step_on_all_ranks(rank, size):
    start(partitions=2, microbatches=2)
    model, _ = wrapped(SharedPerceptron)
    train_step(model, *batch_of(SharedPerceptron, 0))

    @smp.step
    def fails(model, inputs):
        model(inputs)
        raise KeyError("label")

    error = failure_of(lambda: fails(model, batch_of(SharedPerceptron, 0)[0]))
    assert isinstance(error, KeyError if rank == 0 else ParallelError), repr(error)
    assert rank == 0 or "KeyError: 'label'" in str(error)


def test_a_model_in_a_pipeline_can_only_be_called_inside_a_step(rank, size):
    start(partitions=2)
    model, _ = wrapped(SharedPerceptron)
    for call in (lambda: model(torch.zeros(2, 8)), lambda: model.backward(torch.zeros(()))):
        error = failure_of(call)
        assert isinstance(error, ParallelError)
        assert "smp.step" in str(error)


def shared_folder(rank):
    found = [tempfile.mkdtemp(prefix="clary-smp-") if rank == 0 else None]
    dist.broadcast_object_list(found)
    return found[0]


def test_training_resumes_from_partial_and_full_checkpoints(rank, size):
    # One active microbatch: with several, their order depends on when messages arrive, and the last bits of sums depend
    # on it.
    folder = shared_folder(rank)
    start(partitions=2, microbatches=2, active_microbatches=1)
    model, optimizer = wrapped(Winding)
    train(model, optimizer, Winding, (0, 1))
    smp.save_checkpoint(folder, "early", model=model, optimizer=optimizer, user_content={"step": 2})
    smp.save_checkpoint(folder, "whole.pt", partial=False, model=model, user_content={"step": 2})
    owners = model.owners
    expected = train(model, optimizer, Winding, (2, 3))
    names = sorted(one.name for one in (Path(folder) / "early_partial").iterdir())
    assert names == [
        "layout.json",
        "model_0.pt",
        "model_1.pt",
        "optimizer_0.pt",
        "optimizer_1.pt",
        "user_content.pt",
    ], names
    assert (Path(folder) / "newest").read_text() == "whole.pt"

    start(partitions=2, microbatches=2, active_microbatches=1)
    model, optimizer = wrapped(Winding)
    assert smp.resume_from_checkpoint(folder, "early")["step"] == 2
    assert train(model, optimizer, Winding, (2, 3)) == expected
    assert model.owners == owners

    start(ddp=True, microbatches=1)  # other degrees: two replicas, each half of the batch
    model, optimizer = wrapped(Winding)
    assert smp.resume_from_checkpoint(folder, "early")["step"] == 2
    again = train(model, optimizer, Winding, (2, 3))
    torch.testing.assert_close(torch.tensor(again), torch.tensor(expected), atol=1e-5, rtol=1e-4)

    start(partitions=2, microbatches=2, active_microbatches=1)
    model, optimizer = wrapped(Winding)
    assert smp.resume_from_checkpoint(folder)["step"] == 2  # the newest checkpoint: a full one with the model alone
    first = train(model, optimizer, Winding, (2,))
    assert abs(first[0] - expected[0]) < 1e-5


def test_files_of_two_saves_are_refused(rank, size):
    folder = shared_folder(rank)
    start(partitions=2)
    model, optimizer = wrapped(SharedPerceptron)
    train(model, optimizer, SharedPerceptron, (0,))
    smp.save_checkpoint(folder, "tag", model=model, optimizer=optimizer)
    if rank == 1:
        own = Path(folder) / "tag_partial/model_1.pt"
        before = own.read_bytes()
    smp.barrier()
    smp.save_checkpoint(folder, "tag", model=model, optimizer=optimizer)
    if rank == 1:
        own.write_bytes(before)  # as if rank 1 had been killed before it wrote
    smp.barrier()
    start(partitions=2)
    wrapped(SharedPerceptron)
    error = failure_of(lambda: smp.resume_from_checkpoint(folder, "tag"))
    assert isinstance(error, CheckpointError) == (rank == 1), repr(error)
    assert rank == 0 or "another save" in str(error)


def test_old_partial_checkpoints_are_pruned(rank, size):
    folder = shared_folder(rank)
    start(partitions=2)
    model, optimizer = wrapped(SharedPerceptron)
    train(model, optimizer, SharedPerceptron, (0,))
    for number in range(4):
        smp.save_checkpoint(folder, f"step_{number}", model=model, num_kept_partial_checkpoints=2)
    smp.barrier()
    kept = sorted(one.name for one in Path(folder).glob("*_partial"))
    assert kept == ["step_2_partial", "step_3_partial"], kept


def test_smp_save_writes_one_file_a_rank(rank, size):
    folder = shared_folder(rank)
    start(partitions=2)
    smp.save({"rank": rank}, os.path.join(folder, "object.pt"))
    smp.barrier()
    assert sorted(os.listdir(folder)) == ["object.pt_0", "object.pt_1"]
    assert smp.load(os.path.join(folder, "object.pt")) == {"rank": rank}


def test_half_precision_training_skips_steps_that_overflow(rank, size):
    for degrees in ({"partitions": 2}, {"ddp": True}):
        start(fp16=True, microbatches=2, **degrees)
        model = smp.DistributedModel(make(SharedPerceptron))
        optimizer = smp.DistributedOptimizer(
            torch.optim.AdamW(model.parameters(), lr=0.02),
            static_loss_scale=None,
            dynamic_loss_scale=True,
            dynamic_loss_args={"init_scale": 2**24, "scale_window": 100},
        )
        seen = []
        losses = []
        for number in range(30):
            inputs, targets = batch_of(SharedPerceptron, number % 2)
            optimizer.zero_grad()
            losses.append(train_step(model, inputs, targets).reduce_mean().item())
            optimizer.clip_master_grads(1.0)
            optimizer.step()
            seen.append(optimizer.overflow)
        assert seen[0], "a scale of 2**24 must overflow"
        assert not seen[-1]
        assert losses[-1] < losses[0] * 0.9, losses
        assert len(set(smp.allgather(optimizer.loss_scale, smp.WORLD))) == 1
        assert all(one.dtype == torch.float16 for one in model.local_parameters())


def test_a_scaler_skips_on_all_ranks_or_on_none(rank, size):
    start(partitions=2, microbatches=2)
    model, optimizer = wrapped(SharedPerceptron)
    scaler = smp.amp.GradScaler(init_scale=8.0)

    @smp.step
    def scaled(model, inputs, factor):
        loss = model(inputs).sum() * factor
        model.backward(scaler.scale(loss))
        return loss

    inputs = batch_of(SharedPerceptron, 0)[0]
    before = None
    for factor, is_skipped in ((1.0, False), (float("inf"), True)):
        optimizer.zero_grad()
        scaled(model, inputs, factor)
        before = [one.detach().clone() for one in model.local_parameters()]
        scaler.step(optimizer)
        scaler.update()
        same = all(torch.equal(a, b) for a, b in zip(before, model.local_parameters(), strict=True))
        assert same == is_skipped
    assert len(set(smp.allgather(scaler.get_scale(), smp.WORLD))) == 1
    assert scaler.get_scale() == 4.0


def test_a_schedule_of_learning_rates_and_hooks_know_the_wrapped_optimizer(rank, size):
    start(partitions=2)
    model, optimizer = wrapped(SharedPerceptron)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    seen = []
    model.register_post_partition_hook(lambda m, o: seen.append(("placed", m is model, o is optimizer)))
    handle = model.register_post_step_hook(lambda m, o: seen.append(("stepped", m is model, o is optimizer)))
    train(model, optimizer, SharedPerceptron, (0,))
    handle.remove()
    train(model, optimizer, SharedPerceptron, (1,))
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.025
    assert seen == [("placed", True, True), ("stepped", True, True)]
