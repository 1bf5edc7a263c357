"""The program: `python -m clary.train.boosting ROOT [--pickle]`, where ROOT is `/opt/ml` in the job's view."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clary.contract.ml_tree import MlTree
from clary.train.boosting.channels import TRAIN, VALIDATION, Channels, data_files, read_channels
from clary.train.boosting.errors import UserMistake
from clary.train.boosting.hyperparameters import Hyperparameters, parse_hyperparameters
from clary.train.boosting.matrices import Table, empty_table, read_table

if TYPE_CHECKING:
    from clary.train.boosting.group import Group

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
    Raises: UserMistake; OSError. On one of several hosts these end the process.
    """
    missing = [name for name in ("xgboost", "numpy", "scipy") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserMistake(f"the job's environment {sys.executable} has no module {missing[0]}")
    settings = parse_hyperparameters(_document(tree, "hyperparameters"))
    channels = read_channels(_document(tree, "inputdataconfig"))
    # no start-up time: without xgboost the job fails with the sentence above instead of a traceback
    from clary.train.boosting import group as groups
    from clary.train.boosting.training import train

    resources = _document(tree, "resourceconfig")
    group = groups.Group(resources.get("hosts", []), resources.get("current_host", ""))
    if group.size > 1 and settings.parameters.get("booster") == "gblinear":
        raise UserMistake(
            f"the booster gblinear trains on one host, and this job has {group.size}: use gbtree or dart, or one host"
        )
    try:
        group.listen(os.environ)
        tables = _read_tables(tree, settings, channels, group)
        group.join(os.environ)
        train(
            settings,
            tables,
            model_path=tree.model / MODEL_NAME,
            checkpoints=_checkpoint_folder(tree),
            is_pickled=is_pickled,
            group=group,
        )
    except BaseException as error:
        if group.size == 1:
            raise
        if not isinstance(error, UserMistake):
            traceback.print_exc()
        words = str(error) if isinstance(error, UserMistake) else f"{type(error).__name__}: {error}"
        tree.failure.write_text(f"{words}\n", encoding="utf-8")
        groups.leave_at_once(words, exit_code=1)
    try:
        group.leave()
    except Exception as error:  # noqa: BLE001 - boundary: the model is written; the tracker would keep the interpreter
        groups.leave_at_once(f"not all hosts have left the group: {type(error).__name__}: {error}", exit_code=0)


def _read_tables(tree: MlTree, settings: Hyperparameters, channels: Channels, group: Group) -> dict[str, Table]:
    """Return the rows of this host, channel by channel."""
    for note in (*settings.notes, *channels.notes):
        print(note, flush=True)
    tables: dict[str, Table] = {}
    for name in (TRAIN, VALIDATION):
        if name == VALIDATION and not channels.has_validation:
            continue
        files = data_files(tree.channel(name))
        if not files and group.size == 1:
            raise UserMistake(f"channel {name!r} has no file with data")
        if not files:
            print(f"{name}: this host has no file of the channel", flush=True)
            tables[name] = empty_table(channels.data_format)
            continue
        tables[name] = read_table(files, channels.data_format, has_weights=settings.has_weights)
        num_rows, num_columns = len(tables[name].labels), tables[name].num_columns
        print(f"{name}: {num_rows} rows, {num_columns} features, {len(files)} files of {channels.data_format.value}")
    return tables


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
