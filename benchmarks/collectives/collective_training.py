"""Training on one rank: the same model once for each run, stepped in turns, so that runs can be compared.

Where: `collective_rank` does this on order of `bench_ddp_real` and `bench_shrink`.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from benchmarks.collectives.collective_board import Board
from benchmarks.training.training_models import Workload
from clary.train.collective.adapters.torch.compression import compress
from clary.train.collective.adapters.torch.local_update import LocalUpdates

POWERSGD_RANK = 4
ONE_BUCKET_MB = 1024
LOCAL_PERIOD = 20  # steps between agreements


class Training:
    """Runs of one model, equal at first.

    Args:
        runs: by name, each a group and a compression: `none`, one of `compress`, `local` for LocalUpdates, or
            `alone` for ranks that never communicate.
        images: mnist_5k.csv.gz.
    """

    def __init__(
        self, runs: dict[str, tuple[Any, str]], board: Board, rank: int, *, model: str, seed: int, images: str
    ) -> None:
        self._board = board
        self._runs = {
            name: _Run(Workload(model, seed=seed, images=Path(images)), group, rank, compression)
            for name, (group, compression) in runs.items()
        }

    def about(self) -> dict[str, int]:
        """Number of parameters of the model, and samples a step and rank."""
        workload = next(iter(self._runs.values())).workload
        return {"parameters": workload.num_parameters, "batch_size": workload.batch_size}

    def steps(self, name: str, num_steps: int) -> dict[str, Any]:
        """Train the model of one run further: seconds for all steps together, and each step's loss."""
        run = self._runs[name]
        self._board.start_together()
        began = time.perf_counter()
        losses = [run.step() for _ in range(num_steps)]
        return {"seconds": time.perf_counter() - began, "losses": [loss.hex() for loss in losses]}

    def digests(self) -> dict[str, str]:
        """Tell the weights of each run's model apart, bit by bit."""
        return {name: run.digest() for name, run in self._runs.items()}


class _Run:
    def __init__(self, workload: Workload, group: Any, rank: int, compression: str) -> None:
        self.workload = workload
        self._rank = rank
        self._num_steps = 0
        self._local: LocalUpdates | None = None
        self._model: torch.nn.Module = workload.model
        if compression == "local":
            self._local = LocalUpdates(workload.model, group, period=LOCAL_PERIOD)
        elif compression != "alone":
            # torch's PowerSGD calls collectives from callbacks: only with one bucket is their order certainly the same
            # on all ranks.
            bucket_mb = ONE_BUCKET_MB if compression == "powersgd" else workload.bucket_cap_mb
            wrapped = DistributedDataParallel(workload.model, process_group=group, bucket_cap_mb=bucket_mb)
            if compression != "none":
                compress(wrapped, compression, matrix_rank=POWERSGD_RANK)
            self._model = wrapped
        self._optimizer = workload.optimizer(self._model)

    def step(self) -> float:
        """Train one step; the loss of this rank's batch."""
        self._optimizer.zero_grad(set_to_none=True)
        loss = self.workload.loss(self._model, self._num_steps, self._rank)
        loss.backward()
        self._optimizer.step()
        if self._local is not None:
            self._local.step()
        self._num_steps += 1
        return float(loss.detach())

    def digest(self) -> str:
        """Return the hash of all weights."""
        found = hashlib.sha256()
        with torch.no_grad():
            for parameter in self.workload.model.parameters():
                found.update(memoryview(parameter.numpy()).cast("B"))
        return found.hexdigest()
