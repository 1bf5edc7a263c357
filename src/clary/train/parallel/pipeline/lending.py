"""Lending of GPU memory to other processes of the host, by CUDA IPC handles.

Where: `hand_over` decides whether it is used, `links` and `exchange` send the record that `lend` returns in place of
the values.

[Note: whose memory] `lend` copies the tensor on the GPU, so the sender may change the original at once. torch counts
the users of the copy, and frees it after the last one. The receiver copies the lent tensor on a separate stream and
waits for this copy: so it waits for the sender's computation, but not for its own. Then it releases the lent tensor.

Source: `torch.multiprocessing.reductions`, and the note "CUDA IPC" in torch/csrc/CudaIPCTypes.h.
Not run on a GPU so far; see docs/numbers/gpu.md.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

_PLACE_OF_DEVICE = 6  # index among the arguments of `rebuild_cuda_tensor`


class CudaLender:
    """Lends memory of one GPU, and borrows memory of all GPUs that this process sees.

    Args:
        device: device of this rank.
        names: names of the GPUs that this process sees, by device index; a GPU has the same name in all processes of
            the machine.
    """

    def __init__(self, device: torch.device, names: Sequence[str]) -> None:
        self.device = device
        self._names = tuple(names)
        self._stream = torch.cuda.Stream(device)

    def lend(self, tensor: torch.Tensor) -> bytes:
        """Return a record of a tensor's current values, as of the caller's stream.

        Args:
            tensor: of any shape and strides; it may change after the call.

        Raises: RuntimeError if CUDA cannot share memory.
        """
        with torch.no_grad(), torch.cuda.device(self.device):
            copy = torch.empty(tensor.shape, dtype=tensor.dtype, device=self.device)
            copy.copy_(tensor)
            _, arguments = reduce_tensor(copy)
        return pickle.dumps((self._names[arguments[_PLACE_OF_DEVICE]], arguments), protocol=pickle.HIGHEST_PROTOCOL)

    def borrow(self, record: bytes) -> torch.Tensor:
        """Return a new tensor of this rank with the lent values; call `arrived` before its use.

        Raises: RuntimeError if CUDA cannot open the lent memory.
        """
        name, given = pickle.loads(record)  # noqa: S301 - from a rank of the same program
        arguments: list[Any] = list(given)
        arguments[_PLACE_OF_DEVICE] = self._names.index(name)  # index of the GPU in this process
        with torch.no_grad(), torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            lent = rebuild_cuda_tensor(*arguments)
            own = torch.empty(lent.shape, dtype=lent.dtype, device=self.device)
            own.copy_(lent, non_blocking=True)
            self._stream.synchronize()
            del lent
        return own


def arrived(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor from another rank on this rank's device, for use on the caller's stream.

    Args:
        tensor: of any shape, in host memory or borrowed.
    """
    if tensor.is_cuda:  # made on another stream, which must not reuse its memory too early
        tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return tensor.to(device)
