"""The reference core: the semantics of the compiled core in plain Python, over the same connections. Slow.

Where: `collective.cores` opens it if no library was built or CLARY_COLLECTIVE_CORE is `reference`.

Every collective is one exchange: each rank sends every other rank one message that describes the operation, receives
one message from each, and then computes its own result (`reference_math`). So all ranks detect that they have called
different collectives. The shared memory is not used.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from functools import partial

from clary.train._native.interface import ELEMENT_BYTES, Chunks, Dtype, Kind, Operation, ReduceOp, ShortCalls
from clary.train._native.reference_exchange import Meaning, PeerExchange, read_memory
from clary.train._native.reference_math import expected_all_reduce

_REDUCING = frozenset({Kind.ALL_REDUCE, Kind.REDUCE_SCATTER, Kind.REDUCE})
_ROOTED = frozenset({Kind.BROADCAST, Kind.REDUCE, Kind.GATHER, Kind.SCATTER})


class ReferenceCore(PeerExchange, ShortCalls):
    """`interface.Core` in plain Python; owns the descriptors of its connections."""

    def run(self, operation: Operation) -> int:
        """Begin an operation and return its ticket, or 0 if it has ended."""
        if operation.kind is Kind.SEND:
            return self._send(operation)
        if operation.kind is Kind.RECEIVE:
            return self._receive(operation)
        self._check(operation)
        meanings: dict[Kind, Callable[[Operation], Meaning]] = {
            Kind.ALL_REDUCE: self._all_reduce,
            Kind.ALL_GATHER: self._all_gather,
            Kind.REDUCE_SCATTER: self._reduce_scatter,
            Kind.BROADCAST: self._broadcast,
            Kind.REDUCE: self._reduce,
            Kind.ALL_TO_ALL: self._all_to_all,
            Kind.GATHER: self._gather,
            Kind.SCATTER: self._scatter,
            Kind.BARRIER: self._barrier,
        }
        return self._call(operation, _label(operation), meanings[operation.kind](operation))

    def explain(self, collective: int, num_bytes: int) -> str:
        """Return how an operation runs: always by the same algorithm."""
        return f"{Kind(collective).name.lower()} of {num_bytes} bytes: reference core, every rank sends to every other"

    # Each of these methods returns the functions that carry out a collective on this rank.

    def _all_reduce(self, asked: Operation) -> Meaning:
        length = asked.num_bytes
        return Meaning(lambda _: read_memory(asked.source, length), lambda _: length, partial(_reduce_into, asked))

    def _all_gather(self, asked: Operation) -> Meaning:
        length = asked.num_bytes
        places = self._places(asked.target, _chunks_of(asked).targets, length)
        return Meaning(lambda _: read_memory(asked.source, length), lambda _: length, partial(_write_all, places))

    def _reduce_scatter(self, asked: Operation) -> Meaning:
        length = asked.num_bytes
        places = self._places(asked.source, _chunks_of(asked).sources, length)
        return Meaning(lambda peer: read_memory(places[peer], length), lambda _: length, partial(_reduce_into, asked))

    def _broadcast(self, asked: Operation) -> Meaning:
        length, is_root = asked.num_bytes, self.rank == asked.root
        return Meaning(
            lambda _: read_memory(asked.target, length) if is_root else b"",
            lambda peer: length if peer == asked.root else 0,
            lambda inputs: 0 if is_root else _write(asked.target, inputs[asked.root]),
        )

    def _reduce(self, asked: Operation) -> Meaning:
        length, is_root = asked.num_bytes, self.rank == asked.root
        return Meaning(
            lambda peer: read_memory(asked.source, length) if peer == asked.root else b"",
            lambda _: length if is_root else 0,
            lambda inputs: _reduce_into(asked, inputs) if is_root else 0,
        )

    def _all_to_all(self, asked: Operation) -> Meaning:
        chunks, element_bytes = _chunks_of(asked), ELEMENT_BYTES[asked.dtype]
        sent = [element_bytes * number for number in chunks.send_counts or [asked.count] * self.size]
        received = [element_bytes * number for number in chunks.receive_counts or [asked.count] * self.size]
        sources = _places(asked.source, chunks.sources, sent)
        targets = _places(asked.target, chunks.targets, received)
        return Meaning(
            lambda peer: read_memory(sources[peer], sent[peer]),
            lambda peer: received[peer],
            partial(_write_all, targets),
        )

    def _gather(self, asked: Operation) -> Meaning:
        length, is_root = asked.num_bytes, self.rank == asked.root
        places = self._places(asked.target, _chunks_of(asked).targets, length)
        return Meaning(
            lambda peer: read_memory(asked.source, length) if peer == asked.root else b"",
            lambda _: length if is_root else 0,
            lambda inputs: _write_all(places, inputs) if is_root else 0,
        )

    def _scatter(self, asked: Operation) -> Meaning:
        length, is_root = asked.num_bytes, self.rank == asked.root
        places = self._places(asked.source, _chunks_of(asked).sources, length)
        return Meaning(
            lambda peer: read_memory(places[peer], length) if is_root else b"",
            lambda peer: length if peer == asked.root else 0,
            lambda inputs: _write(asked.target, inputs[asked.root]),
        )

    def _barrier(self, asked: Operation) -> Meaning:
        return Meaning(lambda _: b"", lambda _: 0, lambda _: 0)

    def _places(self, address: int, apart: Sequence[int] | None, length: int) -> list[int]:
        return _places(address, apart, [length] * self.size)

    def _check(self, asked: Operation) -> None:
        if not 0 <= asked.dtype < len(Dtype):
            raise ValueError(f"{self._words()}: element type {asked.dtype} is unknown, expected 0 to {len(Dtype) - 1}")
        kind, op = Dtype(asked.dtype), asked.reduction
        if asked.kind in _REDUCING and (not 0 <= op < len(ReduceOp) or not ReduceOp(op).is_defined_on(kind)):
            name = ReduceOp(op).name.lower() if 0 <= op < len(ReduceOp) else op
            raise ValueError(f"{self._words()}: reduction {name} is not defined on {kind.name.lower()}")
        if asked.count < 0:
            raise ValueError(f"{self._words()}: {asked.count} elements; expected 0 or more")
        if asked.kind in _ROOTED and not 0 <= asked.root < self.size:
            raise ValueError(f"{self._words()}: root {asked.root} is no rank of a group of {self.size}")


def _label(asked: Operation) -> str:
    """Return the label that must be equal on all ranks; it omits the counts of all_to_all, whose sizes are compared."""
    words = [asked.kind.name.lower()]
    if asked.kind is not Kind.BARRIER:
        words.append(Dtype(asked.dtype).name.lower())
    if asked.kind in _REDUCING:
        words.append(ReduceOp(asked.reduction).name.lower())
    if asked.kind not in (Kind.BARRIER, Kind.ALL_TO_ALL):
        words.append(f"of {asked.count} elements")
    if asked.kind in _ROOTED:
        words.append(f"with root {asked.root}")
    return " ".join(words)


def _chunks_of(asked: Operation) -> Chunks:
    return asked.chunks or Chunks()


def _reduce_into(asked: Operation, inputs: list[bytes]) -> int:
    _write(asked.target, expected_all_reduce(inputs, asked.dtype, asked.reduction))
    return sum(map(len, inputs))


def _places(address: int, apart: Sequence[int] | None, lengths: Sequence[int]) -> list[int]:
    """Return the address of each rank's chunk: `apart`, or contiguous addresses from `address` on."""
    if apart is not None:
        if len(apart) != len(lengths):
            raise ValueError(f"{len(apart)} chunks; expected one a rank, {len(lengths)}")
        return list(apart)
    offsets = itertools.accumulate(lengths, initial=0)
    return [address + offset for offset, _ in zip(offsets, lengths, strict=False)]


def _write(address: int, data: bytes) -> int:
    if data:
        ctypes.memmove(address, data, len(data))
    return 0


def _write_all(places: Sequence[int], chunks: Sequence[bytes]) -> int:
    for place, data in zip(places, chunks, strict=True):
        _write(place, data)
    return 0
