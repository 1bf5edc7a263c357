"""Callbacks of one training: lines of the log, checkpoints, and the model of a job that may be stopped."""

from __future__ import annotations

import os
import pickle
import re
import signal
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import xgboost
from xgboost.callback import TrainingCallback

from clary.train.boosting.group import Group

_TAB = "#011"  # as logs of SageMaker show the tab between two metrics
_CHECKPOINT = re.compile(r"xgboost-checkpoint\.(\d+)")
_KEPT = 5  # newest checkpoints


class EvaluationLines(TrainingCallback):
    """Prints `[ROUND]#011train-rmse:VALUE#011validation-rmse:VALUE` after each round."""

    def __init__(self, first_round: int) -> None:
        self._first_round = first_round

    def after_iteration(self, model: Any, epoch: int, evals_log: Mapping[str, Mapping[str, Sequence[Any]]]) -> bool:
        """Print the newest values; return False, so that the training goes on.

        Args: as `TrainingCallback.after_iteration`.
        """
        words = [f"[{self._first_round + epoch}]"]
        for channel, metrics in evals_log.items():
            for metric, values in metrics.items():
                value = values[-1][0] if isinstance(values[-1], tuple) else values[-1]
                words.append(f"{channel}-{metric}:{value:.5f}")
        print(_TAB.join(words), flush=True)
        return False


class Checkpoints(TrainingCallback):
    """Writes `xgboost-checkpoint.ROUND` after each round and keeps the newest."""

    def __init__(self, folder: Path, first_round: int) -> None:
        self._folder = folder
        self._first_round = first_round

    def after_iteration(self, model: Any, epoch: int, evals_log: object) -> bool:
        """Write a checkpoint; return False, so that the training goes on.

        Args: as `TrainingCallback.after_iteration`.
        """
        write_model(model, self._folder / f"xgboost-checkpoint.{self._first_round + epoch}")
        for _, path in _checkpoints(self._folder)[:-_KEPT]:
            path.unlink(missing_ok=True)
        return False


class TerminationModel(TrainingCallback):
    """Keeps the newest model in the model folder, and ends the training after the round in which SIGTERM came.

    Hosts of a group end after the same round: the first in which one of them has had the signal.
    """

    def __init__(self, path: Path, *, is_pickled: bool, group: Group) -> None:
        self._path = path
        self._is_pickled = is_pickled
        self._group = group
        self.is_stopping = False

    def listen(self) -> None:
        """Take over SIGTERM."""
        signal.signal(signal.SIGTERM, self._stop)

    def after_iteration(self, model: Any, epoch: int, evals_log: object) -> bool:
        """Write the model; return whether to end the training.

        Args: as `TrainingCallback.after_iteration`.
        """
        if self._group.is_first:
            write_model(model, self._path, is_pickled=self._is_pickled)
        return bool(self._group.largest(int(self.is_stopping)))

    def _stop(self, number: int, frame: object) -> None:
        self.is_stopping = True


def write_model(model: Any, path: Path, *, is_pickled: bool = False) -> None:
    """Write a model under its name at once, so that a process that ends meanwhile leaves the earlier one.

    Args:
        model: the booster.
        path: of the file.
        is_pickled: whether to pickle it, as images of xgboost before 1.3 do, instead of xgboost's own format.
    Raises: OSError.
    """
    part = path.with_name(f".{path.name}-part")
    if is_pickled:
        part.write_bytes(pickle.dumps(model))
    else:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*UBJSON.*")  # the name, which is SageMaker's, has no extension
            model.save_model(str(part))
    os.replace(part, path)


def load_newest_checkpoint(folder: Path) -> tuple[Any, int]:
    """Return the newest model of a folder that can be read, and the number of its rounds; (None, 0) without one."""
    for number, path in reversed(_checkpoints(folder)):
        model = xgboost.Booster()
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*UBJSON.*")
                model.load_model(str(path))
        except xgboost.core.XGBoostError as error:
            print(f"checkpoint {path.name} cannot be read: {str(error).splitlines()[0]}", flush=True)
            continue
        return model, number + 1
    return None, 0


def _checkpoints(folder: Path) -> list[tuple[int, Path]]:
    found = [(_CHECKPOINT.fullmatch(path.name), path) for path in folder.iterdir()]
    return sorted((int(match.group(1)), path) for match, path in found if match is not None)
