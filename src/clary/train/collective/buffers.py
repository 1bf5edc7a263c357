"""Callers' memory as cores need it: address, element count, type, and the owner that keeps it alive.

Where: `communicator` turns every argument into a `Buffer` and holds it until the operation has ended; adapters make
their own. This module never copies or converts: unsuitable memory is refused, with the remedy. Source: Python's buffer
protocol, PEP 3118; struct Py_buffer as in CPython's stable ABI since 3.11, and in 3.10.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from clary.train._native import core
from clary.train._native.interface import ELEMENT_BYTES, Dtype

_FORMATS = {
    "f": Dtype.FLOAT32,
    "d": Dtype.FLOAT64,
    "e": Dtype.FLOAT16,
    "?": Dtype.BOOL,
}
_NATIVE_FORMATS: dict[str, Dtype] = {**_FORMATS, "b": Dtype.INT8, "B": Dtype.UINT8}  # formats that need no check
_SIGNED = {1: Dtype.INT8, 2: Dtype.INT16, 4: Dtype.INT32, 8: Dtype.INT64}
_SIGNED_CODES, _BYTE_CODES, _WORD_CODES = "bhilqn", "Bc", "hH"
_FOREIGN_ORDER = ">!" if sys.byteorder == "little" else "<"
_PLAIN = 0  # PyBUF_SIMPLE


class _PyBuffer(ctypes.Structure):
    """`Py_buffer`: the memory that an object exports until the buffer is released."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


@dataclass(slots=True)  # frozen would cost more than all other work of a small call
class Buffer:
    """Contiguous memory; never changed after its creation.

    Args:
        owner: object that must live as long as the memory is used.
    """

    address: int
    num_elements: int
    dtype: Dtype
    is_writable: bool = True
    owner: Any = field(default=None, repr=False, compare=False)

    @property
    def num_bytes(self) -> int:
        """Length in bytes."""
        return self.num_elements * ELEMENT_BYTES[self.dtype]

    def overlaps(self, other: Buffer) -> bool:
        """Whether two buffers share bytes."""
        num_bytes, their_bytes = self.num_bytes, other.num_bytes
        if not num_bytes or not their_bytes:
            return False
        return self.address < other.address + their_bytes and other.address < self.address + num_bytes


def buffer_of(memory: Any, *, name: str, dtype: Dtype | None = None, is_output: bool = False) -> Buffer:
    """Return the memory of an object, which must not be resized while the result lives.

    Args:
        memory: a `Buffer`, or an object with the buffer protocol: bytearray, array, memoryview, numpy array...
        name: name of the argument, for messages.
        dtype: element type. Needed for bfloat16 and if bytes represent another type; else it follows from the
        object's format.
        is_output: whether it will be written.

    Raises:
        TypeError: an object without the buffer protocol, or elements of a type that cores do not know or that is not
        `dtype`. ValueError: memory that is not contiguous, a read-only output, or no whole number of elements.
    """
    if isinstance(memory, Buffer):
        found = memory
        if dtype is not None and dtype is not found.dtype:
            raise TypeError(f"{name} holds {_word(found.dtype)}, expected {_word(dtype)}")
    else:
        found = _from_protocol(memory, name, dtype)
    if is_output and not found.is_writable:
        raise ValueError(f"{name} is read-only and would be written: pass memory of your own, a bytearray for example")
    return found


def _from_protocol(memory: Any, name: str, dtype: Dtype | None) -> Buffer:
    try:
        view = memoryview(memory)
    except TypeError:
        raise TypeError(
            f"{name} is a {type(memory).__name__}, which has no buffer: pass a bytearray, array, memoryview or numpy "
            f"array"
        ) from None
    if not view.c_contiguous:
        raise ValueError(f"{name} is strided memory: pass a contiguous copy, numpy.ascontiguousarray(...) for example")
    kind = _NATIVE_FORMATS.get(view.format)
    if kind is None or (dtype is not None and dtype is not kind):
        kind = _dtype_of(view, name, dtype)
    num_bytes, element_bytes = view.nbytes, ELEMENT_BYTES[kind]
    if num_bytes % element_bytes:
        raise ValueError(f"{name} has {num_bytes} bytes, which is not a whole number of {_word(kind)} elements")
    return Buffer(_address_of(view), num_bytes // element_bytes, kind, not view.readonly, view)


def _dtype_of(view: memoryview, name: str, dtype: Dtype | None) -> Dtype:
    """Return the type of the elements: `dtype`, if the memory can hold it."""
    code = view.format.lstrip("@=<>!") or "B"
    if view.format[0] in _FOREIGN_ORDER:
        raise TypeError(f"{name} has elements of format {view.format!r}, in the other byte order: convert it first")
    found = _FORMATS.get(code, Dtype.UINT8 if code in _BYTE_CODES else None)
    if found is None and code in _SIGNED_CODES:
        found = _SIGNED[view.itemsize]
    if dtype is None and found is not None:
        return found
    if dtype is None:
        raise TypeError(
            f"{name} has elements of format {view.format!r}, which collectives do not support; they "
            f"support {', '.join(map(_word, Dtype))}; for bfloat16, or bits that mean another type, pass "
            "dtype="
        )
    is_raw = code in _BYTE_CODES or (dtype is Dtype.BFLOAT16 and code in _WORD_CODES)
    if found is not dtype and not is_raw:
        raise TypeError(f"{name} has elements of format {view.format!r}, expected {_word(dtype)}")
    return dtype


def _address_of(view: memoryview) -> int:
    """Return the address of the memory, which is valid as long as the view."""
    if (fast := core.door()) is not None:
        return int(fast.address_of(view))
    raw = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(raw), _PLAIN)
    address = raw.buf or 0
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(raw))
    return address


def buffers_of(
    memories: Any, size: int, *, name: str, dtype: Dtype | None = None, is_output: bool = False
) -> Buffer | list[Buffer]:
    """Return memory for all ranks: one buffer, or a list with one buffer per rank.

    Args:
        memories: one object with all chunks, or a list or tuple with one object per rank.
        size: number of ranks.
        name: name of the argument, for errors.
        dtype: element type; None to derive it from the format.
        is_output: whether they will be written.
    Raises: as `buffer_of`; ValueError for a list of another length.
    """
    if not isinstance(memories, list | tuple):
        return buffer_of(memories, name=name, dtype=dtype, is_output=is_output)
    if len(memories) != size:
        raise ValueError(f"{name} has {len(memories)} chunks; expected one a rank, {size}")
    return [
        buffer_of(memory, name=f"{name}[{rank}]", dtype=dtype, is_output=is_output)
        for rank, memory in enumerate(memories)
    ]


def check_apart(sources: Sequence[Buffer], targets: Sequence[Buffer], *, may_be_equal: bool) -> None:
    """Refuse inputs and outputs of an operation that overlap, and outputs that overlap each other.

    Args:
        may_be_equal: whether a single source may be the single target itself ("in place").

    Raises: ValueError.
    """
    if len(sources) == len(targets) == 1 and not sources[0].overlaps(targets[0]):
        return
    for source in sources:
        for target in targets:
            is_same = source.address == target.address and source.num_bytes == target.num_bytes
            if source.overlaps(target) and not (may_be_equal and is_same):
                raise ValueError(
                    "input and output overlap: pass memory that does not overlap"
                    + (", or the same memory for both" if may_be_equal else "")
                )
    for place, target in enumerate(targets):
        if any(target.overlaps(other) for other in targets[place + 1 :]):
            raise ValueError("chunks of the output overlap: pass memory that does not overlap")


def _word(dtype: Dtype) -> str:
    return dtype.name.lower()
