"""Further features of SMP v1 that scripts use, on two ranks; run by test_smp_surface."""

import contextlib
import gc
import weakref

import smdistributed.modelparallel.torch as smp
import torch
import torch.distributed as dist
from smdistributed.modelparallel.torch.exceptions import CheckpointError, ParallelError
from smp_axes_program import Tall, make_tall, share
from smp_core_program import start, train_step
from smp_models import Record, SharedPerceptron, batch_of, loss_of, make
from smp_overlap_program import failure_of
from torch import nn

from clary.train.parallel.pipeline import server
from clary.train.parallel.pipeline.policies import Decision, Phase

NUM_STEPS = 3


class Kept:
    """Is alive as long as the graph that holds it."""


class Remembering(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, kept):
        ctx.kept = kept
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def graphs_left(detaches, *, as_record=False):
    """Return the number of microbatches whose graph is alive on this rank after a step; None leaves the default."""
    model = smp.DistributedModel(make(SharedPerceptron))
    graphs = []

    @smp.step(**({} if detaches is None else {"detach_outputs": detaches}))
    def run(model, inputs, targets):
        kept = Kept()
        if not smp.is_tracing():
            graphs.append(weakref.ref(kept))
        loss = Remembering.apply(loss_of(model(inputs), targets), kept)
        model.backward(loss)
        return Record(loss, [loss]) if as_record else {"loss": loss, "both": (loss, [loss * 2])}

    found = run(model, *batch_of(SharedPerceptron, 0))
    gc.collect()
    alive = sum(graph() is not None for graph in graphs)
    if not as_record:
        outputs = [*found["loss"].outputs, *found["both"][1][0].outputs]
        assert all(one.requires_grad == (detaches is False) for one in outputs) or smp.pp_rank() > 0
    return alive, len(graphs)


def test_detached_results_keep_no_graph_alive(rank, size):
    for keys in ({"ddp": True}, {"partitions": 2}):
        start(microbatches=4, **keys)
        alive, total = graphs_left(True)
        assert alive == 0, (keys, alive)
        assert total == (4 if smp.pp_rank() == 0 else 0)
        start(microbatches=4, **keys)
        alive, total = graphs_left(False)
        assert alive == total, "with detach_outputs=False results are documented to keep their graphs"
        start(microbatches=4, **keys)
        alive, total = graphs_left(None)
        assert alive == 0, "detach_outputs is documented to be set by default"
        start(microbatches=4, **keys)
        alive, total = graphs_left(True, as_record=True)
        assert alive == 0, (keys, alive)


@smp.step
def evaluating_step(model, inputs):
    return model(inputs)


def test_results_of_a_step_become_arrays_at_once(rank, size):
    for keys in ({"ddp": True}, {"partitions": 2}):
        start(microbatches=4, **keys)
        model = smp.DistributedModel(make(SharedPerceptron)).eval()
        inputs, _ = batch_of(SharedPerceptron, 0)
        found = evaluating_step(model, inputs)
        assert len(found.concat().numpy()) == len(inputs)


def test_a_step_takes_its_options_in_the_documented_order(rank, size):
    start(microbatches=4, ddp=True)
    seen = []

    def look(whole, across, along):
        seen.append((whole.shape, across.shape, along.shape))

    tensors = torch.zeros(3), torch.zeros(2, 8), torch.zeros(8, 2)
    smp.step(["whole"], {"across": 1})(look)(*tensors)
    smp.step(["whole"], input_split_axes={"across": 1})(look)(*tensors)
    smp.step(look, non_split_inputs=["whole"], input_split_axes={"across": 1})(*tensors)
    assert seen == [((3,), (2, 2), (2, 2))] * 12, seen


class Sums(nn.Module):
    """Has gradients of very different sizes, so their sum depends on the order."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


@smp.step(non_split_inputs=["scales"])
def scaled_step(model, inputs, numbers, scales):
    loss = model(inputs).square().sum() * scales[numbers[0]]
    model.backward(loss)
    return loss


def gradients_of(**keys):
    """Return the gradients of this rank after two steps of a pipeline."""
    start(partitions=2, microbatches=4, pipeline="simple", auto_partition=False, default_partition=0, **keys)
    module = make(Sums)
    smp.set_partition(module.second, 1)
    model = smp.DistributedModel(module)
    inputs, _ = batch_of(Sums, 0)
    scales = torch.tensor([1.0, 1e4, 3e-3, 17.0])
    for _ in range(2):  # the second step adds to the gradients of the first
        scaled_step(model, inputs, torch.arange(4).repeat_interleave(2), scales)
    return [one.grad.clone() for one in model.local_parameters()]


@contextlib.contextmanager
def last_first():
    """Let microbatches begin their backward passes in descending order of their numbers."""
    original = server.choose

    def choose(policy, ready, **numbers):
        decision = original(policy, ready, **numbers)
        if decision.chosen is None or decision.chosen.phase is not Phase.BACKWARD:
            return decision
        return Decision(max(ready, key=lambda one: (one.phase, one.microbatch)), "the last first")

    server.choose = choose
    try:
        yield
    finally:
        server.choose = original


def test_a_deterministic_server_sums_gradients_in_one_order_bit_for_bit(rank, size):
    found = {}
    for is_deterministic in (True, False):
        one_by_one = gradients_of(active_microbatches=1)
        with last_first():
            turned = gradients_of(active_microbatches=4, deterministic_server=is_deterministic)
        found[is_deterministic] = all(torch.equal(a, b) for a, b in zip(one_by_one, turned, strict=True))
    assert found == {True: True, False: False}, found  # without a deterministic server the order changes bits


def test_a_step_that_fails_leaves_gradients_as_they_were(rank, size):
    start(microbatches=2, partitions=2, deterministic_server=True)
    model = smp.DistributedModel(make(SharedPerceptron))
    train_step(model, *batch_of(SharedPerceptron, 0))
    before = [one.grad.clone() for one in model.local_parameters()]

    @smp.step
    def fails(model, inputs, targets):
        loss = loss_of(model(inputs), targets)
        model.backward(loss)
        raise ArithmeticError("after the backward pass")

    assert failure_of(lambda: fails(model, *batch_of(SharedPerceptron, 1))) is not None
    assert all(torch.equal(a, one.grad) for a, one in zip(before, model.local_parameters(), strict=True))


def flat_groups(model, optimizer, groups):
    """Find the parts of parameters in the flat groups by offsets of `ds_numel`, as amazon-sagemaker-examples do."""
    found = {}
    for number, group in enumerate(groups):
        offset = 0
        for parameter in group:
            length = parameter.ds_tensor.ds_numel
            found[parameter] = optimizer.fp32_partitioned_groups_flat[number].narrow(0, offset, length)
            offset += length
        assert optimizer.fp32_partitioned_groups_flat[number].numel() == offset
    return found


def test_norms_of_parameters_can_be_computed_by_deepspeeds_names(rank, size):
    for threshold in (10, 10_000):  # 10: most parameters are cut; 10_000: all stay whole
        for bf16 in (False, True):
            start(ddp=True, sharded_data_parallel_degree=2, sdp_param_persistence_threshold=threshold, bf16=bf16)
            module = make(SharedPerceptron)
            shapes = {name: one.shape for name, one in module.named_parameters()}
            model = smp.DistributedModel(module)
            decayed = [one for one in model.parameters() if len(one.ds_shape) > 1]
            others = [one for one in model.parameters() if len(one.ds_shape) == 1]
            groups = [decayed, others]
            inner = torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}], lr=0.05)
            optimizer = smp.DistributedOptimizer(inner)
            buffers = flat_groups(model, optimizer, groups)
            assert [[id(one) for one in group] for group in optimizer.fp16_groups] == [
                [id(one) for one in group] for group in groups
            ]
            for number in range(2):
                optimizer.zero_grad()
                train_step(model, *batch_of(SharedPerceptron, number))
                optimizer.step()
            whole = model.state_dict()
            for name, parameter in model.module.named_parameters():
                assert (parameter.ds_shape, parameter.ds_numel) == (shapes[name], shapes[name].numel())
                for part in (buffers[parameter], parameter.ds_tensor.data):
                    square = torch.linalg.norm(part) ** 2
                    dist.all_reduce(square, group=optimizer.ds_param_shard_group)
                    torch.testing.assert_close(
                        square.sqrt(),
                        whole[name].float().norm(),
                        atol=1e-3 if bf16 else 1e-5,
                        rtol=1e-2 if bf16 else 1e-5,
                    )
            flat = optimizer.fp32_partitioned_groups_flat[0]
            expected = torch.cat([one.ds_tensor for one in decayed])
            assert torch.equal(torch.add(flat, 1.0), expected + 1.0)  # a function of torch
            assert torch.equal(flat[2:5], expected[2:5])
            assert flat.dtype == torch.float32
            assert "narrow(0" in str(failure_of(lambda flat=flat: flat.narrow(0, 1, flat.numel())))


def test_deepspeeds_names_exist_only_with_shards(rank, size):
    start(ddp=True)
    model = smp.DistributedModel(make(SharedPerceptron))
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters()))
    for name in ("fp32_partitioned_groups_flat", "ds_param_shard_group", "fp16_groups"):
        assert not hasattr(optimizer, name), name
    assert not hasattr(next(model.parameters()), "ds_tensor")


def train_with(kind, model, number_of_steps=NUM_STEPS, **options):
    optimizer = smp.DistributedOptimizer(kind(model.parameters(), lr=0.05, weight_decay=0.1, **options))
    losses = []
    for number in range(number_of_steps):
        optimizer.zero_grad()
        losses.append(train_step(model, *share(SharedPerceptron, number)).reduce_mean().item())
        optimizer.step()
    return losses


def trained_alone(kind, make_one, **options):
    model = make_one()
    optimizer = kind(model.parameters(), lr=0.05, weight_decay=0.1, **options)
    for number in range(NUM_STEPS):
        inputs, targets = batch_of(type(model), number)
        optimizer.zero_grad()
        loss_of(model(inputs), targets).backward()
        optimizer.step()
    return model.state_dict()


def test_optimizers_that_scale_by_norms_train_parts_as_they_train_the_whole(rank, size):
    kinds = [(smp.optimizers.FusedLAMB, {"max_grad_norm": 0.05}), (smp.optimizers.FusedNovoGrad, {})]
    kinds.append((smp.optimizers.FusedNovoGrad, {"norm_type": 0, "reg_inside_moment": True}))
    for kind, options in kinds:
        expected = trained_alone(kind, lambda: make(SharedPerceptron), **options)
        for keys in ({"partitions": 2}, {"ddp": True}, {"ddp": True, "shard_optimizer_state": True}):
            start(microbatches=2, **keys)
            model = smp.DistributedModel(make(SharedPerceptron))
            train_with(kind, model, **options)
            for name, value in model.state_dict().items():
                torch.testing.assert_close(
                    value, expected[name], atol=3e-5, rtol=1e-4, msg=lambda text, at=(keys, name): f"{at}: {text}"
                )


def test_optimizers_that_scale_by_norms_see_whole_parameters_instead_of_slices(rank, size):
    for kind, options in ((smp.optimizers.FusedLAMB, {"max_grad_norm": 0.05}), (smp.optimizers.FusedNovoGrad, {})):
        expected = trained_alone(kind, lambda: make_tall(cut=False), **options)
        start(ddp=True, tensor_parallel_degree=2, prescaled_batch=True)
        model = smp.DistributedModel(make_tall())
        torch.manual_seed(7)
        model.load_state_dict(Tall().state_dict())
        train_with(kind, model, **options)
        for name, value in model.state_dict().items():
            torch.testing.assert_close(
                value, expected[name], atol=3e-5, rtol=1e-4, msg=lambda text, at=name: f"{at}: {text}"
            )


def test_optimizers_that_scale_by_norms_are_refused_where_owners_have_slices(rank, size):
    start(ddp=True, tensor_parallel_degree=2, prescaled_batch=True, shard_optimizer_state=True)
    model = smp.DistributedModel(make_tall())
    error = failure_of(lambda: smp.DistributedOptimizer(smp.optimizers.FusedLamb(model.parameters())))
    assert "FusedLAMB scales by norms of whole parameters" in str(error), error


def test_all_errors_share_one_base_class(rank, size):
    from smdistributed.modelparallel.backend import exceptions as of_backend
    from smdistributed.modelparallel.torch import exceptions as of_torch

    from clary.train.parallel import errors
    from clary.train.parallel.fsdp.checkpoint import saving

    assert issubclass(CheckpointError, ParallelError)
    assert CheckpointError is saving.CheckpointError
    for name in of_torch.__all__:
        assert issubclass(getattr(of_torch, name), errors.ParallelError), name
    for name in of_backend.__all__:
        assert getattr(of_backend, name) is getattr(of_torch, name), name
