"""A network with one hidden layer in NumPy, trained by Adam: the same numbers for the same hyperparameters.

Where: real trainings of the benchmarks of tuning, where a framework would take longer to import than to train.
Legend: N examples, D inputs, H hidden, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]
Labels = npt.NDArray[np.integer[Any]]

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8  # of Adam, as published
MOST_LOSS = 20.0  # what a training that has diverged tells: a search wants a number


@dataclass(frozen=True)
class Examples:
    """A data set in two parts."""

    inputs_ND: Array
    labels_N: Labels
    held_inputs_ND: Array
    held_labels_N: Labels

    @classmethod
    def split(cls, inputs_ND: Array, labels_N: Labels, *, num_held: int) -> Examples:
        """Return a data set whose last examples are held out."""
        return cls(inputs_ND[:-num_held], labels_N[:-num_held], inputs_ND[-num_held:], labels_N[-num_held:])


@dataclass(frozen=True)
class Told:
    """Worth of a network after an epoch, on the held-out examples."""

    loss: float  # cross-entropy, at most MOST_LOSS
    accuracy: float


def epochs(examples: Examples, point: Mapping[str, str], num_epochs: int) -> Iterator[Told]:
    """Train a network and yield its worth after each epoch.

    Args:
        examples: to train on, and held out.
        point: `lr`, `decay` (of weights, apart from the gradient), `hidden`, `batch`, `activation` (relu or tanh).
        num_epochs: to train for.
    """
    chance = np.random.default_rng(0)
    num_inputs, num_classes = examples.inputs_ND.shape[1], int(examples.labels_N.max()) + 1
    weights = _first_weights(chance, num_inputs, int(point["hidden"]), num_classes)
    moments = [(np.zeros_like(one), np.zeros_like(one)) for one in weights]
    rate, decay, batch = float(point["lr"]), float(point["decay"]), int(point["batch"])
    step = 0
    for _ in range(num_epochs):
        order_N = chance.permutation(len(examples.labels_N))
        for begin in range(0, len(order_N), batch):
            rows = order_N[begin : begin + batch]
            gradients = _gradients(weights, examples.inputs_ND[rows], examples.labels_N[rows], point["activation"])
            step += 1
            for weight, gradient, (mean, square) in zip(weights, gradients, moments, strict=True):
                mean += (1 - BETA_1) * (gradient - mean)
                square += (1 - BETA_2) * (gradient * gradient - square)
                size = rate / (1 - BETA_1**step)
                weight -= size * mean / (np.sqrt(square / (1 - BETA_2**step)) + EPSILON) + rate * decay * weight
        yield _told(weights, examples, point["activation"])


def _first_weights(chance: np.random.Generator, num_inputs: int, hidden: int, num_classes: int) -> list[Array]:
    def drawn(rows: int, columns: int) -> Array:
        weights: Array = (chance.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)
        return weights

    zeros = [np.zeros(size, np.float32) for size in (hidden, num_classes)]
    return [drawn(num_inputs, hidden), zeros[0], drawn(hidden, num_classes), zeros[1]]


def _logits(weights: list[Array], inputs_ND: Array, activation: str) -> tuple[Array, Array]:
    """Return logits of shape [N, C] and the hidden layer of shape [N, H]."""
    first_DH, first_H, second_HC, second_C = weights
    sums_NH = inputs_ND @ first_DH + first_H
    hidden_NH = np.tanh(sums_NH) if activation == "tanh" else np.maximum(sums_NH, 0)
    return hidden_NH @ second_HC + second_C, hidden_NH


def _gradients(weights: list[Array], inputs_ND: Array, labels_N: Labels, activation: str) -> list[Array]:
    logits_NC, hidden_NH = _logits(weights, inputs_ND, activation)
    wrong_NC = _probabilities(logits_NC)
    wrong_NC[np.arange(len(labels_N)), labels_N] -= 1
    wrong_NC /= len(labels_N)
    slope_NH = 1 - hidden_NH * hidden_NH if activation == "tanh" else hidden_NH > 0
    back_NH = (wrong_NC @ weights[2].T) * slope_NH
    return [inputs_ND.T @ back_NH, back_NH.sum(0), hidden_NH.T @ wrong_NC, wrong_NC.sum(0)]


def _probabilities(logits_NC: Array) -> Array:
    powers_NC: Array = np.exp(logits_NC - logits_NC.max(1, keepdims=True))
    powers_NC /= powers_NC.sum(1, keepdims=True)
    return powers_NC


def _told(weights: list[Array], examples: Examples, activation: str) -> Told:
    labels_N = examples.held_labels_N
    logits_NC = _logits(weights, examples.held_inputs_ND, activation)[0]
    chances_N = _probabilities(logits_NC)[np.arange(len(labels_N)), labels_N]
    loss = float(-np.log(np.maximum(chances_N, 1e-30)).mean())
    accuracy = float((logits_NC.argmax(1) == labels_N).mean())
    return Told(min(loss, MOST_LOSS) if np.isfinite(loss) else MOST_LOSS, accuracy)
