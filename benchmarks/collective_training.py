"""Training on one rank: the same model once for each run, stepped in turns, so that runs can be compared.

Where: `collective_rank` does this on order of `bench_ddp_real` and `bench_shrink`.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.collective_board import Board
from benchmarks.training_models import Workload

POWERSGD_RANK = 4
POWERSGD_FIRST_STEP = 2  # the least that torch allows with error feedback


class Training:
    """Runs of one model, equal at first.

    Args:
        runs: by name, each a group and the name of a compression of gradients (`_compress`).
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
        """What is trained, and with how many samples a step and rank."""
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
        self._model = DistributedDataParallel(workload.model, process_group=group)
        _compress(self._model, compression, group)
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


def _compress(model: DistributedDataParallel, compression: str, group: Any) -> None:
    """Have gradients pass the group in fewer bytes, by torch's own hooks."""
    match compression:
        case "none":
            return
        case "fp16":
            model.register_comm_hook(group, default_hooks.fp16_compress_hook)
        case "bf16":
            # Behind another name: torch refuses its own hook by name where there is no CUDA, which it does not need.
            model.register_comm_hook(group, lambda state, bucket: default_hooks.bf16_compress_hook(state, bucket))
        case "powersgd":
            state = powerSGD_hook.PowerSGDState(
                group,
                matrix_approximation_rank=POWERSGD_RANK,
                start_powerSGD_iter=POWERSGD_FIRST_STEP,
                use_error_feedback=True,
                warm_start=True,
            )
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        case _:
            raise ValueError(f"expected none, fp16, bf16 or powersgd, got {compression!r}")
