"""Communication hooks as in torch's DDP, which replace the sum of a bucket.

The hooks of `torch.distributed.algorithms.ddp_comm_hooks` work.
Source: torch's documentation, "DDP Communication Hooks".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from clary.train.parallel.reduce.buckets import Bucket

Hook = Callable[[Any, Any], "torch.futures.Future[Any]"]


@dataclass(frozen=True)
class CommunicationHook:
    """A hook and its state."""

    state: Any
    hook: Hook

    def start(self, bucket: Bucket, flat: torch.Tensor, *, index: int, num_buckets: int) -> Callable[[], torch.Tensor]:
        """Call the hook with a bucket; return a function that waits for the means.

        Args:
            flat: gradients, not divided by the number of ranks or of microbatches.
            index: index among the buckets that the hook gets.
            num_buckets: number of buckets that the hook gets.

        Raises: TypeError if the hook returns no future; the returned function raises ValueError if the means have
            another length.
        """
        future = self.hook(self.state, GradientBucket(bucket, flat, index=index, is_last=index == num_buckets - 1))
        if not hasattr(future, "wait"):
            raise TypeError(f"communication hook: returned {type(future).__name__}; expected a torch.futures.Future")

        def wait() -> torch.Tensor:
            found = future.wait()
            means: torch.Tensor = found[0] if isinstance(found, list | tuple) else found
            if means.numel() != flat.numel():
                raise ValueError(
                    f"communication hook: gave {means.numel()} elements for a bucket of {flat.numel()}; expected the "
                    "mean of the whole buffer"
                )
            return means.reshape(-1).to(flat.dtype)

        return wait


class GradientBucket:
    """A bucket as passed to hooks, with the methods of torch's `GradBucket`."""

    def __init__(self, bucket: Bucket, flat: torch.Tensor, *, index: int, is_last: bool) -> None:
        self._bucket = bucket
        self._flat = flat
        self._index = index
        self._is_last = is_last

    def index(self) -> int:
        """Return the index among the buckets that hooks get: bucket 0 is sent first."""
        return self._index

    def buffer(self) -> torch.Tensor:
        """Return the flat gradients of this rank: sums over microbatches, not divided."""
        return self._flat

    def set_buffer(self, buffer: torch.Tensor) -> None:
        """Replace the flat gradients."""
        self._flat = buffer

    def gradients(self) -> list[torch.Tensor]:
        """Return views of the flat gradients in the shapes of the parameters."""
        views = []
        begin = 0
        for parameter in self.parameters():
            views.append(self._flat[begin : begin + parameter.numel()].view(parameter.shape))
            begin += parameter.numel()
        return views

    def parameters(self) -> list[torch.Tensor]:
        """Return the parameters, in the order of their gradients."""
        return [one.parameter for one in self._bucket.members]

    def is_last(self) -> bool:
        """Return whether it is the last bucket of a reduction that hooks get."""
        return self._is_last
