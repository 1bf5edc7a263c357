"""The modules of the containers' library. Those for endpoints and for starting scripts fail when they are used."""

from typing import Any

from clary_toolkit import (
    content_types,
    encoders,
    errors,
    files,
    mapping,
    params,
)
from clary_toolkit import environment as env
from clary_toolkit import logging_config as logging
from clary_toolkit.refusing import stand_in

__all__ = [
    "content_types",
    "encoders",
    "env",
    "errors",
    "files",
    "logging",
    "mapping",
    "params",
    "training_env",
]

_NOT_OFFERED = (
    "entry_point",
    "functions",
    "modules",
    "mpi",
    "process",
    "runner",
    "server",
    "trainer",
    "transformer",
    "worker",
)


def training_env(resource_config: Any = None, input_data_config: Any = None, hyperparameters: Any = None) -> Any:
    """Return the description of the job.

    Args: as `clary_toolkit.environment.TrainingEnv`, which raises the same errors.
    """
    return env.TrainingEnv(resource_config, input_data_config, hyperparameters)


def __getattr__(name: str) -> Any:
    return stand_in(__name__, name, _NOT_OFFERED)
