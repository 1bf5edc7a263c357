"""One training with xgboost: data matrices, callbacks, and the model's file."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xgboost
from scipy.sparse import csr_matrix
from xgboost.callback import EarlyStopping, TrainingCallback

from clary.train.boosting.callbacks import (
    Checkpoints,
    EvaluationLines,
    TerminationModel,
    load_newest_checkpoint,
    write_model,
)
from clary.train.boosting.channels import TRAIN, VALIDATION
from clary.train.boosting.errors import UserMistake
from clary.train.boosting.group import Group
from clary.train.boosting.hyperparameters import Hyperparameters
from clary.train.boosting.matrices import SparseRows, Table, widened, with_groups
from clary.train.boosting.own_metrics import own_metric

_FIRST_VERSION = (1, 3)  # of xgboost with classes of callbacks
_FIRST_DEVICE = (2, 0)  # of xgboost with the parameter `device`, by which it replaced gpu_hist
# xgboost's traces of its own C++ code follow its message.
_TRACE = re.compile(r"\nStack trace:.*", re.DOTALL)
# Metrics whose larger values are better; `@` and a threshold may follow a name.
_GROWING = frozenset(
    {
        *("accuracy", "auc", "aucpr", "balanced_accuracy", "f1", "f1_binary", "f1_macro", "map", "ndcg", "precision"),
        *("precision_macro", "precision_micro", "pre", "r2", "recall", "recall_macro", "recall_micro"),
    }
)


def train(
    settings: Hyperparameters,
    tables: dict[str, Table],
    *,
    model_path: Path,
    checkpoints: Path | None,
    is_pickled: bool,
    group: Group,
) -> None:
    """Train a model; the first host of the group writes it.

    Args:
        settings: parsed hyperparameters.
        tables: of the channel `train`, and `validation` if the job has it.
        model_path: file of the model.
        checkpoints: folder of checkpoints, from which training resumes; None: no checkpoints.
        is_pickled: whether the model's file is a pickle.
        group: the hosts that train together, joined.
    Raises: UserMistake with xgboost's own text; OSError.
    """
    version = tuple(int(part) for part in xgboost.__version__.split(".")[:2])
    if version < _FIRST_VERSION:
        raise UserMistake(f"the job's environment has xgboost {xgboost.__version__}; expected 1.3 or newer")
    parameters = {**settings.parameters, **({"eval_metric": list(settings.metrics)} if settings.metrics else {})}
    num_cpus = os.environ.get("SM_NUM_CPUS", "")  # of this host, which may have a part of the machine's
    if num_cpus.isdecimal():
        parameters.setdefault("nthread", int(num_cpus))
    if parameters.get("tree_method") == "gpu_hist" and version >= _FIRST_DEVICE:
        parameters |= {"tree_method": "hist", "device": "cuda"}
        print(f"xgboost {xgboost.__version__} has no tree_method gpu_hist: it gets hist and device cuda", flush=True)
    start, first_round = (None, 0) if checkpoints is None else _resumed(checkpoints, group)
    if first_round:
        print(f"resumed from the checkpoint of round {first_round - 1}", flush=True)
    callbacks: list[TrainingCallback] = [EvaluationLines(first_round)] if group.is_first else []
    if checkpoints is not None and group.is_first:
        callbacks.append(Checkpoints(checkpoints, first_round))
    if settings.saves_on_termination:
        keeping = TerminationModel(model_path, is_pickled=is_pickled, group=group)
        keeping.listen()
        callbacks.append(keeping)
    if settings.early_stopping_rounds is not None:
        callbacks.append(_early_stopping(settings))
    try:
        matrices = _matrices(tables, group)
        model = xgboost.train(
            parameters,
            matrices[TRAIN],
            max(settings.num_round - first_round, 0),
            evals=[(matrix, name) for name, matrix in matrices.items()],
            verbose_eval=False,
            xgb_model=start,
            callbacks=callbacks,
            **_own_metrics(settings, group),
        )
    except (xgboost.core.XGBoostError, ValueError) as error:
        raise UserMistake(f"xgboost: {_TRACE.sub('', str(error)).strip()}") from error
    if group.is_first:
        write_model(model, model_path, is_pickled=is_pickled)


def _resumed(checkpoints: Path, group: Group) -> tuple[Any, int]:
    """Return the model and the number of rounds of the first host's newest checkpoint; (None, 0) without one."""
    start, first_round = load_newest_checkpoint(checkpoints) if group.is_first else (None, 0)
    if group.size == 1:
        return start, first_round
    raw = group.of_first(b"" if start is None else bytes(start.save_raw()))
    first_round = group.largest(first_round)
    if not raw:
        return None, 0
    model = xgboost.Booster()
    model.load_model(bytearray(raw))
    return model, first_round


def _early_stopping(settings: Hyperparameters) -> TrainingCallback:
    metric = settings.stopping_metric
    is_growing = None if metric is None else metric.partition("@")[0] in _GROWING
    return EarlyStopping(rounds=settings.early_stopping_rounds, metric_name=metric, maximize=is_growing, save_best=True)


def _matrices(tables: dict[str, Table], group: Group) -> dict[str, Any]:
    """Return the channels' rows for xgboost, with the same number of features on all hosts.

    A host whose part of a channel has no file has a matrix without rows.
    """
    found = {}
    num_columns = group.largest(tables[TRAIN].num_columns)
    for name in (TRAIN, VALIDATION):
        if name not in tables:
            continue
        table = widened(tables[name], num_columns)
        if group.total([len(table.labels)])[0] == 0:
            raise UserMistake(f"channel {name!r} has no file with data")
        if table.num_columns != num_columns:
            raise UserMistake(
                f"channel {name!r} has {table.num_columns} features, but channel 'train' has {num_columns}"
                f"{' on some host' if group.size > 1 else ''}; with csv_weights both have a column of weights"
            )
        table = with_groups(table) if group.largest(int(table.groups is not None)) else table
        groups = {} if table.groups is None else {"qid": table.groups}
        found[name] = xgboost.DMatrix(features(table), label=table.labels, weight=table.weights, **groups)
    return found


def features(table: Table) -> Any:
    """Return a table's features in a form that xgboost takes."""
    rows = table.features
    if isinstance(rows, SparseRows):
        return csr_matrix((rows.values, rows.indices, rows.ends), shape=rows.shape)
    return rows


def _own_metrics(settings: Hyperparameters, group: Group) -> dict[str, Callable[..., Any]]:
    """Return the argument of `xgboost.train` that computes SageMaker's own metrics."""
    if not settings.own_metrics:
        return {}
    objective = str(settings.parameters.get("objective", ""))

    def compute(predictions: Any, matrix: Any) -> list[tuple[str, float]]:
        labels = matrix.get_label()
        return [
            (name, own_metric(name, labels, predictions, objective=objective, group=group))
            for name in settings.own_metrics
        ]

    has_new_name = "custom_metric" in inspect.signature(xgboost.train).parameters
    return {"custom_metric" if has_new_name else "feval": compute}
