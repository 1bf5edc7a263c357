"""Pipeline tensors passed between two ranks in GPU memory. Functions `test_...(rank, size)`.

In a rehearsal, files replace the memory that CUDA lends: framing and order are real, the memory is not.
"""

import contextlib
import copy
import pickle
import tempfile
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from gpu_world import IS_REHEARSAL, gpu, real_gpu
from torch import nn

from clary.train.parallel.pipeline import connection, executor
from clary.train.parallel.pipeline.executor import Pipeline
from clary.train.parallel.pipeline.hand_over import LEAST_BYTES, Decision, HandOver, Way, agree, own_seat
from clary.train.parallel.pipeline.lending import CudaLender, arrived
from clary.train.parallel.pipeline.schedules import one_f_one_b

WIDTH, ROWS, MICROBATCHES = 512, 1024, 4  # one microbatch's activations are 512 KiB


class FakeLender:
    """Lends tensors as files."""

    def __init__(self):
        self.device = torch.device("cpu")

    def lend(self, tensor):
        with tempfile.NamedTemporaryFile(delete=False) as file:
            torch.save(tensor.detach().clone(), file)
        return pickle.dumps(file.name)

    def borrow(self, record):
        path = Path(pickle.loads(record))
        found = torch.load(path)
        path.unlink()
        return found


@contextlib.contextmanager
def counted():
    """Make this rank pass tensors on the GPU, and count the tensors that it lends."""
    counts = {"lent": 0}
    kind = FakeLender if IS_REHEARSAL else CudaLender
    lend = kind.lend

    def counting(self, tensor):
        counts["lent"] += 1
        return lend(self, tensor)

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(kind, "lend", counting))
        if IS_REHEARSAL:
            peer = {1 - dist.get_rank(): Decision(Way.DEVICE, "rehearsed")}
            fake = HandOver(FakeLender(), peer, peer)
            stack.enter_context(mock.patch.object(executor, "_agree", return_value=fake))
            stack.enter_context(mock.patch.object(connection, "_agree_on_hand_over", return_value=fake))
        yield counts


def gather(value):
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, value)
    return gathered


def test_tensors_go_from_gpu_to_gpu_memory(rank, size):
    device = real_gpu("CUDA's handles need a GPU")
    seat = own_seat(device, "one-host")
    agreed = agree(rank, seat, lambda: CudaLender(device, seat.visible), gather)
    assert agreed is not None
    assert {one.way for one in (*agreed.to.values(), *agreed.source.values())} == {Way.DEVICE}, agreed
    for turn in range(20):  # returned memory is lent again
        ours = torch.full((LEAST_BYTES + 4 * turn,), float(rank + turn), device=device)
        for _ in range(20):
            ours = ours + 1  # the GPU still computes the tensor when it is lent
        record = agreed.lender.lend(ours)
        ours.zero_()  # the lent copy keeps its values
        found = arrived(agreed.lender.borrow(gather(record)[1 - rank]), device)
        assert bool((found == 1 - rank + turn + 20).all()), (turn, found[:3])
        dist.barrier()
    held = torch.cuda.memory_allocated(device)
    assert held < 40 * LEAST_BYTES * 4, f"{held} bytes are held: what was lent is not given back"


def test_a_schedule_hands_over_on_the_gpu(rank, size):
    device = gpu()
    torch.manual_seed(3)
    stages = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(2)]
    batch = torch.randn(ROWS, WIDTH)
    alone = nn.Sequential(*copy.deepcopy(stages)).to(device)
    expected = [alone(one).square().mean() for one in batch.to(device).chunk(MICROBATCHES)]
    torch.stack(expected).mean().backward()
    with counted() as counts:
        schedule = one_f_one_b(num_stages=2, num_microbatches=MICROBATCHES)
        pipeline = Pipeline(
            {rank: stages[rank].to(device)},
            schedule,
            dist.group.WORLD,
            lambda result, _: result.square().mean(),
            device=device,
            timeout_s=20,
        )
        losses = pipeline.step(batch if rank == 0 else None, None)
    torch.testing.assert_close(losses, torch.stack(expected).double().cpu(), rtol=1e-4, atol=1e-5, check_dtype=False)
    for ours, theirs in zip(stages[rank].parameters(), alone[rank].parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)
    assert counts["lent"] >= MICROBATCHES, counts  # activations of rank 0, gradients of rank 1


def test_smp_v1_hands_over_on_the_gpu(rank, size):
    import smdistributed.modelparallel.torch as smp

    device = gpu()
    torch.manual_seed(3)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(2)))
    alone = copy.deepcopy(model).to(device)
    batch = torch.randn(ROWS, WIDTH).to(device)
    alone(batch).square().mean().backward()

    @smp.step
    def step(model, inputs):
        loss = model(inputs).square().mean()
        model.backward(loss)
        return loss

    with counted() as counts:
        smp.shutdown()
        smp.init({"partitions": 2, "microbatches": MICROBATCHES, "auto_partition": False, "default_partition": 0})
        smp.set_partition(model[1], 1)
        wrapped = smp.DistributedModel(model)
        loss = step(wrapped, batch).reduce_mean()
    torch.testing.assert_close(loss.cpu(), alone(batch).square().mean().detach().cpu(), rtol=1e-4, atol=1e-5)
    expected = dict(alone.named_parameters())
    for name, parameter in wrapped.local_named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name].grad, rtol=1e-3, atol=1e-5)
    assert counts["lent"] >= MICROBATCHES, counts
    smp.shutdown()
