"""Batches that run over a group: a real one of one rank, and sums of several ranks whose tensors are equal."""

from __future__ import annotations

import ctypes
from array import array

import pytest

from clary.train._native.interface import Dtype
from clary.train.collective.buffers import Buffer, buffer_of
from clary.train.collective.communicator import open_group
from clary.train.horovod.errors import HorovodInternalError
from clary.train.horovod.operations import Operations
from clary.train.horovod.readiness import Ready
from clary.train.horovod.requests import Description, Reduction, Request, Verb


@pytest.fixture
def operations():
    group = open_group(None, rank=0, size=1)
    yield Operations(group)
    group.close()


class AlikeGroup:
    """Stands for a group whose ranks all contribute this rank's tensor, so that a sum is a product.

    Args:
        rank: of this process.
        size: number of ranks.

    `sent` has the floats of each reduction.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.sent: list[list[float]] = []

    def all_reduce(self, source: Buffer, target: Buffer | None = None, *, op: object) -> None:
        """Write the sum of the ranks' floats."""
        values = _view(source)
        self.sent.append(list(values))
        _view(target or source)[:] = array("f", [value * self.size for value in values])


def _view(buffer: Buffer) -> memoryview:
    """Return the floats of a buffer."""
    return memoryview((ctypes.c_char * buffer.num_bytes).from_address(buffer.address)).cast("B").cast("f")


def floats(*values: float) -> array[float]:
    return array("f", values)


def description_of(verb: Verb, *shape: int, reduction: Reduction = Reduction.SUM) -> Description:
    return Description(verb, Dtype.FLOAT32, shape, reduction)


def request_of(description: Description, source: array[float], target: array[float] | None = None, **more: object):
    return Request(
        "a",
        description,
        buffer_of(source, name="source"),
        None if target is None else buffer_of(target, name="target"),
        **more,  # type: ignore[arg-type]
    )


def run_one(operations: Operations, request: Request) -> None:
    operations.run([Ready("a", request.description)], [request])


class Rooms:
    """Memory of results as a framework allocates it, for rows of `row_elements` floats."""

    def __init__(self, row_elements: int = 1) -> None:
        self.row_elements = row_elements
        self.result = floats()

    def allocate(self, rows: int) -> Buffer:
        """Return memory for this number of rows."""
        self.result = floats(*[0.0] * (rows * self.row_elements))
        return buffer_of(self.result, name="result")


@pytest.mark.parametrize("reduction", Reduction)
def test_one_rank_gets_its_own_tensor_from_every_reduction(operations, reduction):
    source, target = floats(1, -2, 3), floats(0, 0, 0)
    run_one(operations, request_of(description_of(Verb.ALLREDUCE, 3, reduction=reduction), source, target))
    assert list(target) == [1, -2, 3]
    run_one(operations, request_of(description_of(Verb.ALLREDUCE, 3, reduction=reduction), source, source))
    assert list(source) == [1, -2, 3]


def test_each_tensor_of_a_batch_is_written_to_its_own_memory(operations):
    sources = [floats(*range(first, first + length)) for first, length in ((1, 3), (10, 40), (100, 1))]
    targets = [floats(*[0.0] * len(source)) for source in sources]
    batch = [Ready(str(place), description_of(Verb.ALLREDUCE, len(source))) for place, source in enumerate(sources)]
    requests = [
        request_of(one.description, source, target) for one, source, target in zip(batch, sources, targets, strict=True)
    ]
    operations.run(batch, [requests[0], None, requests[2]])
    assert (targets[0], set(targets[1]), targets[2]) == (sources[0], {0.0}, sources[2])
    operations.run(batch, requests)
    assert targets == sources


def test_a_joined_rank_contributes_zeros_and_not_the_tensor_of_the_last_batch():
    group = AlikeGroup(0, 2)
    operations = Operations(group)
    batch = [Ready(name, description_of(Verb.ALLREDUCE, 2)) for name in "ab"]
    target = floats(0, 0)
    operations.run(batch, [request_of(one.description, floats(5, 6), floats(0, 0)) for one in batch])
    operations.run(batch, [None, request_of(batch[1].description, floats(1, 2), target)])
    operations.run(batch[:1], [None])
    assert [value for value in group.sent[0] if value] == [5, 6, 5, 6]
    assert group.sent[1][:2] == [0, 0]
    assert list(target) == [2, 4]
    assert group.sent[2] == [0, 0]


def test_prepare_is_called_before_a_tensor_runs_and_finish_after_it(operations):
    source, target, order = floats(0), floats(0), []

    def prepare():
        source[0] = 7
        order.append(target[0])

    request = request_of(
        description_of(Verb.ALLREDUCE, 1), source, target, prepare=prepare, finish=lambda: order.append(target[0])
    )
    run_one(operations, request)
    assert order == [0, 7]


def test_rows_are_gathered_into_memory_that_the_framework_allocates(operations):
    rooms = Rooms(row_elements=2)
    description = description_of(Verb.ALLGATHER, 2)
    request = request_of(description, floats(1, 2, 3, 4), allocate=rooms.allocate, row_elements=2, rows=2)
    run_one(operations, request)
    assert list(rooms.result) == [1, 2, 3, 4]
    run_one(operations, request_of(description, floats(), allocate=rooms.allocate, row_elements=2, rows=0))
    assert list(rooms.result) == []


def test_an_all_to_all_sends_the_rows_of_its_splits_and_returns_the_received_counts(operations):
    rooms, counts = Rooms(), []
    request = request_of(
        description_of(Verb.ALLTOALL), floats(1, 2, 3), allocate=rooms.allocate, splits=[2], on_splits=counts.extend
    )
    run_one(operations, request)
    assert (list(rooms.result), counts) == ([1, 2], [2])


def test_a_broadcast_gives_the_root_its_own_tensor(operations):
    target = floats(0, 0)
    run_one(operations, request_of(description_of(Verb.BROADCAST, 2), floats(3, 4), target))
    assert list(target) == [3, 4]


@pytest.mark.parametrize(("rank", "mine"), [(0, [3, 6, 9, 12]), (1, [15, 18]), (2, [21, 24])])
def test_surplus_rows_of_a_reduce_scatter_go_to_the_first_ranks(rank, mine):
    rooms = Rooms(row_elements=2)
    source = floats(*range(1, 9))  # 4 rows of 2
    request = request_of(description_of(Verb.REDUCESCATTER, 4, 2), source, allocate=rooms.allocate)
    run_one(Operations(AlikeGroup(rank, 3)), request)
    assert list(rooms.result) == mine


def test_one_rank_keeps_all_rows_of_a_reduce_scatter(operations):
    rooms = Rooms(row_elements=2)
    run_one(
        operations, request_of(description_of(Verb.REDUCESCATTER, 2, 2), floats(1, 2, 3, 4), allocate=rooms.allocate)
    )
    assert list(rooms.result) == [1, 2, 3, 4]


def test_a_joined_rank_contributes_zeros_or_refuses(operations):
    operations.run([Ready("a", description_of(Verb.ALLREDUCE, 4))], [None])
    operations.run([Ready("a", description_of(Verb.BARRIER))], [None])
    with pytest.raises(HorovodInternalError, match="broadcast cannot run on a rank that has joined"):
        operations.run([Ready("a", description_of(Verb.BROADCAST, 4))], [None])


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (
            lambda: request_of(description_of(Verb.ALLREDUCE, 3), floats(1, 2, 3), floats(0, 0)),
            "'a' brought memory of 2 elements for a result of 3 elements",
        ),
        (
            lambda: request_of(description_of(Verb.BROADCAST, 3), floats(1, 2, 3)),
            "'a' brought no memory for a result of 3 elements",
        ),
        (
            lambda: request_of(
                description_of(Verb.ALLGATHER, 2), floats(1, 2), allocate=Rooms().allocate, row_elements=2, rows=1
            ),
            "'a' allocated 1 elements for a result of 2",
        ),
        (
            lambda: Request("a", description_of(Verb.ALLREDUCE, 3)),
            "'a' has no tensor",
        ),
        (
            lambda: request_of(description_of(Verb.ADD_PROCESS_SET), floats()),
            "no way to run add_process_set",
        ),
    ],
)
def test_memory_that_does_not_fit_is_refused_by_name(operations, request_, words):
    with pytest.raises(HorovodInternalError, match=words):
        run_one(operations, request_())


class LyingGroup:
    """Stands for a group of two ranks of which the second announces an impossible number."""

    rank, size = 0, 2

    def all_gather(self, source: array[int], counts: array[int]) -> None:
        """Write the number of each rank into `counts`."""
        counts[:] = array("q", [source[0], -3])

    def all_to_all(self, source: object, target: object, **counts: object) -> None:
        """Write the splits of each rank; fail for any other request."""
        assert isinstance(target, array), "memory was cut by a number that cannot be"
        target[:] = array("q", [1, -3])


@pytest.mark.parametrize(("verb", "what"), [(Verb.ALLGATHER, "rows"), (Verb.ALLTOALL, "splits")])
def test_a_negative_number_is_refused_before_memory_is_allocated_for_it(verb, what):
    rooms = Rooms()
    request = request_of(description_of(verb), floats(1, 2), allocate=rooms.allocate, rows=2, splits=(1, 1))
    with pytest.raises(HorovodInternalError, match=f"rank 1 of this process set announces -3 {what}"):
        run_one(Operations(LyingGroup()), request)  # type: ignore[arg-type]
    assert not rooms.result
