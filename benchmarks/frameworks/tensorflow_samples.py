"""Samples of an all-reduce and steps of a training, as one rank of `tensorflow` measures them. No framework here.

Where: `tensorflow_rank` makes both and hands in functions of TensorFlow.

A sample of an all-reduce is a chain: each call sums what the last one left, so the end shows whether all were right. Of
`n` calls on `size` ranks the result is the sum of all inputs times size ** (n - 1). Inputs are new in every sample.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.collectives.collective_board import Board

FLOAT_BYTES = 4
NUM_PLACES = 256  # that are compared
FLOAT32_EPSILON = 2.0**-23
PIXELS = 784
_DARK = 0.8  # of a picture's pixels, about as many as of MNIST's
_NOISE = 0.3


class Samples:
    """Samples of an all-reduce of one size on one rank.

    Args:
        to_tensor: makes a tensor of its own of an array.
    """

    def __init__(self, board: Board, rank: int, size: int, num_bytes: int, to_tensor: Callable[[Any], Any]) -> None:
        self._board, self._rank, self._size = board, rank, size
        self._to_tensor = to_tensor
        self._values = np.zeros(max(1, num_bytes // FLOAT_BYTES), np.float32)

    def take(
        self, call: Callable[[Any], Any], *, seed: int, first: int, num_samples: int, num_calls: int
    ) -> dict[str, Any]:
        """Run samples from number `first` on; return the seconds of one call in each, and the problems found.

        Args:
            call: from a tensor to the sum of the tensors of all ranks.
        """
        times_s, problems = [], []
        for number in range(first, first + num_samples):
            generator = np.random.Generator(np.random.SFC64([seed, number, self._rank]))
            generator.random(dtype=np.float32, out=self._values)
            self._values -= np.float32(0.5)
            places = np.random.default_rng([seed, number]).integers(0, len(self._values), NUM_PLACES)
            places[:2] = 0, len(self._values) - 1
            shown = self._board.exchange(self._values[places].astype(np.float64).tobytes())
            tensor = self._to_tensor(self._values)
            self._board.start_together()
            began = time.perf_counter()
            for _ in range(num_calls):
                tensor = call(tensor)
            result = np.asarray(tensor)  # waits, where calls return before they are done
            times_s.append((time.perf_counter() - began) / num_calls)
            if problem := wrong_sums([np.frombuffer(one) for one in shown], result, places, num_calls):
                problems.append(f"sample {number} on rank {self._rank}: {problem}")
        return {"times_s": times_s, "problems": problems}


def wrong_sums(inputs: list[Any], result: Any, places: Any, num_calls: int) -> str:
    """Return the problem with the end of a chain of all-reduces, "" for the right one.

    Args:
        inputs: by rank, what it put in at `places`, float64.
        result: what one rank has, shape [elements].
        places: indices of elements.
        num_calls: of the chain.
    """
    factor = float(len(inputs)) ** (num_calls - 1)
    if result.ndim != 1 or result.dtype != np.float32 or len(result) <= places.max():
        return f"the result is {result.dtype.name}{list(result.shape)}, expected what was put in"
    wanted = np.sum(inputs, axis=0) * factor
    tolerance = np.sum(np.abs(inputs), axis=0) * factor * len(inputs) * FLOAT32_EPSILON
    found = result[places]
    wrong = np.flatnonzero(~(np.abs(found - wanted) <= tolerance))
    if not len(wrong):
        return ""
    return f"{len(wrong)} of {len(wanted)} sums are wrong, first {found[wrong[0]]}, expected {wanted[wrong[0]]}"


class Training:
    """Steps of one way on one rank; all ranks and all ways see the same images in the same step.

    Args:
        step: from images and labels to the loss.
        part: of each batch that this rank takes.
    """

    def __init__(
        self, step: Callable[[Any, Any], Any], batch: int, part: slice, to_tensor: Callable[[Any], Any]
    ) -> None:
        self._step, self._batch, self._part = step, batch, part
        self._to_tensor = to_tensor
        self._number = 0

    def run(self, num_steps: int) -> dict[str, Any]:
        """Train further; return seconds and loss of each step, and the processor time of one of them in the mean."""
        batches = [make_batch(self._number + step, self._batch) for step in range(num_steps)]
        tensors = [[self._to_tensor(array[self._part]) for array in batch] for batch in batches]
        self._number += num_steps
        seconds, losses = [], []
        processor_s = time.process_time()
        for images, labels in tensors:
            began = time.perf_counter()
            losses.append(float(self._step(images, labels)))
            seconds.append(time.perf_counter() - began)
        processor_s = (time.process_time() - processor_s) / num_steps
        return {"seconds": seconds, "losses": losses, "processor_s": processor_s}


def make_batch(number: int, batch: int) -> tuple[Any, Any]:
    """Return images in the shape of MNIST's, [batch, 28, 28, 1] of 0 to 1, and labels, [batch]: pictures in noise."""
    pictures = np.random.default_rng(0).random((10, PIXELS), np.float32)
    pictures = np.maximum(pictures - _DARK, 0) / np.float32(1 - _DARK)
    drawn = np.random.default_rng([1, number])
    labels = drawn.integers(0, len(pictures), batch)
    images = pictures[labels] + np.float32(_NOISE) * drawn.standard_normal((batch, PIXELS), np.float32)
    return np.clip(images, 0, 1).reshape(batch, 28, 28, 1), labels
