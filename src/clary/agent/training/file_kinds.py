"""Recognises, by their paths, files that hold values of a training. Pure.

Source: TensorBoard takes every file with `tfevents` in its name; MLflow's FileStore keeps RUN/metrics/NAME below the
folder of an experiment; sagemaker.experiments writes output/metrics/sagemaker/*.json; W&B keeps the log of a run in
wandb/offline-run-DATE-ID/run-ID.wandb, and in wandb/run-DATE-ID when it is online.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from clary.base.string_enum import StrEnum

METRICS_FILES = "output/metrics/sagemaker"
# Folders below /opt/ml in which programs write such files by default. Programs run in the code's folder.
WATCHED = (
    "output",
    "code/runs",
    "code/mlruns",
    "code/lightning_logs",
    "code/wandb",
    "model/runs",
    "checkpoints/runs",
)
WANDB_BEGIN, WANDB_END = "run-", ".wandb"  # the name of a log, before and after the ID of its run
STATE_FILE = "trainer_state.json"
STATE_FOLDERS = ("model", "checkpoints", "output")  # may hold transformers' checkpoints
_RUN_ID_CHARACTERS = 8


class FileKind(StrEnum):
    """The format of a file with values of a training."""

    EVENTS = "events"
    JSON_LINES = "json lines"
    MLFLOW = "mlflow"
    WANDB = "wandb"


@dataclass(frozen=True, kw_only=True)
class Place:
    """A file that is read."""

    kind: FileKind
    run: str  # the folder or the id of its run; empty for a kind without runs
    name: str = ""  # of the metric, if the file's name contains it


def place_of(path: str) -> Place | None:
    """Return the kind and run of a file below /opt/ml, or None for a file that is not read."""
    parts = PurePosixPath(path).parts
    if "tfevents" in parts[-1]:
        return Place(kind=FileKind.EVENTS, run="/".join(parts[:-1]))
    if path.startswith(f"{METRICS_FILES}/") and parts[-1].endswith(".json"):
        return Place(kind=FileKind.JSON_LINES, run="")
    if parts[-1].startswith(WANDB_BEGIN) and parts[-1].endswith(WANDB_END):
        return Place(kind=FileKind.WANDB, run=parts[-1].removeprefix(WANDB_BEGIN).removesuffix(WANDB_END))
    if "mlruns" in parts:
        below = parts[parts.index("mlruns") + 1 :]  # experiment, run, metrics, NAME; names may hold slashes
        if len(below) > 3 and below[2] == "metrics" and not below[0].startswith("."):
            return Place(kind=FileKind.MLFLOW, run=below[1][:_RUN_ID_CHARACTERS], name="/".join(below[3:]))
    return None


class RunNames:
    """Keeps the metrics of several runs apart: names of the first run stay, names of later runs get a prefix."""

    def __init__(self) -> None:
        self._prefixes: dict[tuple[FileKind, str], str] = {}
        self._first: dict[FileKind, str] = {}

    def name(self, place: Place, name: str) -> str:
        """Return the name of a metric; all names of one run have the same prefix."""
        key = (place.kind, place.run)
        prefix = self._prefixes.get(key)
        if prefix is None:
            prefix = self._prefixes[key] = self._new_prefix(place)
        return f"{prefix}{name}"

    def _new_prefix(self, place: Place) -> str:
        first = self._first.setdefault(place.kind, place.run)
        if first == place.run:
            return ""
        return f"{_unlike(place.run, first)}/"


def _unlike(run: str, first: str) -> str:
    """Return a run's folder without the leading parts that it shares with the first run's."""
    parts, others = run.split("/"), first.split("/")
    shared = 0
    while shared < min(len(parts), len(others)) and parts[shared] == others[shared]:
        shared += 1
    return "/".join(parts[shared:]) or parts[-1]


def folders_to_watch(logs_folder: str | None) -> tuple[str, ...]:
    """Return the folders to walk, without folders inside others."""
    return without_inner([*WATCHED, *([logs_folder] if logs_folder else [])])


def without_inner(folders: Iterable[str]) -> tuple[str, ...]:
    """Return the folders that lie inside no other given folder."""
    kept: list[str] = []
    for folder in sorted(set(folders), key=len):
        if not any(folder == other or folder.startswith(f"{other}/") for other in kept):
            kept.append(folder)
    return tuple(kept)
