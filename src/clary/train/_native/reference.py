"""The reference core: the semantics of the compiled one in plain Python, over the same connections. Slow.

Where: `collective.cores` opens it where no library was built or CLARY_COLLECTIVE_CORE=reference asks for it.

Every collective is one exchange: each rank sends each other rank one message, often empty, that describes the
operation, waits for one from each, and then computes its own result (`reference_math`). So all find out when they did
not call the same. The shared memory is not used.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence

from clary.train._native.interface import Dtype, ReduceOp
from clary.train._native.reference_exchange import PeerExchange, read_memory
from clary.train._native.reference_math import expected_all_reduce

_COLLECTIVE_NAMES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "gather",
    "scatter",
    "barrier",
    "send",
    "receive",
)


class ReferenceCore(PeerExchange):
    """`interface.Core` in plain Python; owns the descriptors of its connections."""

    def all_reduce(
        self, source: int, target: int, count: int, dtype: int, op: int, asynchronous: bool, timeout_s: float
    ) -> int:
        """Reduce `count` elements of every rank into `target` of all."""
        num_bytes = self._bytes_of(count, dtype, op)

        def finish(inputs: list[bytes]) -> int:
            _write(target, expected_all_reduce(inputs, dtype, op))
            return self.size * num_bytes

        label = _label("all_reduce", count, dtype, op=op)
        return self._call(
            label, lambda _: read_memory(source, num_bytes), lambda _: num_bytes, finish, asynchronous, timeout_s
        )

    def all_gather(
        self,
        source: int,
        target: int,
        outputs: Sequence[int] | None,
        count: int,
        dtype: int,
        asynchronous: bool,
        timeout_s: float,
    ) -> int:
        """Collect `count` elements of every rank in rank order."""
        num_bytes = self._bytes_of(count, dtype)
        places = _places(target, outputs, [num_bytes] * self.size)

        def finish(inputs: list[bytes]) -> int:
            return _write_all(places, inputs)

        label = _label("all_gather", count, dtype)
        return self._call(
            label, lambda _: read_memory(source, num_bytes), lambda _: num_bytes, finish, asynchronous, timeout_s
        )

    def reduce_scatter(
        self,
        source: int,
        inputs: Sequence[int] | None,
        target: int,
        count: int,
        dtype: int,
        op: int,
        asynchronous: bool,
        timeout_s: float,
    ) -> int:
        """Reduce `size * count` elements of every rank; rank r keeps chunk r."""
        num_bytes = self._bytes_of(count, dtype, op)
        places = _places(source, inputs, [num_bytes] * self.size)

        def finish(chunks: list[bytes]) -> int:
            _write(target, expected_all_reduce(chunks, dtype, op))
            return self.size * num_bytes

        label = _label("reduce_scatter", count, dtype, op=op)
        return self._call(
            label,
            lambda peer: read_memory(places[peer], num_bytes),
            lambda _: num_bytes,
            finish,
            asynchronous,
            timeout_s,
        )

    def broadcast(self, buffer: int, count: int, dtype: int, root: int, asynchronous: bool, timeout_s: float) -> int:
        """Copy the root's buffer to all."""
        num_bytes = self._bytes_of(count, dtype, root=root)
        is_root = self.rank == root

        def finish(inputs: list[bytes]) -> int:
            return 0 if is_root else _write(buffer, inputs[root])

        return self._call(
            _label("broadcast", count, dtype, root=root),
            lambda _: read_memory(buffer, num_bytes) if is_root else b"",
            lambda peer: num_bytes if peer == root else 0,
            finish,
            asynchronous,
            timeout_s,
        )

    def reduce(
        self, source: int, target: int, count: int, dtype: int, op: int, root: int, asynchronous: bool, timeout_s: float
    ) -> int:
        """Reduce into the root's `target`; others may pass 0."""
        num_bytes = self._bytes_of(count, dtype, op, root=root)
        is_root = self.rank == root

        def finish(inputs: list[bytes]) -> int:
            if not is_root:
                return 0
            _write(target, expected_all_reduce(inputs, dtype, op))
            return self.size * num_bytes

        return self._call(
            _label("reduce", count, dtype, op=op, root=root),
            lambda peer: read_memory(source, num_bytes) if peer == root else b"",
            lambda _: num_bytes if is_root else 0,
            finish,
            asynchronous,
            timeout_s,
        )

    def all_to_all(
        self,
        source: int,
        inputs: Sequence[int] | None,
        send_counts: Sequence[int] | None,
        target: int,
        outputs: Sequence[int] | None,
        receive_counts: Sequence[int] | None,
        count: int,
        dtype: int,
        asynchronous: bool,
        timeout_s: float,
    ) -> int:
        """Send a chunk to every rank and receive one from each; counts None means `count` each."""
        element_bytes = self._bytes_of(1, dtype)
        self._bytes_of(count, dtype)
        sent = [element_bytes * number for number in send_counts or [count] * self.size]
        received = [element_bytes * number for number in receive_counts or [count] * self.size]
        sources = _places(source, inputs, sent)
        targets = _places(target, outputs, received)
        label = _label("all_to_all", None, dtype)  # counts may differ; the sizes of what comes are compared
        return self._call(
            label,
            lambda peer: read_memory(sources[peer], sent[peer]),
            lambda peer: received[peer],
            lambda chunks: _write_all(targets, chunks),
            asynchronous,
            timeout_s,
        )

    def gather(
        self,
        source: int,
        target: int,
        outputs: Sequence[int] | None,
        count: int,
        dtype: int,
        root: int,
        asynchronous: bool,
        timeout_s: float,
    ) -> int:
        """Collect `count` elements of every rank on the root."""
        num_bytes = self._bytes_of(count, dtype, root=root)
        is_root = self.rank == root
        places = _places(target, outputs, [num_bytes] * self.size)
        return self._call(
            _label("gather", count, dtype, root=root),
            lambda peer: read_memory(source, num_bytes) if peer == root else b"",
            lambda _: num_bytes if is_root else 0,
            lambda inputs: _write_all(places, inputs) if is_root else 0,
            asynchronous,
            timeout_s,
        )

    def scatter(
        self,
        source: int,
        inputs: Sequence[int] | None,
        target: int,
        count: int,
        dtype: int,
        root: int,
        asynchronous: bool,
        timeout_s: float,
    ) -> int:
        """Give each rank its chunk of the root's `size * count` elements."""
        num_bytes = self._bytes_of(count, dtype, root=root)
        is_root = self.rank == root
        places = _places(source, inputs, [num_bytes] * self.size)
        return self._call(
            _label("scatter", count, dtype, root=root),
            lambda peer: read_memory(places[peer], num_bytes) if is_root else b"",
            lambda peer: num_bytes if peer == root else 0,
            lambda chunks: _write(target, chunks[root]),
            asynchronous,
            timeout_s,
        )

    def barrier(self, asynchronous: bool, timeout_s: float) -> int:
        """End when every rank has called it."""
        return self._call("barrier", lambda _: b"", lambda _: 0, lambda _: 0, asynchronous, timeout_s)

    def explain(self, collective: int, num_bytes: int) -> str:
        """Say how an operation runs: here always in the same way."""
        return f"{_COLLECTIVE_NAMES[collective]} of {num_bytes} bytes: reference core, every rank sends to every other"

    def _bytes_of(self, count: int, dtype: int, op: int | None = None, *, root: int = 0) -> int:
        """Check what was asked for; return the bytes of `count` elements."""
        if not 0 <= dtype < len(Dtype):
            raise ValueError(f"{self._words()}: element type {dtype} is unknown, expected 0 to {len(Dtype) - 1}")
        kind = Dtype(dtype)
        if op is not None and (not 0 <= op < len(ReduceOp) or not ReduceOp(op).is_defined_on(kind)):
            name = ReduceOp(op).name.lower() if 0 <= op < len(ReduceOp) else op
            raise ValueError(f"{self._words()}: reduction {name} is not defined on {kind.name.lower()}")
        if count < 0:
            raise ValueError(f"{self._words()}: {count} elements; expected 0 or more")
        if not 0 <= root < self.size:
            raise ValueError(f"{self._words()}: root {root} is no rank of a group of {self.size}")
        return count * kind.element_bytes


def _label(name: str, count: int | None, dtype: int, *, op: int | None = None, root: int | None = None) -> str:
    words = [name, Dtype(dtype).name.lower()]
    if op is not None:
        words.append(ReduceOp(op).name.lower())
    if count is not None:
        words.append(f"of {count} elements")
    if root is not None:
        words.append(f"with root {root}")
    return " ".join(words)


def _places(address: int, apart: Sequence[int] | None, lengths: Sequence[int]) -> list[int]:
    """Return the address of each rank's chunk, which lie behind each other unless `apart` names them."""
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
