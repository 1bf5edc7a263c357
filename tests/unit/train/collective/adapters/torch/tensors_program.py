"""Tensors that the compiled core reads itself, over a group of one rank and over `_door` alone."""

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import AllreduceOptions, BroadcastOptions, ReduceOp, ReduceScatterOptions
from torch.distributed.distributed_c10d import AllgatherOptions

from clary.train._native import core as native
from clary.train.collective.adapters.torch import registration, tensors

door = native.door()


class FakeReader:
    """A core that passes the tables of `tensors_are_read_by` to `_door`."""

    def know_tensors(self, types, strided, dtypes, reductions):
        door.know_tensors(*types, strided, dtypes, reductions)
        return True


assert tensors.tensors_are_read_by(FakeReader())
# A null communicator: a call that reached the core would crash the process.
NOTHING = 0
UNREAD = {
    "strided": lambda: torch.ones(4, 4).t(),
    "every other element": lambda: torch.ones(8)[::2],
    "sparse": lambda: torch.eye(3).to_sparse(),
    "meta": lambda: torch.ones(3, device="meta"),
    "complex": lambda: torch.ones(3, dtype=torch.complex64),
    "subclass": lambda: torch.ones(3).as_subclass(type("Marked", (torch.Tensor,), {})),
    "no tensor": lambda: [1.0, 2.0, 3.0],
}


def world():
    if not dist.is_initialized():
        registration.register()
        store = dist.FileStore(str(Path(os.environ["PROGRAM_FOLDER"]) / "store"), 1)
        dist.init_process_group("smddp", store=store, rank=0, world_size=1)
    return dist.group.WORLD


def synchronous(options):
    options.asyncOp = False
    return options


def raised(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:  # noqa: BLE001 - the caller asserts its kind
        return error
    raise AssertionError("nothing was raised")


def test_a_tensor_that_is_not_plain_is_left_to_python_and_nothing_is_sent():
    whole, part = torch.ones(3), torch.ones(3)
    for name, make in UNREAD.items():
        unread = make()
        assert door.reduce_tensor(NOTHING, [unread], AllreduceOptions(), 0.0, 0) is None, name
        assert door.broadcast_tensor(NOTHING, [unread], BroadcastOptions(), 0.0, 0) is None, name
        assert door.gather_tensor(NOTHING, unread, part, AllgatherOptions(), 1, 0.0, 0) is None, name
        assert door.gather_tensor(NOTHING, whole, unread, AllgatherOptions(), 1, 0.0, 0) is None, name
        assert door.scatter_tensor(NOTHING, unread, whole, ReduceScatterOptions(), 1, 0.0, 0) is None, name
        assert door.scatter_tensor(NOTHING, part, unread, ReduceScatterOptions(), 1, 0.0, 0) is None, name


def test_lists_of_other_lengths_and_other_sequences_are_left_to_python():
    one = torch.ones(3)
    for given in ([], [one, one], (one,), one, None):
        assert door.reduce_tensor(NOTHING, given, AllreduceOptions(), 0.0, 0) is None


def test_other_counts_types_and_reductions_are_left_to_python():
    options = ReduceScatterOptions()
    for whole, part in (
        (torch.ones(5), torch.ones(3)),
        (torch.ones(6, dtype=torch.float64), torch.ones(3)),
    ):
        assert door.gather_tensor(NOTHING, whole, part, AllgatherOptions(), 2, 0.0, 0) is None
        assert door.scatter_tensor(NOTHING, part, whole, options, 2, 0.0, 0) is None
    scaled = AllreduceOptions()
    scaled.reduceOp = dist._make_nccl_premul_sum(2.0)
    assert door.reduce_tensor(NOTHING, [torch.ones(3)], scaled, 0.0, 0) is None


def test_options_without_their_members_raise():
    assert isinstance(raised(door.reduce_tensor, 0, [torch.ones(3)], object(), 0.0, 0), AttributeError)
    assert isinstance(raised(door.reduce_tensor, 0, [torch.ones(3)]), TypeError)
    assert isinstance(raised(door.know_tensors, 1, 2, 3, 4, 5), TypeError)
    assert isinstance(raised(door.reduce_tensor, "no address", [torch.ones(3)], AllreduceOptions(), 0.0, 0), TypeError)
    assert isinstance(raised(door.reduce_tensor, 0, [torch.ones(3)], AllreduceOptions(), 0.0, None), TypeError)


def test_plain_tensors_and_parameters_never_take_the_longer_way():
    group = world()
    assert group._reader is not None
    group._reduce_all = group._reduce_scatter = group._run = None  # the longer ways
    try:
        for tensor in (torch.ones(3), torch.nn.Parameter(torch.ones(2, 2)), torch.ones(()), torch.ones(0)):
            dist.all_reduce(tensor)
            dist.all_reduce(tensor, async_op=True).wait()
            dist.broadcast(tensor, 0)
        output, source = torch.zeros(4), torch.arange(4.0)
        group.all_gather_single(output, source, synchronous(AllgatherOptions()))
        assert torch.equal(output, source)
        output.zero_()
        group.reduce_scatter_single(output, source, synchronous(ReduceScatterOptions()))
        assert torch.equal(output, source)
    finally:
        del group._reduce_all, group._reduce_scatter, group._run


def test_the_longer_way_gives_the_same_for_every_type():
    group, reader = world(), world()._reader
    for dtype in tensors.DTYPES:
        for op in (ReduceOp.SUM, ReduceOp.MAX):
            results = []
            for way in (reader, None):
                group._reader = way
                tensor = torch.tensor([1, 0, 1]).to(dtype)
                dist.all_reduce(tensor, op)
                results.append(tensor)
            assert torch.equal(*results), (dtype, op)
    group._reader = reader


def test_an_asynchronous_call_that_ended_at_once_has_its_tensors():
    world()
    tensor = torch.arange(3.0)
    work = dist.all_reduce(tensor, async_op=True)
    assert work.is_completed()
    assert work.result()[0] is tensor
    assert work.get_future().wait()[0] is tensor


def test_a_call_that_ended_at_once_is_part_of_coalesced_calls():
    group, tensor = world(), torch.ones(3)
    group._start_coalescing(torch.device("cpu"))
    dist.all_reduce(tensor, async_op=True)
    joint = group._end_coalescing(torch.device("cpu"))
    assert joint.wait()
    assert joint.result()[0] is tensor


def test_every_call_counts():
    group, tensor = world(), torch.ones(3)
    before = group._get_sequence_number_for_group()
    dist.all_reduce(tensor)
    dist.broadcast(tensor, 0)
    dist.all_reduce(tensor.repeat(2)[::2])
    assert group._get_sequence_number_for_group() == before + 3


def test_a_closed_group_refuses_with_its_name():
    world()
    group = dist.new_group(backend="smddp")
    group.shutdown()
    error = raised(group.allreduce, [torch.ones(3)], AllreduceOptions())
    assert "was closed" in str(error)


def test_a_limit_of_days_is_taken():
    options = synchronous(AllreduceOptions())
    options.timeout = timedelta(days=2)
    world().allreduce([torch.ones(3)], options)


def test_averages_of_integers_are_exact_over_more_ranks_than_the_type_holds():
    options = AllreduceOptions()
    options.reduceOp = ReduceOp.AVG
    values = {torch.int8: (-128, -1, 0, 100, 127), torch.uint8: (0, 1, 100, 255), torch.int16: (-32768, -7, 300, 32767)}
    for dtype, numbers in values.items():
        for num_ranks in (2, 127, 128, 200, 256, 300, 40_000):
            buffer = torch.tensor(numbers, dtype=dtype)
            _, complete = tensors.reduction_of(buffer, options, num_ranks)
            complete()
            assert buffer.tolist() == [int(number / num_ranks) for number in numbers], (dtype, num_ranks)
