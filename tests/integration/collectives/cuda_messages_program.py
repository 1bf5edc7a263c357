"""Messages of CUDA tensors over backend smddp; tensors that pretend to be on a GPU, and copies that take their time."""

import contextlib
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from clary.train.collective.adapters.torch import devices, staging

_COPY_S = 0.05


class Pretended(torch.Tensor):
    """A tensor in host memory that says that it is on a GPU."""

    is_cpu = property(lambda self: False)
    is_cuda = property(lambda self: True)


class SlowStreams:
    """The first copy to the host takes some time, as if the GPU were busy."""

    def __init__(self, device):
        self._is_first = True

    def to_host(self, tensor):
        host = tensor.as_subclass(torch.Tensor).clone()
        is_first, self._is_first = self._is_first, False
        return host, lambda: threading.Event().wait(_COPY_S if is_first else 0)

    def host_space(self, tensor):
        return torch.empty(tensor.shape, dtype=tensor.dtype), lambda: None

    def to_device(self, source, target):
        target.as_subclass(torch.Tensor).copy_(source)

    def up_mark(self):
        return lambda: None

    def going_up(self):
        return contextlib.nullcontext()

    def make_future(self):
        return torch.futures.Future()


staging.CudaStreams = SlowStreams
devices.own_placement = lambda device: devices.Placement("the only GPU", False)


def cuda(*numbers):
    return torch.tensor(numbers).as_subclass(Pretended)


def test_two_ranks_exchange_cuda_tensors_while_the_others_do_nothing(rank, size):
    group = dist.group.WORLD
    if rank < 2:
        received = cuda(0.0, 0.0)
        sent = group.send([cuda(float(rank), 7.0)], 1 - rank, 3)
        work = group.recv([received], 1 - rank, 3)
        work.wait()
        sent.wait()
        assert received.tolist() == [1.0 - rank, 7.0]
        assert work.source_rank() == 1 - rank
    numbers = torch.ones(2)
    dist.all_reduce(numbers)  # the group is in step
    assert numbers.tolist() == [size, size]


def test_messages_of_one_tag_arrive_in_order_whatever_their_devices(rank, size):
    group = dist.group.WORLD
    if rank == 0:
        works = [group.send([cuda(1.0)], 1, 0), group.send([cuda(2.0)], 1, 0), group.send([torch.tensor([3.0])], 1, 0)]
    elif rank == 1:
        received = [cuda(0.0), cuda(0.0), torch.zeros(1)]
        works = [group.recv([one], 0, 0) for one in received]
    else:
        return
    for work in works:
        work.wait()
    if rank == 1:
        assert [one.item() for one in received] == [1.0, 2.0, 3.0]


def test_a_message_from_any_rank_names_its_sender(rank, size):
    group = dist.group.WORLD
    if rank:
        group.send([cuda(float(rank))], 0, 0).wait()
        return
    for _ in range(size - 1):
        received = cuda(0.0)
        work = group.recv_anysource([received], 0)
        work.wait()
        assert received.item() == work.source_rank()


def test_a_message_does_not_wait_for_the_choice_of_a_way_for_collectives(rank, size):
    """Rank 1 waits for a message before it takes part in the choice that rank 0 has begun."""
    group = dist.new_group()
    if rank == 1:
        received = cuda(0.0)
        group.recv([received], 0, 4).wait(timedelta(seconds=20))
        assert received.item() == 5
        group.allreduce([cuda(1.0)]).wait()
        return
    choosing = threading.Thread(target=lambda: group.allreduce([cuda(1.0)]).wait())
    choosing.start()
    if rank == 0:
        deadline = time.monotonic() + 10
        while not group._choosing.locked() and time.monotonic() < deadline:
            time.sleep(0.001)
        assert group._choosing.locked()
        sending = threading.Thread(target=lambda: group.send([cuda(5.0)], 1, 4).wait())
        sending.start()
        sending.join(20)
        assert not sending.is_alive(), "the message waits for the choice"
    choosing.join(20)
    assert not choosing.is_alive()


def test_messages_keep_the_limit_of_their_group(rank, size):
    group = dist.group.WORLD
    if rank:
        return
    group.recv_anysource([cuda(0.0)], 9)  # opens the path before the limit is set
    group.set_timeout(timedelta(seconds=0.2))
    work = group.recv([cuda(0.0)], 1, 8)
    try:
        work.wait()
    except RuntimeError as error:
        told = str(error)
    else:
        told = "a receive without a send ended"
    assert "0.2" in told, told
