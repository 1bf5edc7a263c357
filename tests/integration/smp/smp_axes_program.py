"""Tensor groups, shards, replicas and memory options through SMP's API; run by test_smp_axes on 2 and 4 ranks."""

import os
import tempfile
from pathlib import Path

import smdistributed.modelparallel.torch as smp
import torch
import torch.distributed as dist
from smdistributed.modelparallel.torch.patches.checkpoint import checkpoint_sequential
from smp_core_program import failure_of, shared_folder, start, train, train_step
from smp_models import SharedPerceptron, Winding, batch_of, make, train_alone
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks


class Tall(nn.Module):
    """Linears and an embedding that SMP cuts over a tensor group, and layers that it cannot cut."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.table = nn.Embedding(6, 16)
        self.norm = nn.LayerNorm(16)
        self.middle = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        places = (x[:, 0].abs() * 2).long().clamp(max=5)
        hidden = self.norm(self.first(x) + self.table(places))
        return self.head(hidden + self.middle(hidden))


def make_tall(cut=True):
    torch.manual_seed(7)
    with smp.tensor_parallelism(enabled=cut):
        return Tall()


def share(kind, number):
    """Return this rank's share of a batch; ranks of one model copy get the same share if the batch is prescaled."""
    inputs, targets = batch_of(kind, number)
    prescaled = smp.state.cfg.prescaled_batch
    rank, size = (smp.rdp_rank(), smp.rdp_size()) if prescaled else (smp.dp_rank(), smp.dp_size())
    length = len(inputs) // size
    return inputs[rank * length : (rank + 1) * length], targets[rank * length : (rank + 1) * length]


def assert_trains_like_alone(model, optimizer, kind, num_microbatches, lr=0.05):
    before = model.state_dict() if model.partitioned else None
    losses = []
    for number in range(3):
        optimizer.zero_grad()
        loss = train_step(model, *share(kind, number)).reduce_mean().detach()
        dist.all_reduce(loss)
        losses.append(loss.item() / smp.size())
        optimizer.step()
    shares = smp.rdp_size() if smp.state.cfg.prescaled_batch else smp.dp_size()
    expected, _, state = train_alone(kind, num_microbatches * shares, lr=lr)
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), atol=1e-5, rtol=1e-4)
    gathered = model.state_dict()
    assert set(gathered) == set(state)
    for name, value in state.items():
        torch.testing.assert_close(
            gathered[name], value, atol=3e-5, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )
    return before


def cut_model(num_microbatches, **config):
    start(microbatches=num_microbatches, ddp=True, **config)
    model = smp.DistributedModel(make_tall())
    torch.manual_seed(7)
    model.load_state_dict(Tall().state_dict())  # modules that SMP replaces draw weights of their own
    return model, smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.05))


def test_a_tensor_group_trains_as_one_process_does(rank, size):
    for optimize in ("memory", "speed"):
        for prescaled in (False, True):
            model, optimizer = cut_model(2, tensor_parallel_degree=2, optimize=optimize, prescaled_batch=prescaled)
            assert model.module.first.weight.numel() == 8 * 16 // 2
            assert_trains_like_alone(model, optimizer, Tall, 2)


def test_a_hook_gets_what_all_replicas_hold_and_slices_are_averaged_without_it(rank, size):
    for keys in ({}, {"partitions": 2}) if size == 4 else ({},):
        model, optimizer = cut_model(2, tensor_parallel_degree=2, **keys)
        given = []

        def averaging(group, bucket, given=given):
            given.extend(id(one) for one in bucket.parameters())
            bucket.buffer().div_(smp.state.cfg.microbatches)
            return default_hooks.allreduce_hook(group, bucket)

        model.register_comm_hook(smp.get_dp_process_group(), averaging)
        assert_trains_like_alone(model, optimizer, Tall, 2)
        assert set(given) == {id(one) for _, one in model.default_reducer_named_parameters()}


def test_a_hook_counts_its_own_buckets_alone(rank, size):
    """PowerSGD starts at the end of its first reductions, which it knows by the last bucket."""
    start(microbatches=2, ddp=True, tensor_parallel_degree=2)
    model = smp.DistributedModel(make_tall(), bucket_cap_mb=0.0001)
    torch.manual_seed(7)
    model.load_state_dict(Tall().state_dict())  # modules that SMP replaces draw weights of their own
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.05))
    given = []

    def averaging(group, bucket):
        given.append((bucket.index(), bucket.is_last()))
        bucket.buffer().div_(smp.state.cfg.microbatches)
        return default_hooks.allreduce_hook(group, bucket)

    model.register_comm_hook(smp.get_dp_process_group(), averaging)
    assert_trains_like_alone(model, optimizer, Tall, 2)
    num_buckets = len(given) // 3  # of each of three steps
    assert num_buckets > 1
    assert given == [(index, index == num_buckets - 1) for index in range(num_buckets)] * 3, given


def test_a_tensor_group_in_a_pipeline_trains_as_one_process_does(rank, size):
    for pipeline in ("interleaved", "simple"):
        model, optimizer = cut_model(2, tensor_parallel_degree=2, partitions=2, pipeline=pipeline)
        assert_trains_like_alone(model, optimizer, Tall, 2)
        assert set(model.owners.values()) == {0, 1}


def test_a_transformer_of_tensor_groups_in_a_pipeline(rank, size):
    def build():
        torch.manual_seed(5)
        return smp.nn.DistributedTransformerLMHead(
            num_layers=2,
            num_attention_heads=2,
            attention_head_size=4,
            hidden_size=8,
            intermediate_size=16,
            vocab_size=20,
            num_positions=6,
            attention_dropout_prob=0.0,
            hidden_dropout_prob=0.0,
            causal_mask_size=6,
        )

    @smp.step
    def lm_step(model, ids):
        loss = model((ids, torch.zeros_like(ids), None, torch.arange(6).expand(len(ids), 6), ids))[0]
        model.backward(loss.mean())
        return loss.mean()

    losses = {}
    for parts in (1, 2):
        start(ddp=True, tensor_parallel_degree=2, partitions=parts, microbatches=2, prescaled_batch=True)
        model = smp.DistributedModel(build())
        optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.02))
        for number in range(3):
            ids = torch.randint(0, 20, (4, 6), generator=torch.Generator().manual_seed(number))
            optimizer.zero_grad()
            losses.setdefault(parts, []).append(lm_step(model, ids).reduce_mean().item())
            optimizer.step()
    assert set(model.owners.values()) == {0, 1}
    torch.testing.assert_close(torch.tensor(losses[1]), torch.tensor(losses[2]), atol=1e-5, rtol=1e-4)


def test_training_resumes_from_tensor_parallel_checkpoints(rank, size):
    folder = shared_folder(rank)
    model, optimizer = cut_model(1, tensor_parallel_degree=2)
    train_step(model, *share(Tall, 0))
    optimizer.step()
    smp.save_checkpoint(folder, "cut", model=model, optimizer=optimizer, user_content=[1])
    whole = model.state_dict()
    optimizer.zero_grad()
    train_step(model, *share(Tall, 1))
    optimizer.step()
    expected = model.state_dict()

    model, optimizer = cut_model(1, tensor_parallel_degree=2)
    assert smp.resume_from_checkpoint(folder, "cut") == [1]
    train_step(model, *share(Tall, 1))
    optimizer.step()
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected[name]), name

    start()  # each rank now has the whole model
    model = smp.DistributedModel(Tall())
    assert smp.resume_from_checkpoint(folder, "cut", load_optimizer=False) == [1]
    for name, value in model.state_dict().items():
        assert torch.equal(value, whole[name]), name


def test_sharded_data_parallelism_trains_as_one_process_does(rank, size):
    for degree in {2, size}:
        for kind in (SharedPerceptron, Winding):
            start(
                ddp=True,
                microbatches=1,
                sharded_data_parallel_degree=degree,
                sdp_param_persistence_threshold=10,
                sdp_gradient_clipping=1e9,
            )
            model = smp.DistributedModel(make(kind))
            optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.05))
            if kind is Winding:  # its path depends on the data: replicas must take the same path
                inputs, targets = batch_of(kind, 0)
                train_step(model, inputs, targets)
                optimizer.step()
                _, _, state = train_alone(kind, 1, num_steps=1)
                for name, value in model.state_dict().items():
                    torch.testing.assert_close(value, state[name], atol=1e-5, rtol=1e-4, msg=name)
            else:
                assert_trains_like_alone(model, optimizer, kind, 1)
            assert optimizer._global_grad_norm > 0


def test_shards_of_tensor_groups_train_as_one_process_does(rank, size):
    model, optimizer = cut_model(
        1,
        tensor_parallel_degree=2,
        prescaled_batch=True,
        sharded_data_parallel_degree=2,
        sdp_param_persistence_threshold=10,
        sdp_gradient_clipping=1e9,
    )
    assert_trains_like_alone(model, optimizer, Tall, 1)


def test_training_resumes_from_sharded_checkpoints_and_other_degrees_are_refused(rank, size):
    folder = shared_folder(rank)
    config = {"ddp": True, "sharded_data_parallel_degree": 2, "sdp_param_persistence_threshold": 10}

    def begin(**config):
        start(**config)
        model = smp.DistributedModel(make(SharedPerceptron))
        return model, smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.05))

    def go(model, optimizer, number):
        optimizer.zero_grad()
        train_step(model, *share(SharedPerceptron, number))
        optimizer.step()

    model, optimizer = begin(**config)
    go(model, optimizer, 0)
    smp.save_checkpoint(folder, "shards", model=model, optimizer=optimizer)
    smp.save_checkpoint(folder, "whole", partial=False, model=model)
    go(model, optimizer, 1)
    expected = model.state_dict()
    model, optimizer = begin(**config)
    smp.resume_from_checkpoint(folder, "shards")
    go(model, optimizer, 1)
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected[name]), name
    begin(ddp=True)
    error = failure_of(lambda: smp.resume_from_checkpoint(folder, "shards"))
    assert "can be loaded only with the same degrees" in str(error), repr(error)
    model, _ = begin(ddp=True)
    smp.resume_from_checkpoint(folder, "whole", partial=False)


def test_spread_optimizer_state_steps_as_one_process_does(rank, size):
    for extra in ({}, {"partitions": 2}):
        if size < 4 and extra:
            continue
        start(ddp=True, microbatches=2, shard_optimizer_state=True, **extra)
        model = smp.DistributedModel(make(SharedPerceptron))
        optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.05))
        losses = train(model, optimizer, SharedPerceptron)
        expected, _, _ = train_alone(SharedPerceptron, 2)
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), atol=1e-5, rtol=1e-4)
        counts = smp.allgather(len(optimizer.stepper.inner.state), smp.DP_GROUP)
        assert sum(counts) == len(list(model.local_parameters())), counts
        state = optimizer.local_state_dict()
        assert state["_smp_is_partial"]
        optimizer.load_state_dict(state)


def test_checkpointed_modules_on_any_rank_train_as_one_process_does(rank, size):
    for strategy in ("each", "contiguous", "group_2"):
        for extra in ({}, {"partitions": 2}):
            start(ddp=True, microbatches=2, active_microbatches=1, **extra)
            module = make(Winding)
            smp.set_activation_checkpointing(module.block, strategy=strategy)
            smp.set_activation_checkpointing(module.even)
            model = smp.DistributedModel(module)
            optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.05))
            assert_trains_like_alone(model, optimizer, Winding, 2)


def test_offloaded_activations_leave_no_files_behind(rank, size):
    os.environ["CLARY_PARALLEL_OFFLOAD_FOLDER"] = tempfile.mkdtemp(prefix="clary-offload-")
    try:
        for extra in ({}, {"partitions": 2}):
            start(ddp=True, microbatches=4, offload_activations=True, **extra)
            module = make(SharedPerceptron)
            smp.set_activation_checkpointing(module.middle, strategy="contiguous")
            model = smp.DistributedModel(module)
            optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.05))
            for number in range(2):
                inputs, targets = batch_of(SharedPerceptron, number, 16)
                optimizer.zero_grad()
                train_step(model, inputs, targets)
                optimizer.step()
            assert model.state_dict()
        assert not list(Path(os.environ["CLARY_PARALLEL_OFFLOAD_FOLDER"]).iterdir())
    finally:
        del os.environ["CLARY_PARALLEL_OFFLOAD_FOLDER"]


def test_delayed_parameters_get_the_values_of_an_undelayed_initialisation(rank, size):
    for extra in ({}, {"partitions": 2}):
        start(ddp=True, delayed_parameter_initialization=True, **extra)
        torch.manual_seed(7)
        with smp.model_creation():
            module = SharedPerceptron()
        assert all(one.is_meta for one in module.parameters())
        model = smp.DistributedModel(module)
        optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.05))
        losses = train(model, optimizer, SharedPerceptron, (0, 1, 2))
        expected, _, _ = train_alone(SharedPerceptron, 1)
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), atol=1e-5, rtol=1e-4)


def test_checkpoint_sequential_passes_gradients_to_the_input(rank, size):
    start()
    sequence = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    value = torch.ones(2, 4, requires_grad=True)
    result = checkpoint_sequential(sequence, value, strategy="contiguous")
    result.sum().backward()
    assert value.grad is not None
