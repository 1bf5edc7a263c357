"""Buckets of gradients that are sent together: of one dtype and group, last parameters first.

If a parameter has a gradient on some ranks only (control flow may differ), the gradient counts as zero on the other
ranks. A parameter without a gradient on any rank gets none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Replicated:
    """A parameter and the ranks over which its gradient is averaged."""

    name: str
    parameter: torch.nn.Parameter
    group: dist.ProcessGroup


class Bucket:
    """Gradients that are sent together.

    Args:
        index: index among the buckets, which all ranks send in this order.
    """

    def __init__(self, index: int, members: Sequence[Replicated]) -> None:
        self.index = index
        self.members = list(members)
        self.group = members[0].group
        self.num_ranks = dist.get_world_size(self.group)
        self.numel = sum(one.parameter.numel() for one in members)

    @torch.no_grad()
    def flatten(self, *, is_empty: bool = False, divides: bool = True) -> torch.Tensor:
        """Return one flat tensor: copies of the gradients, then for each parameter 1 if it has a gradient, else 0.

        Args:
            is_empty: contribute zeros, even if there are gradients.
            divides: divide gradients by the number of ranks before the sum, so that the sum is the mean and half
                precision does not overflow.

        Raises: RuntimeError naming a sparse gradient.
        """
        first = self.members[0].parameter
        flat = torch.zeros(self.numel + len(self.members), dtype=first.dtype, device=first.device)
        begin = 0
        for place, one in enumerate(self.members):
            grad = one.parameter.grad
            if grad is not None and not is_empty:
                if grad.is_sparse:
                    raise RuntimeError(
                        f"{one.name} has a sparse gradient, which cannot be reduced: create its module with "
                        "sparse=False"
                    )
                part = flat[begin : begin + grad.numel()].copy_(grad.reshape(-1))
                if divides:
                    part.div_(self.num_ranks)
                flat[self.numel + place] = 1
            begin += one.parameter.numel()
        return flat

    @torch.no_grad()
    def spread(self, means: torch.Tensor, present: Sequence[float]) -> None:
        """Write means into the gradients of parameters with a gradient on any rank.

        Args:
            means: flat tensor, as long as the gradients.
            present: number of ranks with a gradient, by parameter.
        """
        begin = 0
        for one, count in zip(self.members, present, strict=True):
            mean = means[begin : begin + one.parameter.numel()].view(one.parameter.shape)
            begin += one.parameter.numel()
            if not count:
                continue
            if one.parameter.grad is None:
                one.parameter.grad = mean.clone()
            else:
                one.parameter.grad.copy_(mean)


def fill_buckets(parameters: Sequence[Replicated], bucket_bytes: int) -> list[Bucket]:
    """Group parameters into buckets, last parameters first, since their gradients arrive first."""
    open_buckets: dict[tuple[torch.dtype, int], list[Replicated]] = {}
    sizes: dict[tuple[torch.dtype, int], int] = {}
    full: list[list[Replicated]] = []
    for one in reversed(parameters):
        key = (one.parameter.dtype, id(one.group))
        num_bytes = one.parameter.numel() * one.parameter.element_size()
        if key in open_buckets and sizes[key] + num_bytes > bucket_bytes:
            full.append(open_buckets.pop(key))
        open_buckets.setdefault(key, []).append(one)
        sizes[key] = (sizes[key] if len(open_buckets[key]) > 1 else 0) + num_bytes
    return [Bucket(index, members) for index, members in enumerate([*full, *open_buckets.values()])]
