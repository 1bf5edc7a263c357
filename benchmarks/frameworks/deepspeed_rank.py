"""One rank of `bench_deepspeed`: makes the model that it is told to, trains it block by block, and tells its memory.

Run: `python -m benchmarks.frameworks.deepspeed_rank BACKEND FOLDER RANK SIZE`; orders come over the socket of the
folder, as to the other gangs. LOCAL_SIZE stays unset: DeepSpeed's own shared memory serves inference alone.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch import nn

from benchmarks.collectives.collective_board import Board
from benchmarks.training.step_models import Sizes, batch_of, loss_of, make_gpt, optimizer_of, share_of
from clary.train.collective.adapters.torch.registration import register

LIMIT_S = 60.0
KIB = 1024
RESET_PEAK = "5"  # written to clear_refs: the peak of resident memory starts anew


class Rank:
    """The orders that a rank carries out: one method for each, arguments by name."""

    def __init__(self, backend: str, folder: Path, rank: int, size: int) -> None:
        self._board = Board(folder / "board", rank, size)
        self._rank, self._size = rank, size
        self._sizes = Sizes()
        self._step: Callable[[int], float] | None = None
        self._end: Callable[[], None] = _nothing
        self._number = 0
        self._base_bytes = 0
        register()
        deepspeed.init_distributed(
            dist_backend=backend,
            auto_mpi_discovery=False,
            init_method=f"file://{folder / 'store'}",
            timeout=timedelta(seconds=LIMIT_S),
            rank=rank,
            world_size=size,
        )
        assert torch.distributed.get_backend() == backend

    def make(self, *, stage: int, is_offloaded: bool, sizes: dict[str, int]) -> dict[str, Any]:
        """Make the model, with DeepSpeed or, in stage 0, with DistributedDataParallel."""
        Path("/proc/self/clear_refs").write_text(RESET_PEAK, encoding="ascii")
        self._base_bytes = resident_bytes("VmRSS") - resident_bytes("RssShmem")
        self._sizes, self._number = Sizes(**sizes), 0
        model = make_gpt(self._sizes)
        num_parameters = sum(parameter.numel() for parameter in model.parameters())  # ZeRO-3 empties them
        if stage:
            self._step, self._end = self._with_deepspeed(model, stage, is_offloaded=is_offloaded)
        else:
            self._step = self._with_ddp(model)
        return {"num_parameters": num_parameters}

    def train(self, *, num_steps: int) -> dict[str, Any]:
        """Take steps, each begun by all ranks together."""
        assert self._step is not None, "make comes first"
        seconds, losses = [], []
        for _ in range(num_steps):
            self._board.start_together()
            began_s = time.monotonic()
            losses.append(self._step(self._number))
            seconds.append(time.monotonic() - began_s)
            self._number += 1
        return {"seconds": seconds, "losses": losses}

    def drop(self) -> dict[str, Any]:
        """Forget the model, and tell the peak of memory since before it was made, with all shared memory."""
        peak_bytes = resident_bytes("VmHWM") - self._base_bytes
        self._step = None
        self._end()
        self._end = _nothing
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        return {"peak_bytes": peak_bytes, "left_bytes": resident_bytes("VmRSS") - self._base_bytes}

    def _batch(self, number: int) -> list[torch.Tensor]:
        return share_of(batch_of(self._sizes, number), self._rank, self._size)

    def _with_ddp(self, model: nn.Module) -> Callable[[int], float]:
        wrapped = nn.parallel.DistributedDataParallel(model)
        optimizer = optimizer_of(model.parameters())

        def step(number: int) -> float:
            tokens, targets = self._batch(number)
            loss = loss_of(wrapped(tokens), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return float(loss.item())

        return step

    def _with_deepspeed(
        self, model: nn.Module, stage: int, *, is_offloaded: bool
    ) -> tuple[Callable[[int], float], Callable[[], None]]:
        zero: dict[str, Any] = {"stage": stage}
        if is_offloaded:
            zero["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
        settings = {
            "train_micro_batch_size_per_gpu": self._sizes.batch // self._size,
            "zero_optimization": zero,
            "zero_force_ds_cpu_optimizer": False,  # torch's AdamW in all cases, as with DistributedDataParallel
            "gradient_clipping": 0.0,  # else to a norm of 1
            "steps_per_print": sys.maxsize,
        }
        optimizer = optimizer_of(model.parameters())
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
        assert engine.zero_optimization_stage() == stage

        def step(number: int) -> float:
            tokens, targets = self._batch(number)
            loss = loss_of(engine(tokens), targets)
            engine.backward(loss)
            engine.step()
            return float(loss.item())

        return step, engine.destroy


def resident_bytes(field: str) -> int:
    """Return bytes of this process, `VmRSS` now, `RssShmem` of it in shared memory, `VmHWM` at the peak."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * KIB
    raise ValueError(field)


def _nothing() -> None:
    pass


def main(backend: str, folder: Path, rank: int, size: int) -> None:
    """Serve until the orders end."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank))
    served = Rank(backend, folder, rank, size)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as orders:
        orders.connect(str(folder / "orders"))
        with orders.makefile("rw", encoding="ascii") as lines:
            print(json.dumps({"rank": rank, "about": _about()}), file=lines, flush=True)
            for line in lines:
                print(json.dumps(_carry_out(served, json.loads(line))), file=lines, flush=True)
    torch.distributed.destroy_process_group()


def _about() -> dict[str, str]:
    return {"deepspeed": str(deepspeed.__version__), "torch": str(torch.__version__)}


def _carry_out(served: Rank, order: dict[str, Any]) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = getattr(served, order.pop("do"))(**order)
    except Exception:  # noqa: BLE001 - whatever it is, who gave the order is told
        return {"error": traceback.format_exc()[-2000:]}
    return answer


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # gloo's threads may take the interpreter down while it ends
