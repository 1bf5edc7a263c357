"""Distributes the samples of an epoch among the ranks, without samples that were processed before a failure."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sized
from typing import Any

import torch
from horovod.common.basics import rank, size


class ElasticSampler(torch.utils.data.Sampler):
    """A sampler that remembers the processed samples of an epoch.

    Args:
        dataset: data set of one length on all ranks.
        shuffle: whether each epoch has an order of its own.
        seed: seed of the order, equal on all ranks.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch; call this method at the end of the previous epoch."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record that each rank has processed a batch.

        Args:
            batch_idx: has no effect.
            batch_size: number of samples on one rank.
        """
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        """Return the progress of the epoch."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned, among the present ranks."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Distribute the remaining samples of the epoch among the present ranks."""
        self.num_replicas = size()
        self.rank = rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        # If fewer samples remain than half of what the ranks need, the remaining ones repeat more than once.
        repeated = itertools.cycle(self.remaining_indices)
        return itertools.islice(repeated, self.rank, self.total_size, self.num_replicas)

    def __len__(self) -> int:
        return int(self.num_samples)
