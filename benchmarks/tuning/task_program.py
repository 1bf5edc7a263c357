"""Trains a real task by lines of JSON: `python -m benchmarks.tuning.task_program digits|minilm-head [FEATURES]`.

Where: `tuning_tasks` starts it in the interpreter that has what the task takes. A point as a line of input gives its
loss on held-out examples as a line of output; the same point gives the same loss.

    {name: text}  ->  {"loss": number}
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.tuning.numpy_network import MOST_LOSS, Examples, epochs
from benchmarks.tuning.real_data import read_features

NUM_EPOCHS = 10
NUM_HELD_DIGITS = 597  # of scikit-learn's 1,797


def main() -> None:
    """Answer until the end of the input."""
    task = sys.argv[1]
    if task == "digits":
        digits = _scikit_digits()
        train = partial(scikit_loss, digits)
    elif task == "minilm-head":
        features = read_features(Path(sys.argv[2]))
        train = partial(head_loss, features)
    else:
        raise SystemExit(f"task: expected digits or minilm-head, got {task!r}")
    np.seterr(all="ignore")  # a training that diverges tells MOST_LOSS
    for line in sys.stdin:
        print(json.dumps({"loss": train(json.loads(line))}), flush=True)


def head_loss(features: Examples, point: Mapping[str, str]) -> float:
    """Train a network on features and return its loss after the last epoch."""
    *_, last = epochs(features, point, NUM_EPOCHS)
    return last.loss


def scikit_loss(digits: Examples, point: Mapping[str, str]) -> float:
    """Train scikit-learn's network on digits and return its loss; MOST_LOSS for one that diverges."""
    from sklearn.metrics import log_loss  # type: ignore[import-not-found]
    from sklearn.neural_network import MLPClassifier  # type: ignore[import-not-found]

    warnings.simplefilter("ignore")  # ten epochs do not converge, and are not meant to
    model = MLPClassifier(
        hidden_layer_sizes=(int(point["hidden"]),),
        activation=point["activation"],
        solver=point["solver"],
        alpha=float(point["decay"]),
        batch_size=int(point["batch"]),
        learning_rate_init=float(point["lr"]),
        max_iter=NUM_EPOCHS,
        n_iter_no_change=NUM_EPOCHS,
        random_state=0,
    )
    try:
        model.fit(digits.inputs_ND, digits.labels_N)
    except ValueError:  # its weights are no numbers any more
        return MOST_LOSS
    loss = float(log_loss(digits.held_labels_N, model.predict_proba(digits.held_inputs_ND)))
    return min(loss, MOST_LOSS) if np.isfinite(loss) else MOST_LOSS


def _scikit_digits() -> Examples:
    from sklearn.datasets import load_digits  # type: ignore[import-not-found]

    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    return Examples.split(found.data[order] / 16, found.target[order], num_held=NUM_HELD_DIGITS)


if __name__ == "__main__":
    main()
