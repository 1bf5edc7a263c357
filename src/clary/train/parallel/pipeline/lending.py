"""Memory of a GPU that other processes of the host may read, by CUDA's handles for it.

Where: `hand_over` decides whether it is used, `links` and `exchange` send what `lend` returns in place of the values.

[Note: whose memory] What is lent is a copy, made on the GPU: the sender may change its tensor at once. torch counts who
uses the copy, and takes its memory back when nobody does. The receiver makes a copy of its own on a stream of its own
and waits for it, so it waits for what the sender computes, and for nothing of what it computes itself; then it drops
the tensor.

Source: `torch.multiprocessing.reductions`, and the note "CUDA IPC" in torch/csrc/CudaIPCTypes.h.
No GPU has run this so far; docs/numbers/gpu.md.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

_PLACE_OF_DEVICE = 6  # among the arguments of `rebuild_cuda_tensor`


class CudaLender:
    """Lends memory of one GPU, and borrows that of all GPUs that this process sees.

    Args:
        device: of this rank.
        names: of the GPUs that this process sees, in its order; equal for all processes of the machine.
    """

    def __init__(self, device: torch.device, names: Sequence[str]) -> None:
        self.device = device
        self._names = tuple(names)
        self._stream = torch.cuda.Stream(device)

    def lend(self, tensor: torch.Tensor) -> bytes:
        """Return a record of a tensor's present values, as the caller's stream computes them.

        Args:
            tensor: of any shape and strides; it may change at once.

        Raises: RuntimeError where CUDA shares no memory.
        """
        with torch.no_grad(), torch.cuda.device(self.device):
            copy = torch.empty(tensor.shape, dtype=tensor.dtype, device=self.device)
            copy.copy_(tensor)
            _, arguments = reduce_tensor(copy)
        return pickle.dumps((self._names[arguments[_PLACE_OF_DEVICE]], arguments), protocol=pickle.HIGHEST_PROTOCOL)

    def borrow(self, record: bytes) -> torch.Tensor:
        """Return a tensor of this rank's own with the values that were lent; `arrived` before it is used.

        Raises: RuntimeError if CUDA does not open what was lent.
        """
        name, given = pickle.loads(record)  # noqa: S301 - from a rank of the same program
        arguments: list[Any] = list(given)
        arguments[_PLACE_OF_DEVICE] = self._names.index(name)  # as this process counts
        with torch.no_grad(), torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            lent = rebuild_cuda_tensor(*arguments)
            own = torch.empty(lent.shape, dtype=lent.dtype, device=self.device)
            own.copy_(lent, non_blocking=True)
            self._stream.synchronize()
            del lent
        return own


def arrived(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor that came from another rank on this rank's device, for use on the caller's stream.

    Args:
        tensor: of any shape, in host memory or borrowed.
    """
    if tensor.is_cuda:  # it was made on another stream, whose next tensors must not take its memory too early
        tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return tensor.to(device)
