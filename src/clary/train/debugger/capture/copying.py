"""Copies of one step's tensors: copied or reduced while training waits, then read by the writer.

On a GPU, copies and reductions run on the streams on which training computes; only the writer waits for them.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from clary.train import graph_captures
from clary.train.debugger.capture.buffers import Piece, Pieces, as_bytes
from clary.train.debugger.capture.choosing import Wanted
from clary.train.debugger.errors import DebuggerError
from clary.train.debugger.tensor_files import ITEM_BYTES, StepIndex, TensorEntry

_NUMBER = struct.Struct("<d")
_CAPTURE_S = 60.0  # the writer's longest wait while the program captures a CUDA graph


@dataclass
class _Copy:
    entry: TensorEntry
    values: torch.Tensor | None  # flat bytes in host memory
    reductions: tuple[str, ...]
    numbers: torch.Tensor | None  # flat bytes of doubles, in host memory


class StepCopy:
    """Copies of one step's tensors. Threads of the backward pass may call `add` concurrently."""

    def __init__(self, index: StepIndex, piece: Piece, pieces: Pieces) -> None:
        self.index = index
        self._piece, self._pieces = piece, pieces
        self._copies: dict[str, _Copy] = {}
        self._events: dict[tuple[int, int], Any] = {}  # (device, stream) -> event after its last copy
        self._lock = threading.Lock()
        self._is_open = True

    def __contains__(self, name: str) -> bool:
        return name in self._copies

    @property
    def is_empty(self) -> bool:
        """Whether nothing was added."""
        return not self._copies

    @torch.no_grad()
    def add(self, name: str, given: torch.Tensor, wanted: Wanted, alias: str = "") -> None:
        """Copy or reduce a tensor, which training may then change. Of tensors with one name, the last is kept.

        Args:
            name: name of the tensor in files.
            given: of any shape, on any device; ignored on the device `meta`.
            wanted: values, reductions or both.
            alias: another name that expressions match; empty without an alias.
        Raises: RuntimeError if memory runs out.
        """
        tensor = _plain(given.detach())
        if tensor.device.type == "meta":
            return
        with self._lock:
            if not self._is_open:
                return
            pinned = tensor.is_cuda
            entry = TensorEntry(
                name=name,
                dtype=_type_name(tensor.dtype),
                shape=tuple(tensor.shape),
                alias=alias if alias != name else "",
            )
            values = numbers = None
            if wanted.raw:
                values = self._memory(name, entry, pinned)
                if values.numel():
                    values.view(tensor.dtype).view(tensor.shape).copy_(tensor, non_blocking=pinned)
            if wanted.reductions:
                numbers = self._piece.take(len(wanted.reductions) * _NUMBER.size, pinned=pinned)
                numbers.view(torch.float64).copy_(reduced(tensor, wanted.reductions), non_blocking=pinned)
            self._copies[name] = _Copy(entry, values, wanted.reductions, numbers)
            if tensor.is_cuda:
                self._mark_end(tensor)

    def close(self) -> None:
        """Accept no more tensors, since the step has ended."""
        with self._lock:
            self._is_open = False

    def tensors(self) -> list[tuple[TensorEntry, memoryview | None]]:
        """Wait for the copies and return them; the writer calls it.

        Raises: DebuggerError if the capture of a CUDA graph takes too long, RuntimeError for an error of a device.
        """
        if self._events:
            self._wait_for_copies()
        found: list[tuple[TensorEntry, memoryview | None]] = []
        for copy in self._copies.values():
            entry = copy.entry
            if copy.numbers is not None:
                numbers = [value for (value,) in _NUMBER.iter_unpack(as_bytes(copy.numbers))]
                entry = replace(entry, reductions=dict(zip(copy.reductions, numbers, strict=True)))
            found.append((entry, None if copy.values is None else as_bytes(copy.values)))
        return found

    def release(self) -> None:
        """Return the memory to its pool."""
        self._copies.clear()
        self._pieces.give_back(self._piece)

    def _mark_end(self, tensor: torch.Tensor) -> None:
        graph_captures.watch()
        stream = torch.cuda.current_stream(tensor.device)
        key = (tensor.get_device(), stream.cuda_stream)
        if key not in self._events:
            self._events[key] = torch.cuda.Event(blocking=True)  # blocking, since the writer would spin otherwise
        self._events[key].record(stream)

    def _wait_for_copies(self) -> None:
        with graph_captures.gate.between(_CAPTURE_S) as is_free:
            if not is_free:
                raise DebuggerError(f"the capture of a CUDA graph has lasted {_CAPTURE_S:g} s: the step is not written")
            for (device, _), event in self._events.items():
                with torch.cuda.device(device):  # else CUDA might initialize the first device
                    event.synchronize()

    def _memory(self, name: str, entry: TensorEntry, pinned: bool) -> torch.Tensor:
        earlier = self._copies.get(name)
        if earlier is not None and earlier.values is not None and earlier.values.numel() == entry.num_bytes:
            return earlier.values
        return self._piece.take(entry.num_bytes, pinned=pinned)


def reduced(tensor: torch.Tensor, names: tuple[str, ...]) -> torch.Tensor:
    """Return reductions of a tensor of any shape as doubles, shape [len(names)], on its device; NaN if it is empty."""
    if not tensor.numel():
        return torch.full((len(names),), float("nan"), dtype=torch.float64, device=tensor.device)
    values = tensor.abs() if tensor.is_complex() else tensor
    if not values.is_floating_point():
        values = values.double()
    elif values.dtype not in (torch.float32, torch.float64):
        values = values.float()
    absolute = values.abs() if any(name.startswith("abs_") for name in names) else values
    return torch.stack(
        [_REDUCE[name.removeprefix("abs_")](absolute if name.startswith("abs_") else values).double() for name in names]
    )


_REDUCE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "min": torch.min,
    "max": torch.max,
    "mean": torch.mean,
    "std": lambda values: torch.var(values, correction=0).sqrt(),
    "variance": lambda values: torch.var(values, correction=0),
    "sum": torch.sum,
    "prod": torch.prod,
    "l1": lambda values: torch.linalg.vector_norm(values, 1),
    "l2": lambda values: torch.linalg.vector_norm(values),
}


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's values as a dense tensor of a type that files support."""
    if hasattr(tensor, "to_local"):  # a DTensor, of which each rank has a piece
        tensor = tensor.to_local()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    return tensor if _type_name(tensor.dtype) in ITEM_BYTES else tensor.float()


def _type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
