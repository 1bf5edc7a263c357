"""This rank's part in host memory: taken while training waits, read by the writer while it goes on.

The memory is allocated and touched once a plan and used again by every save; on machines with GPUs it is pinned, and
all copies are under way before the first is waited for. Values other than tensors follow the tensors, since their size
changes from save to save. Tensors that only an optimizer's step changes may be copied later than the others
(`staging`).
"""

from __future__ import annotations

import ctypes
import io
from collections.abc import Collection
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from clary.train.checkpoint.parts import Key, PartIndex
from clary.train.checkpoint.plans import Plan
from clary.train.checkpoint.staging import LateTensors


class Memory:
    """A part's bytes in host memory, of this rank or another."""

    def __init__(self) -> None:
        self.tensors = torch.empty(0, dtype=torch.uint8)
        self.values = torch.empty(0, dtype=torch.uint8)  # pickled values, behind the tensors
        self.index: PartIndex | None = None  # None while it is being filled
        self.metadata = b""

    @property
    def pieces(self) -> list[memoryview]:
        """The part's bytes, in order."""
        return [as_bytes(self.tensors), as_bytes(self.values)]

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill a buffer with the part's bytes from `start` on."""
        for piece in self.pieces:
            if start < len(piece):
                taken = piece[start : start + len(buffer)]
                buffer[: len(taken)] = taken
                start, buffer = start + len(taken), buffer[len(taken) :]
            start -= len(piece)


class Snapshot(Memory):
    """A copy in host memory of the part that this rank is to write; its memory is kept from save to save."""

    def __init__(self) -> None:
        super().__init__()
        self._views: list[torch.Tensor] = []
        self._plan: Plan | None = None

    def take(
        self,
        plan: Plan,
        flat: dict[str, Any],
        *,
        save: str,
        step: int,
        rank: int,
        num_parts: int,
        late: Collection[str] = (),
    ) -> LateTensors:
        """Copy the tensors and values of the plan; training may change them once this has returned.

        Args:
            plan: memory is allocated anew if it is not the one before.
            flat: tensors and values by name, as the plan names them.
            save: name of this save, the same on all ranks.
            step: of training.
            rank: of this part.
            num_parts: of the whole save: the number of ranks.
            late: names of tensors in host memory that are not copied here, but returned.
        Returns: the late tensors, empty where there are none.
        Raises: RuntimeError where there is not enough memory; the snapshot is empty then.
        """
        self.index = None
        if self._plan is not plan:
            self._allocate(plan)
        values = []
        left = LateTensors()
        places: dict[Key, tuple[int, int]] = {one.key: (one.start, one.num_bytes) for one in plan.tensors}
        with torch.no_grad():
            for view, planned in zip(self._views, plan.tensors, strict=True):
                source = flat[planned.key[0]]
                source = source.to_local() if isinstance(source, DTensor) else source
                if planned.key[0] in late:
                    left.add(planned.key[0], source, view)
                else:
                    view.copy_(source, non_blocking=plan.uses_cuda)
        at = plan.num_bytes
        for name in plan.values:  # while the copies from GPUs are under way
            stream = io.BytesIO()
            torch.save(flat[name], stream)
            values.append(stream.getvalue())
            places[name, None] = (at, len(values[-1]))
            at += len(values[-1])
        self.values = torch.frombuffer(bytearray(b"".join(values)) or bytearray(1), dtype=torch.uint8)
        self.values = self.values[: at - plan.num_bytes]
        if plan.uses_cuda:
            for device in {flat[one.key[0]].device for one in plan.tensors}:
                if device.type == "cuda":
                    # The copies were put behind what computes the tensors, on the stream that this thread uses.
                    torch.cuda.current_stream(device).synchronize()
        self.metadata = plan.metadata
        self.index = PartIndex(save=save, step=step, rank=rank, num_parts=num_parts, num_bytes=at, places=places)
        return left

    def _allocate(self, plan: Plan) -> None:
        self._views, self._plan = [], None
        self.tensors = torch.empty(0, dtype=torch.uint8)  # the old memory goes before the new comes
        self.tensors = torch.empty(plan.num_bytes, dtype=torch.uint8, pin_memory=plan.uses_cuda).zero_()
        for one in plan.tensors:
            stretch = self.tensors[one.start : one.start + one.num_bytes]
            self._views.append(stretch.view(one.dtype).view(one.shape))
        self._plan = plan


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a flat tensor of bytes in host memory, without a copy. The tensor must outlive it."""
    if not tensor.numel():
        return memoryview(b"")
    return memoryview((ctypes.c_char * tensor.numel()).from_address(tensor.data_ptr())).cast("B")
