"""Every schedule compared with the same model in one process, over several steps. See `torch_ranks`."""

import contextlib
import copy
import gc
import itertools

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from clary.train.parallel.errors import ParallelError, RankLost
from clary.train.parallel.pipeline.executor import Pipeline
from clary.train.parallel.pipeline.schedule import Kind, Schedule, ScheduleError, parse_action, simulate
from clary.train.parallel.pipeline.schedules import gpipe, interleaved, one_f_one_b, zb1p
from clary.train.parallel.pipeline.zero_bubble import zbv

WIDTH, CLASSES, LENGTH, A_MICROBATCH = 8, 5, 3, 2
STEPS = 3


class Block(nn.Module):
    """A small residual layer."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, hidden):
        return hidden + self.down(torch.tanh(self.up(self.norm(hidden))))


class Several(nn.Module):
    """Passes on its inputs: hidden states, a mask without gradient, and a skip input with gradient."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden, mask=None, skipped=None):
        if mask is None:
            mask, skipped = hidden > 0, hidden * 2
        hidden = torch.where(mask, self.layer(hidden), hidden)
        return hidden, mask, skipped + hidden.mean()


def make_parts(num_stages):
    """Return the modules of all stages; the input is ids, the output scores."""
    torch.manual_seed(11)
    parts = [nn.Sequential(Block()) for _ in range(num_stages)]
    parts[0].insert(0, nn.Embedding(CLASSES, WIDTH))
    parts[-1].append(nn.Linear(WIDTH, CLASSES))
    return parts


def batch(step, num_microbatches):
    generator = torch.Generator().manual_seed(step)
    shape = (num_microbatches * A_MICROBATCH, LENGTH)
    return tuple(torch.randint(CLASSES, shape, generator=generator) for _ in range(2))


def loss_fn(scores, targets):
    return nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def alone(parts, num_microbatches, steps):
    """Train in this process; return the losses of every step and the gradients of the last step."""
    optimizer = torch.optim.SGD([one for part in parts for one in part.parameters()], lr=0.1)
    losses = []
    for step in range(steps):
        inputs, targets = batch(step, num_microbatches)
        optimizer.zero_grad()
        of_step = []
        for one, wanted in zip(inputs.chunk(num_microbatches), targets.chunk(num_microbatches), strict=True):
            for part in parts:
                one = part(one)
            loss = loss_fn(one, wanted)
            (loss / num_microbatches).backward()
            of_step.append(loss.detach().double())
        optimizer.step()
        losses.append(torch.stack(of_step))
    return losses


def compare(rank, schedule, **options):
    parts = make_parts(schedule.num_stages)
    reference = copy.deepcopy(parts)
    expected = alone(reference, schedule.num_microbatches, STEPS)
    own = {stage: parts[stage] for stage in schedule.stages_of(rank)}
    pipeline = Pipeline(own, schedule, dist.group.WORLD, loss_fn, timeout_s=15, **options)
    optimizer = torch.optim.SGD([one for part in own.values() for one in part.parameters()], lr=0.1)
    is_last = schedule.num_stages - 1 in own
    for step in range(STEPS):
        inputs, targets = batch(step, schedule.num_microbatches)
        optimizer.zero_grad()
        losses = pipeline.step(inputs if 0 in own else None, targets if is_last else None)
        optimizer.step()
        if options.get("ends_together", True) or is_last:
            assert torch.equal(losses, expected[step]), (losses, expected[step])
        else:
            assert losses is None
    for stage, part in own.items():
        for (name, ours), theirs in zip(part.named_parameters(), reference[stage].parameters(), strict=True):
            assert torch.equal(ours.grad, theirs.grad), (schedule.name, stage, name)
            assert torch.equal(ours, theirs)
    assert [one.action for one in pipeline.last_run] == list(schedule.ranks[rank])
    for one, following in itertools.pairwise(pipeline.last_run):
        assert 0 <= one.begin_s <= one.end_s <= following.begin_s
    return pipeline


def test_gpipe(rank, size):
    compare(rank, gpipe(size, 5))


def test_one_f_one_b(rank, size):
    for num_microbatches in (1, 3, 8):
        compare(rank, one_f_one_b(size, num_microbatches))


def test_interleaved(rank, size):
    for stages_a_rank in (1, 2, 3):
        compare(rank, interleaved(size, 2 * size, stages_a_rank=stages_a_rank))


def test_zb1p(rank, size):
    for num_microbatches in (2, 6):
        compare(rank, zb1p(size, num_microbatches))


def test_zbv(rank, size):
    for num_microbatches in (1, 2 * size + 1):
        compare(rank, zbv(size, num_microbatches))


def test_training_is_the_same_with_ends_together_disabled(rank, size):
    compare(rank, one_f_one_b(size, 4), ends_together=False)
    dist.barrier()


class Counting(Pipeline):
    """Counts living activations and pending sends after every action."""

    peak_activations = peak_sends = 0

    def _perform(self, action, received):
        given = super()._perform(action, received)
        alive = sum(stage.num_alive for stage in self._stages.values())
        # The weight half of a backward pass frees a microbatch; peaks occur after a forward pass.
        self.peak_activations = max(self.peak_activations, alive)
        self.peak_sends = max(self.peak_sends, sum(map(len, self._exchange._sends.values())))
        return given


def test_the_peak_of_living_activations_equals_the_simulation(rank, size):
    for schedule in (gpipe(size, 5), one_f_one_b(size, 16), zb1p(size, 16), zbv(size, 16)):
        parts = {stage: nn.Linear(WIDTH, WIDTH) for stage in schedule.stages_of(rank)}
        pipeline = Counting(parts, schedule, dist.group.WORLD, lambda given, _: given.mean(), timeout_s=15)
        inputs = torch.ones(2 * schedule.num_microbatches, WIDTH)
        for _ in range(2):
            pipeline.step(inputs)
        assert pipeline.peak_activations == simulate(schedule).peak_activations[rank]
        assert sum(map(len, pipeline._exchange._sends.values())) == 0
        if schedule.name == "1f1b":  # finished sends are released during the schedule, not at the end
            assert 0 < pipeline.peak_sends <= 2 * size + 1, pipeline.peak_sends


def test_a_batch_is_freed_after_its_step(rank, size):
    for fails in (False, True):
        schedule = one_f_one_b(size, 4)
        stages = dict(enumerate(make_parts(size)))
        group = dist.new_group(list(range(size)))
        pipeline = Pipeline({rank: stages[rank]}, schedule, group, failing_loss if fails else loss_fn, timeout_s=10)
        inputs, targets = batch(0, 4)
        storages = [StorageWeakRef(one.untyped_storage()) for one in (inputs, targets)]
        with contextlib.suppress(ParallelError):
            pipeline.step(inputs, targets)
        del inputs, targets
        gc.collect()
        assert all(one.expired() for one in storages)


def failing_loss(scores, targets):
    raise ValueError("said for this test")


def test_the_times_of_a_run_are_gathered_from_all_ranks(rank, size):
    schedule = zb1p(size, 4)
    run = compare(rank, schedule).gather_last_run()
    assert [tuple(one.action for one in actions) for actions in run.ranks] == list(schedule.ranks)
    ends = {one.action: one for actions in run.ranks for one in actions}
    for action, one in ends.items():
        if action.kind is Kind.FORWARD and action.stage:
            assert ends[parse_action(f"{action.stage - 1}F{action.microbatch}")].end_s <= one.begin_s
    assert all(0 <= idle < 1 for idle in run.idle)


def test_stages_with_several_tensors_between_them(rank, size):
    torch.manual_seed(3)
    parts = [Several() for _ in range(2 * size)]
    reference = copy.deepcopy(parts)
    inputs = torch.randn(6, WIDTH)
    expected = []
    for one in inputs.chunk(3):
        given = (one,)
        for part in reference:
            given = part(*given)
        loss = given[0].square().mean() + given[2].sum()
        (loss / 3).backward()
        expected.append(loss.detach().double())
    schedule = zbv(size, 3)
    own = {stage: parts[stage] for stage in schedule.stages_of(rank)}
    pipeline = Pipeline(own, schedule, dist.group.WORLD, lambda given, _: given[0].square().mean() + given[2].sum())
    losses = pipeline.step(inputs if rank == 0 else None)
    assert torch.equal(losses, torch.stack(expected))
    for stage, part in own.items():
        for ours, theirs in zip(part.parameters(), reference[stage].parameters(), strict=True):
            # Autograd sums gradients of the next stage and of this stage in another order than in one process.
            torch.testing.assert_close(ours.grad, theirs.grad)


def test_batches_of_another_shape_need_new_shapes(rank, size):
    """Shapes are exchanged once; another shape is refused with advice, and accepted after a new exchange."""
    schedule = one_f_one_b(size, 2)
    own = {rank: nn.Linear(WIDTH, WIDTH)}
    pipeline = Pipeline(own, schedule, dist.group.WORLD, lambda given, _: given.mean(), timeout_s=15)
    pipeline.step(torch.randn(4, WIDTH))
    pipeline.forget_shapes()
    pipeline.step(torch.randn(6, WIDTH))
    error = raised(pipeline.step, torch.randn(8, WIDTH))
    if rank == 0:
        assert isinstance(error, ValueError), error
        assert (
            "0F0 (forward pass of stage 0, microbatch 0) gave float32[4, 8]; expected float32[3, 8], as rank 1"
            in str(error)
        )
        assert "call forget_shapes" in str(error)
    else:
        assert isinstance(error, RankLost), error


def raised(function, *arguments, **keywords):
    try:
        function(*arguments, **keywords)
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller looks at it
        return error
    raise AssertionError("nothing was raised")


class Failing(nn.Linear):
    def forward(self, value):
        if value.shape[0] == 2 and value.sum() > 100:
            raise KeyError("no such word")
        return super().forward(value)


def test_an_error_on_one_rank_ends_all_ranks_and_names_the_action(rank, size):
    schedule = one_f_one_b(size, 4)
    stage = Failing(WIDTH, WIDTH) if rank == 1 else nn.Identity()
    pipeline = Pipeline({rank: stage}, schedule, dist.group.WORLD, lambda given, _: given.mean(), timeout_s=15)
    inputs = torch.zeros(8, WIDTH)
    inputs[4:6] = 100.0  # fails at microbatch 2
    inputs.requires_grad_()
    error = raised(pipeline.step, inputs)
    if rank == 1:
        assert type(error) is ParallelError, error
        words = "rank 1 of pipeline 1f1b failed at 1F2 (forward pass of stage 1, microbatch 2) in Failing: KeyError"
        assert str(error).startswith(words), error
        assert isinstance(error.__cause__, KeyError)
    else:
        assert isinstance(error, RankLost), error
        assert f"rank {rank} of pipeline 1f1b" in str(error)
        assert "microbatch" in str(error)
    assert "has failed before: rank" in str(raised(pipeline.step, inputs))


def test_a_missing_rank_is_named_at_the_timeout(rank, size):
    schedule = gpipe(size, 2)
    pipeline = Pipeline({rank: nn.Linear(2, 2)}, schedule, dist.group.WORLD, lambda x, _: x.mean(), timeout_s=1)
    if rank == 0:
        dist.distributed_c10d._get_default_store().wait(["others have given up"])
        return
    error = raised(pipeline.step)
    assert isinstance(error, RankLost), error
    assert f"rank {rank} of pipeline gpipe at {rank}F0 (forward pass of stage {rank}, microbatch 0) waited for" in str(
        error
    )
    assert f"the activations of {rank - 1}F0 (forward pass of stage {rank - 1}, microbatch 0) from rank {rank - 1}" in (
        str(error)
    )
    store = dist.distributed_c10d._get_default_store()
    if store.add("given up", 1) == size - 1:
        store.set("others have given up", "")


def test_unsuitable_arguments_are_refused_before_any_transfer(rank, size):
    world, loss = dist.group.WORLD, lambda given, _: given.mean()
    error = raised(Pipeline, {rank: nn.Identity()}, gpipe(size + 1, 2), world, loss)
    assert f"schedule gpipe is for {size + 1} ranks; the group has {size}" in str(error)
    error = raised(Pipeline, {rank + 1: nn.Identity()}, gpipe(size, 2), world, loss)
    assert f"rank {rank} was given the stages [{rank + 1}]; schedule gpipe gives it [{rank}]" in str(error)
    crossed = Schedule("crossed", 2, 1, tuple(tuple(map(parse_action, one.split())) for one in ("0F0 0B0", "1B0 1F0")))
    assert isinstance(raised(Pipeline, {rank: nn.Identity()}, crossed, world, loss), ScheduleError)
    pipeline = Pipeline({rank: nn.Identity()}, gpipe(size, 4), world, loss, timeout_s=15)
    error = raised(pipeline.step, torch.zeros(6, WIDTH))
    if rank == 0:
        assert "was given a tensor of shape [6, 8] as inputs; expected tensors whose length along axis 0 is a" in str(
            error
        )
    else:
        assert isinstance(error, RankLost), error
