"""The program: `python -m clary.train.boosting ROOT [--pickle]`, where ROOT is `/opt/ml` in the job's view."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from clary.contract.ml_tree import MlTree
from clary.train.boosting.channels import TRAIN, VALIDATION, data_files, read_channels
from clary.train.boosting.errors import UserMistake
from clary.train.boosting.hyperparameters import parse_hyperparameters
from clary.train.boosting.matrices import Table, read_table

MODEL_NAME = "xgboost-model"
PICKLE_OPTION = "--pickle"


def main() -> None:
    """Train as the command line says; end with the text of the failure, which `/opt/ml/output/failure` gets too."""
    root, *options = sys.argv[1:]
    tree = MlTree(Path(root))
    try:
        run(tree, is_pickled=PICKLE_OPTION in options)
    except UserMistake as mistake:
        tree.failure.write_text(f"{mistake}\n", encoding="utf-8")
        sys.exit(str(mistake))


def run(tree: MlTree, *, is_pickled: bool) -> None:
    """Read the configuration and the channels, train, and write the model.

    Args:
        tree: of the host, in the program's view.
        is_pickled: whether the model's file is a pickle, as in images of xgboost before 1.3.
    Raises: UserMistake; OSError.
    """
    missing = [name for name in ("xgboost", "numpy", "scipy") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserMistake(f"the job's environment {sys.executable} has no module {missing[0]}")
    settings = parse_hyperparameters(_document(tree, "hyperparameters"))
    channels = read_channels(_document(tree, "inputdataconfig"))
    hosts = _document(tree, "resourceconfig").get("hosts", [])
    if len(hosts) > 1:
        raise UserMistake(f"the algorithm XGBoost runs on one host here, and this job has {len(hosts)}")
    for note in (*settings.notes, *channels.notes):
        print(note, flush=True)
    tables: dict[str, Table] = {}
    for name in (TRAIN, VALIDATION):
        if name == VALIDATION and not channels.has_validation:
            continue
        files = data_files(tree.channel(name))
        if not files:
            raise UserMistake(f"channel {name!r} has no file with data")
        tables[name] = read_table(files, channels.data_format, has_weights=settings.has_weights)
        num_rows, num_columns = len(tables[name].labels), tables[name].num_columns
        print(f"{name}: {num_rows} rows, {num_columns} features, {len(files)} files of {channels.data_format.value}")
    # no start-up time: without xgboost the job fails with the sentence above instead of a traceback
    from clary.train.boosting.training import train

    checkpoints = _checkpoint_folder(tree)
    train(settings, tables, model_path=tree.model / MODEL_NAME, checkpoints=checkpoints, is_pickled=is_pickled)


def _document(tree: MlTree, stem: str) -> dict[str, Any]:
    path = tree.config / f"{stem}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def _checkpoint_folder(tree: MlTree) -> Path | None:
    """Return the folder of checkpoints; None for a job without CheckpointConfig."""
    config = _document(tree, "checkpointconfig")
    if not config:
        return None
    folder = Path(config.get("LocalPath") or tree.checkpoints)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


if __name__ == "__main__":
    main()
