"""This rank's part in host memory: copied while training waits, read by the writer while training continues.

The memory is allocated and touched once per plan and reused by every save. For tensors on GPUs it is pinned, and all
copies are started before the first is waited for. Values other than tensors follow the tensors, since their size
changes from save to save. Tensors that only an optimizer's step changes may be copied later (`staging`).
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
    """The bytes of this or another rank's part in host memory."""

    def __init__(self) -> None:
        self.tensors = torch.empty(0, dtype=torch.uint8)
        self.values = torch.empty(0, dtype=torch.uint8)  # pickled values, which follow the tensors in the part
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
    """A copy in host memory of the part that this rank will write; its memory is reused by the next save."""

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
        """Copy the tensors and values of the plan; after the call, training may change all but the late tensors.

        Args:
            plan: the part's layout; a new plan causes a new allocation.
            flat: tensors and values by name, as the plan names them.
            save: name of this save, the same on all ranks.
            step: number of the saved step.
            rank: rank of this part.
            num_parts: number of parts of the save, which is the number of ranks.
            late: names of tensors in host memory that are returned instead of copied.
        Returns: the late tensors.
        Raises: RuntimeError if memory is short; errors of pickling a value. After an error the snapshot is empty.
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
        for name in plan.values:  # meanwhile the copies from GPUs run
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
                    # The copies follow the tensors' computation on this thread's current stream.
                    torch.cuda.current_stream(device).synchronize()
        self.metadata = plan.metadata
        self.index = PartIndex(save=save, step=step, rank=rank, num_parts=num_parts, num_bytes=at, places=places)
        return left

    def _allocate(self, plan: Plan) -> None:
        self._views, self._plan = [], None
        self.tensors = torch.empty(0, dtype=torch.uint8)  # frees the old memory before the new allocation
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
