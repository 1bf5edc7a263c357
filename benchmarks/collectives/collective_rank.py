"""One rank of a gang: it connects to the benchmark, carries out its orders, and leaves when they end.

Run: `python -m benchmarks.collectives.collective_rank torch|mpi FOLDER SIZE [RANK]`; `collective_gang` does. Ranks of
MPI learn their number from MPI.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

from benchmarks.collectives.collective_board import Board
from benchmarks.collectives.collective_doors import MpiDoors, TorchDoors
from benchmarks.collectives.collective_samples import Samples, copy_rates

ORDERS_BYTES = 1 << 16


class Rank:
    """The orders that a rank carries out: one method for each order, arguments by name."""

    def __init__(self, doors: TorchDoors | MpiDoors, board: Board) -> None:
        self._doors, self._board = doors, board
        self._samples: Samples | None = None
        self._training: Any = None
        self._overlap: Any = None

    def open(self, *, door: str, backend: str, environment: dict[str, str]) -> dict[str, Any]:
        """Form a group and call it `door`."""
        assert isinstance(self._doors, TorchDoors)
        self._doors.open(door, backend, environment)
        return {}

    def explain(self, *, door: str, num_bytes: int) -> dict[str, Any]:
        """Return the choice of our cost model for an all_reduce, in words."""
        assert isinstance(self._doors, TorchDoors)
        return {"text": self._doors.explain(door, num_bytes)}

    def size(self, *, collective: str, num_bytes: int) -> dict[str, Any]:
        """Allocate the buffers that all doors use from here on."""
        self._samples = None  # the old ones go first
        self._samples = Samples(
            self._board, self._doors.rank, self._doors.size, collective=collective, num_bytes=num_bytes
        )
        return {}

    def take(self, *, door: str, **arguments: int) -> dict[str, Any]:
        """Take samples through a door."""
        assert self._samples is not None, "size comes first"
        return self._samples.take(self._doors.door(door), **arguments)

    def copy(self, *, num_bytes: int, num_samples: int, is_alone: bool) -> dict[str, Any]:
        """Copy memory, for the bound."""
        rates = copy_rates(
            self._board, num_bytes=num_bytes, num_samples=num_samples, is_alone=is_alone, rank=self._doors.rank
        )
        return {"bytes_per_s": rates}

    def begin_training(self, *, runs: dict[str, list[str]], **arguments: Any) -> dict[str, Any]:
        """Make one model for each of these runs; each is a door and a compression."""
        from benchmarks.collectives.collective_training import Training  # MPI's ranks have no torch to load

        assert isinstance(self._doors, TorchDoors)
        groups = self._doors.groups
        made = {name: (groups[door], compression) for name, (door, compression) in runs.items()}
        self._training = Training(made, self._board, self._doors.rank, **arguments)
        about: dict[str, Any] = self._training.about()
        return about

    def train(self, *, run: str, num_steps: int) -> dict[str, Any]:
        """Train the model of one run further."""
        trained: dict[str, Any] = self._training.steps(run, num_steps)
        return trained

    def end_training(self) -> dict[str, Any]:
        """Tell the weights of all models apart, and forget them."""
        digests: dict[str, Any] = self._training.digests()
        self._training = None
        return digests

    def begin_overlap(self, *, models: dict[str, list[str]], **arguments: int) -> dict[str, Any]:
        """Make these slow models; each value is the name of a door and the source of the bucket sizes."""
        from benchmarks.collectives.collective_overlap import Overlap

        assert isinstance(self._doors, TorchDoors)
        groups = self._doors.groups
        made = {name: (groups[door], buckets) for name, (door, buckets) in models.items()}
        self._overlap = None  # the old ones go first
        self._overlap = Overlap(made, self._board, self._doors.rank, **arguments)
        return {}

    def communicate(self, *, model: str, num_samples: int) -> dict[str, Any]:
        """Reduce all layers of a slow model, with nothing to hide behind."""
        return {"seconds": self._overlap.communication(model, num_samples=num_samples)}

    def step(self, *, model: str, checked: bool, **arguments: Any) -> dict[str, Any]:
        """Run steps of a slow model."""
        seconds = self._overlap.steps(model, **arguments)
        problems = self._overlap.problems(model) if checked else []
        return {"seconds": seconds, "problems": problems, "buckets": self._overlap.buckets(model)}


def main(arguments: list[str]) -> int:
    """Serve until the orders end."""
    kind, folder, size = arguments[0], Path(arguments[1]), int(arguments[2])
    doors = MpiDoors() if kind == "mpi" else TorchDoors(folder, int(arguments[3]), size)
    rank = Rank(doors, Board(folder / "board", doors.rank, size))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as orders:
        orders.connect(str(folder / "orders"))
        orders.sendall(_line({"rank": doors.rank, "about": doors.about}))
        unread = b""
        while data := orders.recv(ORDERS_BYTES):
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                orders.sendall(_line(_carry_out(rank, json.loads(line))))
    doors.close()
    return 0


def _carry_out(rank: Rank, order: dict[str, Any]) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = getattr(rank, order.pop("do"))(**order)
    except Exception as error:  # noqa: BLE001 - whatever it is, who gave the order is told
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
    return answer


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


if __name__ == "__main__":
    code = main(sys.argv[1:])
    # gloo's threads may take the interpreter down while it ends (torch 2.13, Python 3.11): leave without that.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
