"""Memory that cores take: accepted buffers, and refusals with the fix."""

import ctypes
import sys
from array import array

import pytest

from clary.train._native.interface import Dtype
from clary.train.collective.buffers import Buffer, buffer_of, buffers_of, check_apart


@pytest.mark.parametrize(
    ("memory", "dtype", "num_elements"),
    [
        (array("f", [1, 2, 3]), Dtype.FLOAT32, 3),
        (array("d", [1, 2]), Dtype.FLOAT64, 2),
        (array("b", [1]), Dtype.INT8, 1),
        (array("h", [1]), Dtype.INT16, 1),
        (array("i", [1]), Dtype.INT32, 1),
        (array("q", [1]), Dtype.INT64, 1),
        (array("l", [1]), Dtype.INT64 if ctypes.sizeof(ctypes.c_long) == 8 else Dtype.INT32, 1),
        (bytearray(5), Dtype.UINT8, 5),
        (memoryview(bytearray(2)).cast("?"), Dtype.BOOL, 2),
        (memoryview(bytearray(12)).cast("B", (3, 4)), Dtype.UINT8, 12),
        (bytearray(), Dtype.UINT8, 0),
    ],
)
def test_an_object_with_a_buffer_says_what_it_holds(memory, dtype, num_elements):
    found = buffer_of(memory, name="source", is_output=True)
    assert (found.dtype, found.num_elements) == (dtype, num_elements)


def test_the_address_is_that_of_the_memory_itself():
    memory = array("i", [1, 2, 3])
    found = buffer_of(memory, name="source")
    assert found.address == memory.buffer_info()[0]
    assert buffer_of(memoryview(memory)[1:], name="source").address == found.address + 4


def test_memory_cannot_be_resized_while_it_is_used():
    memory = bytearray(8)
    found = buffer_of(memory, name="source")
    with pytest.raises(BufferError):
        memory.extend(b"more")
    del found
    memory.extend(b"more")


def test_read_only_memory_may_be_read_and_not_written():
    found = buffer_of(b"abcd", name="source")
    assert ctypes.string_at(found.address, 4) == b"abcd"
    with pytest.raises(ValueError, match=r"target is read-only .* bytearray"):
        buffer_of(b"abcd", name="target", is_output=True)


def test_bytes_may_stand_for_any_type_that_is_named():
    assert buffer_of(bytearray(8), name="source", dtype=Dtype.BFLOAT16).num_elements == 4
    assert buffer_of(array("H", [1, 2]), name="source", dtype=Dtype.BFLOAT16).num_elements == 2
    with pytest.raises(ValueError, match="7 bytes, which is not a whole number of float32"):
        buffer_of(bytearray(7), name="source", dtype=Dtype.FLOAT32)


@pytest.mark.parametrize(
    ("memory", "dtype", "error", "words"),
    [
        ([1, 2], None, TypeError, "list, which has no buffer: pass a bytearray"),
        (array("I", [1]), None, TypeError, "format 'I', which collectives do not support; they support float32"),
        (array("f", [1]), Dtype.INT32, TypeError, "format 'f', expected int32"),
        (memoryview(bytearray(8))[::2], None, ValueError, "strided memory: pass a contiguous copy"),
        ((ctypes.c_int32.__ctype_be__ * 2)(), None, TypeError, "in the other byte order"),
        (Buffer(0, 0, Dtype.INT8), Dtype.INT16, TypeError, "holds int8, expected int16"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_fix(memory, dtype, error, words):
    assert sys.byteorder == "little"
    with pytest.raises(error, match=words):
        buffer_of(memory, name="source", dtype=dtype)


def test_chunks_lie_behind_each_other_or_in_a_list_of_one_a_rank():
    whole = buffers_of(bytearray(6), 3, name="target")
    assert isinstance(whole, Buffer)
    assert whole.num_elements == 6
    apart = buffers_of([bytearray(2), bytearray(2)], 2, name="target")
    assert [chunk.num_elements for chunk in apart] == [2, 2]
    with pytest.raises(ValueError, match="2 chunks; expected one a rank, 3"):
        buffers_of([bytearray(2), bytearray(2)], 3, name="target")
    with pytest.raises(ValueError, match=r"target\[1\] is read-only"):
        buffers_of([bytearray(2), b"ab"], 2, name="target", is_output=True)


def test_memory_that_is_read_and_written_must_lie_apart_or_be_the_same():
    memory = bytearray(8)
    whole = buffer_of(memory, name="whole")
    tail = buffer_of(memoryview(memory)[4:], name="tail")
    head = buffer_of(memoryview(memory)[:4], name="head")
    check_apart([head], [tail], may_be_equal=False)
    check_apart([whole], [whole], may_be_equal=True)
    with pytest.raises(ValueError, match="overlap: pass memory that does not overlap, or the same memory"):
        check_apart([whole], [tail], may_be_equal=True)
    with pytest.raises(ValueError, match="overlap"):
        check_apart([whole], [whole], may_be_equal=False)
    with pytest.raises(ValueError, match="chunks of the output overlap"):
        check_apart([], [head, whole], may_be_equal=True)
