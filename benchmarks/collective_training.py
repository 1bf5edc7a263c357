"""Training on one rank: the same model once for each group, stepped in turns, so that the two can be compared.

Where: `collective_rank` does this on order of `bench_ddp_real`.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from benchmarks.collective_board import Board
from benchmarks.training_models import Workload


class Training:
    """One model a group, equal at first.

    Args:
        groups: by name.
        images: mnist_5k.csv.gz.
    """

    def __init__(self, groups: dict[str, Any], board: Board, rank: int, *, model: str, seed: int, images: str) -> None:
        self._board = board
        self._runs = {
            name: _Run(Workload(model, seed=seed, images=Path(images)), group, rank) for name, group in groups.items()
        }

    def about(self) -> dict[str, int]:
        """What is trained, and with how many samples a step and rank."""
        workload = next(iter(self._runs.values())).workload
        return {"parameters": workload.num_parameters, "batch_size": workload.batch_size}

    def steps(self, name: str, num_steps: int) -> dict[str, Any]:
        """Train the model of one group further: seconds for all steps together, and each step's loss."""
        run = self._runs[name]
        self._board.start_together()
        began = time.perf_counter()
        losses = [run.step() for _ in range(num_steps)]
        return {"seconds": time.perf_counter() - began, "losses": [loss.hex() for loss in losses]}

    def digests(self) -> dict[str, str]:
        """Tell the weights of each group's model apart, bit by bit."""
        return {name: run.digest() for name, run in self._runs.items()}


class _Run:
    def __init__(self, workload: Workload, group: Any, rank: int) -> None:
        self.workload = workload
        self._rank = rank
        self._num_steps = 0
        self._model = DistributedDataParallel(workload.model, process_group=group)
        self._optimizer = workload.optimizer(self._model)

    def step(self) -> float:
        """Train one step; the loss of this rank's batch."""
        self._optimizer.zero_grad(set_to_none=True)
        loss = self.workload.loss(self._model, self._num_steps, self._rank)
        loss.backward()
        self._optimizer.step()
        self._num_steps += 1
        return float(loss.detach())

    def digest(self) -> str:
        """Return the hash of all weights."""
        found = hashlib.sha256()
        with torch.no_grad():
            for parameter in self.workload.model.parameters():
                found.update(memoryview(parameter.numpy()).cast("B"))
        return found.hexdigest()
