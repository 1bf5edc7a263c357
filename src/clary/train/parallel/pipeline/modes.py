"""torch's modes of a thread: whether it records gradients, the dtype in which it computes, and its current GPU.

Where: torch keeps modes per thread; a worker enters the modes of the thread that starts it, and a rank that serves a
request enters the modes of the requesting rank.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

_DEVICE_TYPES = ("cpu", "cuda")


@dataclass(frozen=True)
class Modes:
    """The modes of a thread, which another thread can enter.

    Args:
        autocast: dtype of autocast by device type; no entry if autocast is off.
        gpu: index of the current GPU; None without a GPU.
    """

    records_gradients: bool
    autocast: tuple[tuple[str, torch.dtype], ...]
    gpu: int | None = None

    @classmethod
    def of_this_thread(cls) -> Modes:
        """Return the calling thread's modes."""
        autocast = tuple(
            (kind, torch.get_autocast_dtype(kind)) for kind in _DEVICE_TYPES if torch.is_autocast_enabled(kind)
        )
        return cls(
            torch.is_grad_enabled(), autocast, torch.cuda.current_device() if torch.cuda.is_available() else None
        )

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Enter these modes within a block."""
        with contextlib.ExitStack() as stack:
            if self.gpu is not None:
                stack.enter_context(torch.cuda.device(self.gpu))
            stack.enter_context(torch.set_grad_enabled(self.records_gradients))
            for kind, dtype in self.autocast:
                stack.enter_context(torch.autocast(kind, dtype=dtype))
            yield
