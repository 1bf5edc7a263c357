"""Dropout over a tensor group: one mask for all ranks on replicated tensors, a different mask per rank on slices.

[Note: generators] Programs seed their ranks equally, or by rank; both must work. A replicated tensor gets the mask that
the first rank of the group draws. The seed of a slice's mask is drawn from the CPU's default generator and mixed with
the rank, so that ranks with equal generators draw different masks. All randomness depends on the default generators, so
activation checkpointing, which restores them, draws the same masks again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn import functional

from clary.train.parallel.tensor.collectives import TensorGroup, broadcast_first

_NUM_SEEDS = 2**48  # so that a seed mixed with a rank fits into 63 bits


def dropout_replicated(tensor: torch.Tensor, probability: float, group: TensorGroup) -> torch.Tensor:
    """Return a replicated tensor after dropout; every rank of the group drops the same elements. Collective.

    Args:
        tensor: of any shape, equal on all ranks.
        probability: probability of dropping an element, which scales up the other elements; 0 outside of training.
    """
    if probability == 0 or group.size == 1:
        return functional.dropout(tensor, probability)
    keep = 1 - probability
    is_kept = torch.empty_like(tensor, dtype=torch.uint8, memory_format=torch.contiguous_format).bernoulli_(keep)
    return tensor * broadcast_first(is_kept, group) * (1 / keep if keep else 0.0)


def dropout_split(tensor: torch.Tensor, probability: float, group: TensorGroup) -> torch.Tensor:
    """Return a slice after dropout; every rank of the group drops independently.

    Args:
        tensor: of any shape, this rank's slice.
        probability: as in `dropout_replicated`.
    """
    if probability == 0:
        return tensor
    with own_randomness(group, tensor.device):
        return functional.dropout(tensor, probability)


@contextmanager
def own_randomness(group: TensorGroup, device: torch.device) -> Iterator[None]:
    """Draw different numbers on every rank of the group in this block; see [Note: generators]."""
    if group.size == 1:
        yield
        return
    seed = int(torch.randint(_NUM_SEEDS, (), device="cpu")) * group.size + group.rank
    is_cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if is_cuda else []):
        torch.default_generator.manual_seed(seed)
        if is_cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


@contextmanager
def same_randomness(group: TensorGroup, device: torch.device, reachable: torch.device) -> Iterator[None]:
    """Draw the first rank's numbers on every rank of the group in this block; collective.

    Args:
        device: the device whose default generator draws.
        reachable: a device from which the group's backend can send.
    """
    if group.size == 1:
        yield
        return
    is_cuda = device.type == "cuda"
    own = torch.cuda.get_rng_state(device) if is_cuda else torch.get_rng_state()
    first = broadcast_first(own.to(reachable, copy=True), group).to("cpu")

    def restore(state: torch.Tensor) -> None:
        if is_cuda:
            torch.cuda.set_rng_state(state, device)
        else:
            torch.set_rng_state(state)

    restore(first)
    try:
        yield
    finally:
        if not torch.equal(own, first):  # equal generators have advanced together
            restore(own)
