"""Functions that scripts call for context parallelism besides `transform`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from clary.train.parallel.fsdp.context.batches import part_of_batch
from clary.train.parallel.fsdp.context.spreading import spread_sequences
from clary.train.parallel.fsdp.state import state
from clary.train.parallel.tensor.collectives import TensorGroup


def get_batch_for_cp_rank(batch: Any) -> Any:
    """Return this rank's part of a batch that all ranks of its context group have read; see `part_of_batch`."""
    return part_of_batch(batch, state.cp_rank, state.cp_size)


def setup_transformer_engine_cp_groups(model: nn.Module, cp_global_ranks: Sequence[int], cp_group: Any) -> None:
    """Spread a model's attention over a context group without `transform`. Every rank calls it.

    Transformer Engine's modules receive the group by their own method; a model without such modules is spread as by
    `transform`.

    Args:
        cp_global_ranks: the group's ranks in the world, in the group's order.

    Raises: ValueError if the ranks are not those of the group, and for the same reasons as in `spread_sequences`.
    """
    own = dist.get_process_group_ranks(cp_group)
    if list(cp_global_ranks) != own:
        raise ValueError(f"setup_transformer_engine_cp_groups got ranks {list(cp_global_ranks)}; the group has {own}")
    engine = [one for one in model.modules() if callable(getattr(one, "set_context_parallel_group", None))]
    if not engine:
        spread_sequences(model, TensorGroup(cp_group, dist.get_rank(cp_group), len(own)))
        return
    stream = torch.cuda.Stream()
    for module in engine:
        if module is not model:
            module.set_context_parallel_group(cp_group, own, stream)
