"""Operations as cores (`python_core`, the native core) receive them, and the methods that create an operation."""

import pytest

from clary.train._native.interface import Chunks, Dtype, Kind, Operation, ReduceOp, ShortCalls


class Recording(ShortCalls):
    """A core that records the operation that it receives."""

    def run(self, operation: Operation) -> int:
        self.asked = operation
        return 7


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        (
            "all_reduce",
            (1, 2, 3, Dtype.INT32, ReduceOp.MAX, True, 4.0),
            Operation(Kind.ALL_REDUCE, Dtype.INT32, 3, 1, 2, True, 4.0, ReduceOp.MAX),
        ),
        (
            "all_gather",
            (1, 2, 3, Dtype.INT32, True, 4.0),
            Operation(Kind.ALL_GATHER, Dtype.INT32, 3, 1, 2, True, 4.0),
        ),
        (
            "reduce_scatter",
            (1, 2, 3, Dtype.INT32, ReduceOp.MIN, False, 4.0),
            Operation(Kind.REDUCE_SCATTER, Dtype.INT32, 3, 1, 2, False, 4.0, ReduceOp.MIN),
        ),
    ],
)
def test_a_short_call_submits_the_operation_of_its_name(name, arguments, expected):
    core = Recording()
    assert getattr(core, name)(*arguments) == 7
    assert core.asked == expected


@pytest.mark.parametrize(
    ("operation", "num_bytes"),
    [
        (Operation(Kind.ALL_REDUCE, Dtype.FLOAT64, 5), 40),
        (Operation(Kind.BARRIER), 0),
        (Operation(Kind.SEND, count=9), 9),
        (Operation(Kind.ALL_GATHER, Dtype.FLOAT16, 3, chunks=Chunks(targets=[1, 2])), 6),
        (Operation(Kind.ALL_TO_ALL, Dtype.FLOAT32, 3, chunks=Chunks(send_counts=[0, 7])), 28),
        (Operation(Kind.ALL_TO_ALL, Dtype.FLOAT32, 3, chunks=Chunks(send_counts=[0, 0])), 0),
    ],
)
def test_bytes_of_an_operation_count_the_part_of_one_rank(operation, num_bytes):
    assert operation.num_bytes == num_bytes
