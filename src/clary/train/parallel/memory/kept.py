"""One offloaded tensor: its copy elsewhere, and its return with the same values and layout.

Where: `offloading` makes one for every tensor that it moves.
"""

from __future__ import annotations

import weakref
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from clary.train.parallel.memory.spill import WAIT_LIMIT_S, Spill, SpillError


@dataclass
class OffloadCounts:
    """Counts of the offloading so far, in bytes and in numbers of tensors."""

    offloaded_bytes: int = 0
    staying_bytes: int = 0  # of tensors not offloaded: too small, parameters, or of an unsupported kind
    num_read: int = 0
    num_read_late: int = 0  # tensors not yet read when backward needed them
    num_never_left: int = 0  # tensors needed before they were written


@dataclass(frozen=True)
class Layout:
    """The layout of a tensor in memory."""

    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Layout:
        """Return the layout of a tensor that has elements.

        Args:
            tensor: of any shape without a dimension of length 0.
        """
        return cls(tensor.shape, tensor.stride(), tensor.dtype, tensor.device)

    @property
    def span(self) -> int:
        """Number of memory elements from the tensor's first to its last."""
        return int(1 + sum((length - 1) * step for length, step in zip(self.size, self.stride, strict=True)))

    @property
    def own_size(self) -> torch.Size:
        """The tensor's size with length 1 for expanded dimensions."""
        return torch.Size(1 if step == 0 else length for length, step in zip(self.size, self.stride, strict=True))

    @property
    def is_dense(self) -> bool:
        """Whether the tensor contains every element of its span."""
        return self.span <= int(self.own_size.numel())

    @property
    def num_packed(self) -> int:
        """Number of elements that `pack` returns."""
        return self.span if self.is_dense else int(self.own_size.numel())

    @property
    def packed_bytes(self) -> int:
        """Number of bytes that `pack` returns."""
        return int(self.num_packed * self.dtype.itemsize)

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return all elements on one axis, each repeated element once; a dense tensor is not copied.

        Args:
            tensor: of shape `size` and strides `stride`; the result is [`num_packed`].
        """
        if self.is_dense:
            return tensor.as_strided((self.span,), (1,))
        return tensor.as_strided(self.own_size, self.stride).contiguous().reshape(-1)

    def unpack(self, flat: torch.Tensor) -> torch.Tensor:
        """Restore the tensor from the result of `pack`.

        Args:
            flat: [`num_packed`]; a dense result shares its memory.
        """
        if self.is_dense:
            return flat.as_strided(self.size, self.stride)
        tensor = torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=flat.device)
        tensor.as_strided(self.own_size, self.stride).copy_(flat.reshape(self.own_size))
        return tensor


class Kept:
    """An offloaded tensor; `bring` may be called more than once."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.layout = Layout.of(tensor)
        # Keeps the storage's address reserved but no memory, so the address identifies the storage.
        self.storage = StorageWeakRef(tensor.untyped_storage())
        # Shares the version counter of the tensor and its views, even after they are freed, but not their memory.
        self._counter = tensor.detach()
        self._counter.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        self._version = self._counter._version

    def load(self) -> None:
        """Start to load the tensor.

        Raises: NotImplementedError, unless a subclass overrides it.
        """
        raise NotImplementedError

    def bring(self) -> torch.Tensor:
        """Return the tensor with its values and layout.

        Raises: RuntimeError if the tensor was changed in place after it was offloaded.
        """
        raise NotImplementedError

    def _check_unchanged(self) -> None:
        # Any change is an error, as in autograd: another thread or stream makes the copy, perhaps after the change.
        if self._counter._version != self._version:
            raise RuntimeError(
                f"activation offloading: a tensor of shape {tuple(self.layout.size)} that a checkpointed module was "
                "given has been changed in place since; backward would compute with other values than forward did. "
                "Change a copy of it (clone)"
            )


class SpilledTensor(Kept):
    """A tensor in a file, and in memory until it is written.

    Raises: SpillError from the constructor, `load` and `bring`: the disk is full, failed or does not answer.
    """

    def __init__(self, tensor: torch.Tensor, spill: Spill, counts: OffloadCounts, stream: Any = None) -> None:
        super().__init__(tensor)
        self._spill, self._counts, self._stream = spill, counts, stream
        self._original: torch.Tensor | None = tensor
        self._loaded: torch.Tensor | None = None
        self._reading: Future[None] | None = None
        size = self.layout.packed_bytes
        self._extent = spill.reserve(size)
        weakref.finalize(self, spill.give_back, self._extent).atexit = False
        flat, ready = self.layout.pack(tensor), None
        if stream is not None:
            flat, event = _copy_to_host(flat, stream)
            ready = event.synchronize
        self._writing = spill.write(self._extent, flat.data_ptr(), size, owner=flat, ready=ready)
        this = weakref.ref(self)
        self._writing.add_done_callback(lambda done: _left(this, done))

    def load(self) -> None:
        """Start to read the tensor if it is no longer in memory."""
        if self._original is None and self._reading is None:
            self._loaded = torch.empty(
                self.layout.num_packed, dtype=self.layout.dtype, pin_memory=self._stream is not None
            )
            size = self.layout.packed_bytes
            self._reading = self._spill.read(self._extent, self._loaded.data_ptr(), size, owner=self._loaded)

    def bring(self) -> torch.Tensor:
        """Return the tensor, from memory if it is still there."""
        _finish(self._writing, self._spill, "written", only_if_done=True)
        self._check_unchanged()
        original = self._original
        if original is not None:
            self._writing.cancel()
            self._counts.num_never_left += 1
            return original
        self._counts.num_read_late += self._reading is None or not self._reading.done()
        self.load()
        assert self._reading is not None
        assert self._loaded is not None
        _finish(self._reading, self._spill, "read")
        flat, self._loaded, self._reading = self._loaded, None, None
        self._counts.num_read += 1
        return self.layout.unpack(flat if self._stream is None else flat.to(self.layout.device, non_blocking=True))

    def leave(self) -> None:
        """Release the tensor's memory, once it is written to the file."""
        self._original = None


class PinnedCopy(Kept):
    """A copy of a GPU's tensor in pinned host memory."""

    def __init__(self, tensor: torch.Tensor, stream: Any) -> None:
        super().__init__(tensor)
        self._stream = stream
        self._flat, self._copied = _copy_to_host(self.layout.pack(tensor), stream)
        self._loading: tuple[torch.Tensor, Any] | None = None

    def load(self) -> None:
        """Start to copy the tensor back."""
        if self._loading is None:
            with torch.cuda.stream(self._stream):
                self._loading = self._flat.to(self.layout.device, non_blocking=True), self._stream.record_event()

    def bring(self) -> torch.Tensor:
        """Return the tensor; the caller's stream waits for the copy."""
        self._check_unchanged()
        self.load()
        assert self._loading is not None
        (flat, copied), self._loading = self._loading, None
        stream = torch.cuda.current_stream(self.layout.device)
        stream.wait_event(copied)
        flat.record_stream(stream)
        return self.layout.unpack(flat)


def _copy_to_host(flat: torch.Tensor, stream: Any) -> tuple[torch.Tensor, Any]:
    """Start to copy a tensor from a GPU; return the copy and its completion event."""
    stream.wait_stream(torch.cuda.current_stream(flat.device))
    host = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True)
    with torch.cuda.stream(stream):
        host.copy_(flat, non_blocking=True)
        flat.record_stream(stream)
        return host, stream.record_event()


def _left(this: weakref.ref[SpilledTensor], writing: Future[None]) -> None:
    kept = this()
    if kept is not None and not writing.cancelled() and writing.exception() is None:
        kept.leave()


def _finish(work: Future[None], spill: Spill, what: str, *, only_if_done: bool = False) -> None:
    """Wait for a future, and raise its error."""
    if work.cancelled() or (only_if_done and not work.done()):
        return
    try:
        work.result(WAIT_LIMIT_S)
    except FutureTimeout:
        raise SpillError(
            f"activation offloading: a tensor has not been {what} within {WAIT_LIMIT_S:g} s: the disk under "
            f"{spill.folder} does not answer"
        ) from None
