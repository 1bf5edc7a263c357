"""Messages between ranks of a pipeline, as bytes: a small pickled head, then the raw tensors.

Where: `links` sends and receives messages; `server` makes them and acts on them.

Tensors are extracted from nested arguments and results (lists, tuples, named tuples, sets, dicts, dataclasses such as
transformers' outputs) and inserted again by the receiver; all other values are pickled. Peers are authenticated when
`connection` connects the streams, and run the same program, so their pickles are trusted.

A GPU tensor may be lent instead (`hand_over`): then the head contains a record, and no bytes of the tensor follow.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import io
import logging
import pickle
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from clary.train.parallel.microbatches import mapping_like

_LOG = logging.getLogger(__name__)
HEAD_LENGTH = struct.Struct("<Q")
MAX_HEAD_BYTES = 1 << 28  # maximum size of a head in bytes; a head holds no tensors


class Subject(Enum):
    """The subject of a message."""

    FORWARD = "forward"  # a request: run a module
    BACKWARD = "backward"  # a request: run the backward pass of an earlier FORWARD
    OUTPUT = "output"  # the response to FORWARD or BACKWARD
    FAILED = "failed"  # the response to a failed FORWARD or BACKWARD; body is the failed subject and text
    TURN = "turn"  # from the leader of ranks that act in the same order: their next action
    STEP_END = "step end"  # the step's results, from the first stage
    ABORT = "abort"  # the step failed; body is text


# Subjects whose tensors are moved to the receiver's device; a step's results stay in host memory.
_ON_DEVICE = (Subject.FORWARD, Subject.BACKWARD, Subject.OUTPUT)


@dataclass(frozen=True)
class CallId:
    """One call of a module by another rank.

    Args:
        caller: pipeline rank that makes the call.
        microbatch: number of the caller's microbatch.
        number: index of the call among the caller's calls for this microbatch in this step, from 0.
    """

    caller: int
    microbatch: int
    number: int


@dataclass
class Message:
    """One message.

    Args:
        body: nested values without tensors; `Slot(i)` stands for `tensors[i]`.
    """

    subject: Subject
    call: CallId | None = None
    body: Any = None
    tensors: Sequence[torch.Tensor] = ()


@dataclass(frozen=True)
class Slot:
    """Placeholder of a tensor in a structure whose tensors were extracted."""

    place: int


@dataclass(frozen=True)
class Loan:
    """Placeholder in a head for a tensor whose values stay in GPU memory; see `lending`."""

    record: bytes


def take_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return `value` with a Slot for every tensor in it; the tensors are added to `tensors`, in order."""

    def take(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            tensors.append(leaf)
            return Slot(len(tensors) - 1)
        return leaf

    return map_leaves(value, take)


def put_tensors(value: Any, tensors: Sequence[Any]) -> Any:
    """Return `value` with every Slot replaced by its tensor."""
    return map_leaves(value, lambda leaf: tensors[leaf.place] if isinstance(leaf, Slot) else leaf)


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Copy nested containers, with every leaf changed."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_leaves(item, change) for item in value))
    if isinstance(value, list | tuple | set | frozenset):
        return type(value)(map_leaves(item, change) for item in value)
    if isinstance(value, Mapping):
        items = {key: map_leaves(item, change) for key, item in value.items()}
        return mapping_like(value, items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type | Slot):
        fields = {one.name: getattr(value, one.name) for one in dataclasses.fields(value) if one.init}
        return dataclasses.replace(value, **{name: map_leaves(item, change) for name, item in fields.items()})
    return change(value)


class _Head(pickle.Pickler):
    """Pickler that logs once if tensors inside pickled objects, such as transformers' caches, lose their graph."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor) and obj.requires_grad:
            _say_that_gradients_stop()
        return NotImplemented


@functools.cache
def _say_that_gradients_stop() -> None:
    _LOG.warning(
        "tensors in objects other than lists, tuples, dicts and dataclasses go between ranks without gradients"
    )


def encode(message: Message, lend: Callable[[torch.Tensor], bytes | None] | None = None) -> list[Any]:
    """Encode a message as buffers to send in order, which keep the tensors alive.

    Args:
        lend: returns the record of a tensor if it is lent to the receiver, else None.
    """
    ready: list[torch.Tensor] = []
    kinds: list[Any] = []
    for tensor in message.tensors:
        record = None if lend is None or message.subject not in _ON_DEVICE else lend(tensor)
        if record is not None:
            kinds.append(Loan(record))
            continue
        ready.append(tensor.detach().cpu().contiguous())
        kinds.append((ready[-1].dtype, tuple(ready[-1].shape)))
    file = io.BytesIO()
    _Head(file, protocol=pickle.HIGHEST_PROTOCOL).dump((message.subject, message.call, message.body, kinds))
    head = file.getvalue()
    buffers: list[Any] = [HEAD_LENGTH.pack(len(head)) + head]
    buffers.extend(_bytes_of(tensor) for tensor in ready if tensor.numel())
    return buffers


def decode(head: bytes, read: Callable[[Any], None], borrow: Callable[[bytes], torch.Tensor] | None = None) -> Message:
    """Decode a message from its head; `read` fills a writable buffer with the bytes that follow.

    Tensors are in host memory, except lent tensors, which `borrow` returns.

    Raises: OSError if a tensor was lent and `borrow` is None.
    """
    subject, call, body, kinds = pickle.loads(head)  # noqa: S301 - from a peer that has proved itself
    tensors = []
    for kind in kinds:
        if isinstance(kind, Loan):
            if borrow is None:
                raise OSError("a peer lent memory of its GPU to this rank, which has not agreed to any loan")
            tensors.append(borrow(kind.record))
            continue
        dtype, shape = kind
        tensor = torch.empty(shape, dtype=dtype)
        if tensor.numel():
            read(_bytes_of(tensor))
        tensors.append(tensor)
    return Message(subject, call, body, tensors)


def _bytes_of(tensor: torch.Tensor) -> Any:
    """Return a contiguous host tensor's memory as bytes, which keep the tensor alive."""
    num_bytes = tensor.numel() * tensor.element_size()
    array = (ctypes.c_char * num_bytes).from_address(tensor.data_ptr())
    array.owner = tensor
    return memoryview(array).cast("B")
