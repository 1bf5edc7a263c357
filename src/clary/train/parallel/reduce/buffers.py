"""Buffers, such as running means of batch norm, that all replicas take from the first one.

[Note: which] Only buffers that belong to the state are sent: others are constants, or caches that may have other sizes
on other replicas. Masks of bools are constants, too.

Source: torch's documentation, "DistributedDataParallel", argument `broadcast_buffers`.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn


class SharedBuffers:
    """The buffers of one rank's modules; see [Note: which].

    Args:
        modules: the rank's modules, without the modules inside them.
        group: the ranks with the same modules, of which the first one's values count.
    """

    def __init__(self, modules: Iterable[nn.Module], group: dist.ProcessGroup) -> None:
        self._group = group
        self._places = [
            (module, name)
            for module in modules
            for name, buffer in module._buffers.items()
            if buffer is not None and buffer.dtype != torch.bool and name not in module._non_persistent_buffers_set
        ]

    @torch.no_grad()
    def share(self) -> None:
        """Take the first rank's values, in one message. All ranks of the group call it."""
        if not self._places or dist.get_world_size(self._group) == 1:
            return
        found = [module._buffers[name] for module, name in self._places]
        buffers = [one for one in found if one is not None]
        parts = [one.contiguous().reshape(-1).view(torch.uint8) for one in buffers]
        whole = torch.cat(parts)
        dist.broadcast(whole, dist.get_global_rank(self._group, 0), group=self._group)
        if dist.get_rank(self._group) == 0:
            return
        for buffer, part in zip(buffers, whole.split([len(one) for one in parts]), strict=True):
            buffer.copy_(part.clone().view(buffer.dtype).view(buffer.shape))  # a view may begin at any byte
