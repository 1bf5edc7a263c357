"""The channels `train` and `validation`, as inputdataconfig.json names them, and their files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clary.train.boosting.content_types import DataFormat, parse_content_type
from clary.train.boosting.errors import UserMistake

TRAIN, VALIDATION = "train", "validation"
_UNUSED = ("code",)  # belongs to script mode; the algorithm reads nothing from it


@dataclass(frozen=True)
class Channels:
    """The channels that a job has, and their format."""

    data_format: DataFormat  # of both channels
    has_validation: bool
    notes: tuple[str, ...] = ()


def read_channels(config: Mapping[str, Mapping[str, Any]]) -> Channels:
    """Return the channels of inputdataconfig.json.

    As on SageMaker, the training channel's ContentType holds for both channels.
    Raises: UserMistake for a channel that is missing, unknown or in Pipe mode, and for a ContentType that is not
    offered.
    """
    if TRAIN not in config:
        given = ", ".join(config) or "none"
        raise UserMistake(f"the algorithm XGBoost needs a channel 'train'; InputDataConfig has: {given}")
    unknown = [name for name in config if name not in (TRAIN, VALIDATION, *_UNUSED)]
    if unknown:
        raise UserMistake(f"the algorithm XGBoost takes the channels 'train' and 'validation', got {unknown[0]!r}")
    for name in (TRAIN, VALIDATION):
        if config.get(name, {}).get("TrainingInputMode") == "Pipe":
            raise UserMistake(f"channel {name!r} has the input mode Pipe, which is not offered here: use File")
    data_format = parse_content_type(config[TRAIN].get("ContentType"))
    notes = []
    of_validation = config.get(VALIDATION, {}).get("ContentType")
    if of_validation and parse_content_type(of_validation) is not data_format:
        notes.append(
            f"channel 'validation' has ContentType {of_validation!r}, but is read as {data_format.value}, the format "
            "of channel 'train', as on SageMaker"
        )
    return Channels(data_format=data_format, has_validation=VALIDATION in config, notes=tuple(notes))


def data_files(folder: Path) -> list[Path]:
    """Return the files in a channel's folder and in all folders below it, sorted by path.

    Empty files, and names that begin with `.` or `_`, such as `_SUCCESS`, are left out.
    """
    found = []
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(parent, name) for name in names if not name.startswith((".", "_"))]
    return sorted(path for path in found if path.is_file() and path.stat().st_size > 0)
