"""One rank of a gang of TensorFlow: it forms its group, carries out orders, and leaves when they end.

Run: `python -m benchmarks.frameworks.tensorflow_rank WAY FOLDER SIZE RANK`; `tensorflow_gang` does.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

import tensorflow as tf

from benchmarks.collectives.collective_board import Board
from benchmarks.frameworks.tensorflow_samples import Samples, Training
from benchmarks.frameworks.tensorflow_ways import Way, make_way

ORDERS_BYTES = 1 << 16


class Rank:
    """The orders that a rank carries out: one method for each order, arguments by name."""

    def __init__(self, way: Way, board: Board, rank: int, size: int) -> None:
        self._way, self._board, self._rank, self._size = way, board, rank, size
        self._key = 0
        self._samples: Samples | None = None
        self._doors: dict[str, Any] = {}
        self._training: Training | None = None

    def size(self, *, collective: str, num_bytes: int) -> dict[str, Any]:
        """Make ready for an all-reduce of this size, eager and inside of a function."""
        assert collective == "all_reduce", f"{collective} is not measured here"
        self._samples = Samples(self._board, self._rank, self._size, num_bytes, tf.constant)
        eager_key, function_key = self._key, self._key + 1
        self._key += 2
        self._doors = {
            "eager": lambda tensor: self._way.all_reduce(tensor, eager_key),
            "function": tf.function(lambda tensor: self._way.all_reduce(tensor, function_key), autograph=False),
        }
        return {}

    def take(self, *, door: str, **arguments: int) -> dict[str, Any]:
        """Take samples, eagerly or inside of a function."""
        assert self._samples is not None, "size comes first"
        return self._samples.take(self._doors[door], **arguments)

    def begin_training(self, *, batch: int) -> dict[str, Any]:
        """Make a model.

        Args:
            batch: images of a step, of all ranks together.
        """
        self._samples, self._doors = None, {}
        share = batch // self._size
        part = slice(self._rank * share, (self._rank + 1) * share) if self._way.splits_batch else slice(None)
        self._training = Training(self._way.trainer(batch), batch, part, tf.constant)
        return {}

    def train(self, *, num_steps: int) -> dict[str, Any]:
        """Train the model further."""
        assert self._training is not None, "begin_training comes first"
        return self._training.run(num_steps)


def main(arguments: list[str]) -> None:
    """Serve until the orders end."""
    name, folder, size, rank = arguments[0], Path(arguments[1]), int(arguments[2]), int(arguments[3])
    served = Rank(make_way(name, rank, size), Board(folder / "board", rank, size), rank, size)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as orders:
        orders.connect(str(folder / "orders"))
        orders.sendall(_line({"rank": rank, "about": {"tensorflow": tf.__version__}}))
        unread = b""
        while data := orders.recv(ORDERS_BYTES):
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                orders.sendall(_line(_carry_out(served, json.loads(line))))


def _carry_out(served: Rank, order: dict[str, Any]) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = getattr(served, order.pop("do"))(**order)
    except Exception as error:  # noqa: BLE001 - whatever it is, who gave the order is told
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
    return answer


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


if __name__ == "__main__":
    main(sys.argv[1:])
    # TensorFlow's servers have no end of their own: leave without waiting for their threads.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
