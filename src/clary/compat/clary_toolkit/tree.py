"""The folder `/opt/ml`: its paths, and the three JSON files with the job.

SAGEMAKER_BASE_DIR names another place for it, as in jobs whose hosts share the machine's file system. Where there is
neither, the first use makes an empty folder in the home folder, as AWS's packages do when they are imported.
"""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any

from .logging_config import get_logger

BASE_PATH_ENV = "SAGEMAKER_BASE_DIR"
SAGEMAKER_BASE_PATH = "/opt/ml"
HYPERPARAMETERS_FILE = "hyperparameters.json"
RESOURCE_CONFIG_FILE = "resourceconfig.json"
INPUT_DATA_CONFIG_FILE = "inputdataconfig.json"
DEFAULT_GROUP = "homogeneousCluster"
_CONFIG = os.path.join("input", "config")
# Attribute of the modules `environment` and `env` -> path below the folder.
PATHS = {
    "base_dir": "",
    "code_dir": "code",
    "model_dir": "model",
    "input_dir": "input",
    "input_config_dir": _CONFIG,
    "output_dir": "output",
    "output_data_dir": os.path.join("output", "data"),
    "output_intermediate_dir": os.path.join("output", "intermediate"),
    "hyperparameters_file_dir": os.path.join(_CONFIG, HYPERPARAMETERS_FILE),
    "input_data_config_file_dir": os.path.join(_CONFIG, INPUT_DATA_CONFIG_FILE),
    "resource_config_file_dir": os.path.join(_CONFIG, RESOURCE_CONFIG_FILE),
}


def path_of(name: str) -> str:
    """Return one of `PATHS`. Raises: OSError if the folder has to be made and cannot be."""
    return os.path.join(_base(), PATHS[name]) if PATHS[name] else _base()


def channel_path(channel: str) -> str:
    """Return the folder of a channel's data."""
    return os.path.join(path_of("input_dir"), "data", channel)


def read_hyperparameters() -> dict[str, Any]:
    """Return the hyperparameters; text that is JSON as its value. Raises: FileNotFoundError, ValueError (no JSON)."""
    return {key: _value(text) for key, text in _read("hyperparameters_file_dir").items()}


def read_resource_config() -> dict[str, Any]:
    """Return hosts, instance groups and network of the job. Raises: as `read_hyperparameters`."""
    return _read("resource_config_file_dir")


def read_input_data_config() -> dict[str, Any]:
    """Return the channels of the job. Raises: as `read_hyperparameters`."""
    return _read("input_data_config_file_dir")


def _read(name: str) -> dict[str, Any]:
    path = path_of(name)
    try:
        with open(path, encoding="utf-8") as file:
            document: dict[str, Any] = json.load(file)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            error.errno,
            "this is no job's /opt/ml, the description of the job is missing: set SAGEMAKER_BASE_DIR to a folder that "
            f"has {HYPERPARAMETERS_FILE}, {INPUT_DATA_CONFIG_FILE} and {RESOURCE_CONFIG_FILE} in {_CONFIG}",
            path,
        ) from error
    return document


def _value(text: Any) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError):
        return text


def _base() -> str:
    base = os.environ.get(BASE_PATH_ENV)
    if base is None and not os.path.exists(SAGEMAKER_BASE_PATH):
        base = os.path.join(os.path.expanduser("~"), "sagemaker_local", "jobs", str(time.time()), "opt", "ml")
        _make(base)
        os.environ[BASE_PATH_ENV] = base
        get_logger().warning("clary: this is no job and has no /opt/ml: models and output go to %s", base)
    return SAGEMAKER_BASE_PATH if base is None else base


def _make(base: str) -> None:
    """Make the folder of a job on one host, this one, without hyperparameters and channels."""
    host = socket.gethostname()
    group = {"instance_group_name": DEFAULT_GROUP, "instance_type": "local", "hosts": [host]}
    resources = {
        "current_host": host,
        "hosts": [host],
        "current_instance_group": DEFAULT_GROUP,
        "instance_groups": [group],
    }
    for name in ("code_dir", "model_dir", "input_config_dir", "output_data_dir"):
        os.makedirs(os.path.join(base, PATHS[name]), exist_ok=True)
    for name, document in (
        ("hyperparameters_file_dir", {}),
        ("input_data_config_file_dir", {}),
        ("resource_config_file_dir", resources),
    ):
        with open(os.path.join(base, PATHS[name]), "w", encoding="utf-8") as file:
            json.dump(document, file)
