"""A job's `debughookconfig.json`, which the agent writes from the SDK's DebuggerHookConfig.

    {"LocalPath": "/opt/ml/output/tensors", "S3OutputPath": ...,
     "HookParameters": {"save_interval": "100", "include_workers": "all", "reductions": "mean,abs_max"},
     "CollectionConfigurations": [
         {"CollectionName": "gradients", "CollectionParameters": {"train.save_interval": "10"}},
         {"CollectionName": "relu_output", "CollectionParameters": {"include_regex": ".*relu_output"}}]}

All values are text; commas separate the items of lists, including lists of expressions. Source: smdebug docs/api.md and
its `core/json_config.py`; API_DebugHookConfig.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clary.contract.settings.debug_parameters import OF_COLLECTIONS, OF_HOOKS
from clary.train.debugger.collection import Collection
from clary.train.debugger.errors import ConfigurationError
from clary.train.debugger.reduction_config import ReductionConfig, as_bool
from clary.train.debugger.save_config import SaveConfig

SWITCH_VARIABLE = "USE_SMDEBUG"
PATH_VARIABLE = "SMDEBUG_CONFIG_FILE_PATH"
DEFAULT_PATH = "/opt/ml/input/config/debughookconfig.json"
DEFAULT_FOLDER = "/opt/ml/output/tensors"


@dataclass(kw_only=True)
class HookConfiguration:
    """The configuration of a hook."""

    out_dir: str = DEFAULT_FOLDER
    dry_run: bool = False
    reduction_config: ReductionConfig | None = None
    save_config: SaveConfig = field(default_factory=SaveConfig)
    include_regex: list[str] = field(default_factory=list)
    save_all: bool = False
    include_workers: str = "one"
    collections: list[Collection] = field(default_factory=list)
    has_tensorboard: bool = False  # whether export_tensorboard is requested, which this library does not support


def is_switched_off() -> bool:
    """Whether USE_SMDEBUG keeps programs from having a hook that they do not make themselves."""
    return os.environ.get(SWITCH_VARIABLE, "").strip().lower() in ("0", "false", "no", "off")


def configuration_path(given: str | Path | None = None) -> Path:
    """Return the path of the configuration: given, else from PATH_VARIABLE, else the job's default path."""
    return Path(given or os.environ.get(PATH_VARIABLE) or DEFAULT_PATH)


def read_configuration(path: Path) -> HookConfiguration:
    """Read a file.

    Raises: OSError, FileNotFoundError for a missing file; ConfigurationError naming the problem.
    """
    try:
        document = json.loads(path.read_bytes())
    except ValueError as error:
        raise ConfigurationError(f"{path} is not JSON: {error}") from error
    try:
        return parse_configuration(document)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def parse_configuration(document: Any) -> HookConfiguration:
    """Return the configuration in the parsed JSON of a file.

    Raises: ConfigurationError.
    """
    document = _object("the configuration", document)
    hook = _object("HookParameters", document.get("HookParameters"))
    _know("HookParameters", hook, OF_HOOKS)
    configuration = HookConfiguration(
        out_dir=str(document.get("LocalPath") or DEFAULT_FOLDER),
        dry_run=as_bool("dry_run", hook.get("dry_run")),
        reduction_config=ReductionConfig.from_parameters(hook),
        save_config=SaveConfig().changed_by(hook),
        include_regex=_list(hook.get("include_regex")),
        save_all=as_bool("save_all", hook.get("save_all")),
        include_workers=check_workers(hook.get("include_workers", "one")),
        has_tensorboard=as_bool("export_tensorboard", hook.get("export_tensorboard")),
    )
    for given in document.get("CollectionConfigurations") or []:
        one = _object("an item of CollectionConfigurations", given)
        name = one.get("CollectionName")
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"an item of CollectionConfigurations has no CollectionName: {str(one)[:200]}")
        parameters = _object(f"CollectionParameters of {name}", one.get("CollectionParameters"))
        _know(f"CollectionParameters of {name}", parameters, OF_COLLECTIONS)
        configuration.collections.append(
            Collection(
                name,
                _list(parameters.get("include_regex")),
                reduction_config=ReductionConfig.from_parameters(parameters),
                save_config=configuration.save_config.changed_by(parameters),
            )
        )
    return configuration


def check_workers(value: Any) -> str:
    """Return `one` or `all`. Raises: ConfigurationError."""
    if value not in ("one", "all"):
        raise ConfigurationError(f"include_workers is {value!r}; expected 'one' or 'all'")
    return str(value)


def _object(what: str, value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigurationError(f"{what} is {str(value)[:80]!r}; expected an object")
    return value


def _know(where: str, parameters: Mapping[str, Any], known: frozenset[str]) -> None:
    for name in parameters:
        if name not in known:
            raise ConfigurationError(f"{where} has {name!r}; it may have {', '.join(sorted(known))}")


def _list(value: Any) -> list[str]:
    words = value if isinstance(value, list) else str(value or "").split(",")
    return [word.strip() for word in words if word.strip()]
