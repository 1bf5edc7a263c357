"""Offloading: tensors kept by checkpointing are moved out after forward, and loaded before backward needs them.

Where: `checkpointing` and `fsdp.offloading` open a region around every checkpointed call. An engine with several
microbatches sets the current one with `lane`, and announces the next backward pass with `expect`.

[Note: targets] File: see `spill`. Host memory: a GPU's tensors are copied into pinned memory on a separate stream;
without a GPU, tensors are in host memory already, and stay there.

[Note: when it comes back] Backward needs the regions of one microbatch last in, first out. When it needs a region,
loading of the next `horizon` regions starts. Microbatches follow the order of `expect`; a microbatch that was not
announced precedes the announced ones. So at most `horizon` regions are loaded early, besides the region that is being
computed.

[Note: bits] A tensor is loaded with its strides, so kernels traverse it in the same order as before. A tensor that was
changed in place since forward raises an error, as in autograd without offloading.
Source: SageMaker developer guide, "Activation Offloading"; for files, Rajbhandari et al., "ZeRO-Infinity", arXiv
2104.07857.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from clary.train.parallel.memory.kept import Kept, OffloadCounts, PinnedCopy, SpilledTensor
from clary.train.parallel.memory.spill import Spill

LEAST_BYTES = 1 << 16  # smallest tensor that is worth offloading
MAX_WAITING_BYTES = 256 << 20  # see `Spill`

_log = logging.getLogger(__name__)


class Offloader:
    """Offloads the tensors that checkpointed regions keep, and loads them for backward.

    Args:
        folder: folder of the file; None offloads to host memory.
        horizon: number of regions that are loaded ahead; `activation_loading_horizon`.
        max_waiting_bytes: limit of bytes that wait in memory to be written.

    Raises: ValueError for a horizon below 1, SpillError if no file can be made.
    """

    def __init__(
        self, folder: Path | None = None, *, horizon: int = 4, max_waiting_bytes: int = MAX_WAITING_BYTES
    ) -> None:
        if horizon < 1:
            raise ValueError(f"activation_loading_horizon is {horizon}; expected 1 or more")
        self.horizon = horizon
        self.counts = OffloadCounts()
        self._spill = None if folder is None else Spill(folder, max_waiting_bytes=max_waiting_bytes)
        self._lock = threading.Lock()  # guards the next two; a GPU's backward runs on an autograd thread
        self._lanes: dict[int, list[_Region]] = {}  # by microbatch, regions in the order of forward
        self._expected: list[int] = []  # microbatches in the order of backward
        # Guards the next two and the counts in forward, where threads may run at once.
        self._keeping = threading.RLock()
        self._by_place: weakref.WeakValueDictionary[Any, Kept] = weakref.WeakValueDictionary()
        self._streams: dict[torch.device, Any] = {}
        self._own = threading.local()
        self._has_told = False

    @contextmanager
    def lane(self, number: int) -> Iterator[None]:
        """Assign this thread's regions to a microbatch within a block; outside of `lane`, to microbatch 0."""
        before = self._lane()
        self._own.lane = number
        try:
            yield
        finally:
            self._own.lane = before

    def expect(self, number: int) -> None:
        """Announce the backward pass of a microbatch, after those announced earlier."""
        with self._lock:
            if number not in self._expected:
                self._expected.append(number)
            self._load_ahead()

    @contextmanager
    def region(self, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
        """Offload the tensors that autograd saves in this block, unless inner saved-tensor hooks handle them.

        Args:
            tensors: arguments of the call in this block; parameters among them are not offloaded.

        Raises: SpillError if the disk is full or does not answer.
        """
        if self._spill is None and not any(tensor.is_cuda for tensor in tensors):
            self._tell_nothing_is_done()
            yield
            return
        staying = {tensor.untyped_storage()._cdata for tensor in tensors if tensor.is_leaf and tensor.requires_grad}
        region = _Region(self._lane())
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: self._keep(tensor, region, staying), self._bring_back
        ):
            yield
        with self._lock:
            lane = self._lanes.setdefault(region.lane, [])
            while lane and not lane[-1].is_alive:
                lane.pop()
            lane.append(region)

    def close(self) -> None:
        """End the threads and free the file; offloaded tensors are lost."""
        if self._spill is not None:
            self._spill.close()

    def _lane(self) -> int:
        return int(getattr(self._own, "lane", 0))

    def _tell_nothing_is_done(self) -> None:
        if not self._has_told:
            self._has_told = True
            _log.warning(
                "activation offloading: on this machine activations are in host memory already; they stay there and "
                "nothing is copied. A folder on a disk would free memory"
            )

    def _keep(self, tensor: torch.Tensor, region: _Region, staying: set[int]) -> Any:
        with self._keeping:  # not `_lock`: a slow disk must not block backward
            return self._keep_once(tensor, region, staying)

    def _keep_once(self, tensor: torch.Tensor, region: _Region, staying: set[int]) -> Any:
        if not _can_leave(tensor) or tensor.untyped_storage()._cdata in staying:
            self.counts.staying_bytes += tensor.nbytes
            return tensor
        # Layers with the same mask share one copy of it; see `Kept.storage`.
        place = (
            tensor.untyped_storage()._cdata,
            tensor.storage_offset(),
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
            tensor._version,
        )
        kept = self._by_place.get(place)
        if kept is None:
            kept = self._by_place[place] = self._take(tensor)
            self.counts.offloaded_bytes += kept.layout.packed_bytes
        region.kept.append(weakref.ref(kept))
        return _Packed(kept, region)

    def _take(self, tensor: torch.Tensor) -> Kept:
        stream = None
        if tensor.is_cuda:
            if tensor.device not in self._streams:
                self._streams[tensor.device] = torch.cuda.Stream(tensor.device)
            stream = self._streams[tensor.device]
        if self._spill is None:
            return PinnedCopy(tensor, stream)
        return SpilledTensor(tensor, self._spill, self.counts, stream)

    def _bring_back(self, packed: Any) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        region = packed.region
        with self._lock:
            lane = self._lanes.get(region.lane, [])
            if region in lane:
                del lane[lane.index(region) :]  # backward has already used the later regions
            if region.lane in self._expected:
                self._expected.remove(region.lane)
            self._expected.insert(0, region.lane)
            packed.kept.load()
            self._load_ahead()
        tensor: torch.Tensor = packed.kept.bring()
        return tensor

    def _load_ahead(self) -> None:
        """Start to load the tensors needed next; see [Note: when it comes back]."""
        num_left = self.horizon
        for number in list(self._expected):
            lane = [region for region in self._lanes.get(number, []) if region.is_alive]
            self._lanes[number] = lane
            if not lane:
                del self._lanes[number]
                self._expected.remove(number)
            for region in reversed(lane[max(0, len(lane) - num_left) :]):
                region.load()
                num_left -= 1


@dataclass(eq=False)
class _Region:
    """The order of the tensors kept by one checkpointed call; autograd owns the tensors."""

    lane: int
    kept: list[weakref.ref[Kept]] = field(default_factory=list)

    @property
    def is_alive(self) -> bool:
        return any(kept() is not None for kept in self.kept)

    def load(self) -> None:
        for reference in self.kept:
            kept = reference()
            if kept is not None:
                kept.load()


@dataclass(eq=False)
class _Packed:
    """The stand-in that autograd holds instead of a tensor."""

    kept: Kept
    region: _Region


def _can_leave(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and tensor.nbytes >= LEAST_BYTES
        and not tensor.is_conj()
        and not tensor.is_neg()
    )
