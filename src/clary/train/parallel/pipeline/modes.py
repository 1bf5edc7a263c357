"""torch's modes of a thread: whether it records gradients, and in which dtype it computes.

Where: they are a thread's own in torch; a worker takes over those of the thread that starts it, a rank that serves a
request those of the rank that asked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

_DEVICE_TYPES = ("cpu", "cuda")


@dataclass(frozen=True)
class Modes:
    """The modes of a thread that can be entered again on another one.

    Args:
        autocast: by device type, the dtype of operations that autocast changes; none where it is off.
        gpu: index of the current one; None without any.
    """

    records_gradients: bool
    autocast: tuple[tuple[str, torch.dtype], ...]
    gpu: int | None = None

    @classmethod
    def of_this_thread(cls) -> Modes:
        """Return the modes as they are now."""
        autocast = tuple(
            (kind, torch.get_autocast_dtype(kind)) for kind in _DEVICE_TYPES if torch.is_autocast_enabled(kind)
        )
        return cls(
            torch.is_grad_enabled(), autocast, torch.cuda.current_device() if torch.cuda.is_available() else None
        )

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Compute in these modes."""
        with contextlib.ExitStack() as stack:
            if self.gpu is not None:
                stack.enter_context(torch.cuda.device(self.gpu))
            stack.enter_context(torch.set_grad_enabled(self.records_gradients))
            for kind, dtype in self.autocast:
                stack.enter_context(torch.autocast(kind, dtype=dtype))
            yield
