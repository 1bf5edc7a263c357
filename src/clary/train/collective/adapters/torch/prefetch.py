"""AllGather of sharded layers ahead of their use, for FSDP2 (`fully_shard`).

Where: a script calls `gather_ahead` once, after it has sharded its layers and their model. While a layer computes, the
core gathers the next one, forward and backward. Without it, FSDP2 on the CPU gathers each layer in the calling thread,
only when the layer is needed. On a GPU, streams overlap by themselves, and this module adds only the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.distributed.fsdp import FSDPModule

NUM_AHEAD = 1


def gather_ahead(model: Any, layers: Sequence[Any], *, num_ahead: int = NUM_AHEAD) -> None:
    """Gather each layer while the layers before it compute.

    Args:
        model: the outermost module that was sharded.
        layers: sharded modules in the order of the forward pass.
        num_ahead: number of layers to gather ahead; memory holds that many whole layers more.
    Raises: TypeError for a module that was not sharded with `fully_shard`; ValueError for `num_ahead` below 1.
    """
    if num_ahead < 1:
        raise ValueError(f"gather_ahead: num_ahead must be 1 or more, got {num_ahead}")
    for module in (model, *layers):
        if not isinstance(module, FSDPModule):
            raise TypeError(f"gather_ahead: {type(module).__name__} is not sharded; call fully_shard on it first")
    for index, layer in enumerate(layers):
        layer.set_modules_to_forward_prefetch(list(layers[index + 1 : index + 1 + num_ahead]))
        layer.set_modules_to_backward_prefetch(list(reversed(layers[max(index - num_ahead, 0) : index])))
    model._set_unshard_async_op(True)  # torch has no other interface for this, 2.6 to 2.13
