"""Saves a torch program's tensors. The names are those of `smdebug.pytorch.Hook`; see docs/debugger.md.

    Net_fc.weight                 a parameter: class of the model, name in the model
    gradient/Net_fc.weight        its gradient
    fc_input_0, fc_output_0       inputs and outputs of a module
    CrossEntropyLoss_output_0     a loss, of the module or of the function
    optimizer/Net_fc.weight_exp_avg, scalar/lr    state of an optimizer, a value of `save_scalar`

Where: programs call it, or `automatic` makes it for them. `hook_options` has the choice of tensors, `step_capture`
copies them, `worker_output` writes them.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from clary.train.debugger.capture.hook_options import HookOptions
from clary.train.debugger.capture.own_hooks import ModuleHooks
from clary.train.debugger.capture.step_capture import StepCapture
from clary.train.debugger.capture.worker_output import WorkerOutput
from clary.train.debugger.collection import CollectionKeys
from clary.train.debugger.configuration import (
    HookConfiguration,
    configuration_path,
    is_switched_off,
    read_configuration,
)
from clary.train.debugger.errors import ConfigurationError, DebuggerError
from clary.train.debugger.modes import ModeKeys
from clary.train.debugger.reduction_config import ReductionConfig
from clary.train.debugger.save_config import SaveConfig

LIMIT_S = 30.0  # longest wait of a step for memory, and of `close` for the disk
_log = logging.getLogger("clary.debugger")


class Hook(HookOptions, ModuleHooks):
    """Saves the tensors of its collections. A program has one hook: a new hook closes the previous hook.

    Args:
        out_dir: folder, created when the first step is saved. None for a job's own folder, /opt/ml/output/tensors.
        export_tensorboard, tensorboard_dir: not supported; a warning says so.
        reduction_config, save_config: defaults for collections without such settings.
        include_regex: expressions for tensors that are saved as the collection `default`.
        include_collections: collections to save by name, besides `losses`.
        save_all: whether to save all tensors that the hook sees.
        include_workers: `one` for the first rank of each training, or `all`.
        dry_run: whether to write no files.
        strict: whether to raise errors.
        limit_s: seconds that a step waits for memory, and `close` for the disk.

    Raises: ConfigurationError.
    """

    _capture: StepCapture

    def __init__(
        self,
        out_dir: str | Path | None = None,
        export_tensorboard: bool = False,
        tensorboard_dir: str | None = None,
        dry_run: bool = False,
        reduction_config: ReductionConfig | None = None,
        save_config: SaveConfig | Any = None,
        include_regex: Iterable[str] | str | None = None,
        include_collections: Iterable[str] | str | None = None,
        save_all: bool = False,
        include_workers: str = "one",
        *,
        strict: bool = False,
        limit_s: float = LIMIT_S,
    ) -> None:
        if export_tensorboard or tensorboard_dir:
            _log.warning(
                "debugger: export_tensorboard is not supported and is left out: use torch.utils.tensorboard instead"
            )
        if limit_s <= 0:
            raise ConfigurationError(f"limit_s is {limit_s}; expected seconds, more than 0")
        super().__init__(
            out_dir=out_dir,
            dry_run=dry_run,
            reduction_config=reduction_config,
            save_config=save_config,
            include_regex=include_regex,
            include_collections=include_collections,
            save_all=save_all,
            include_workers=include_workers,
        )
        self._output = WorkerOutput(self, limit_s=limit_s)
        self._capture = StepCapture(self, self._output, strict=strict, own=self._own_hooks())
        atexit.register(self.close)
        set_hook(self)

    @classmethod
    def create_from_json_file(cls, json_file_path: str | Path | None = None, **options: Any) -> Hook:
        """Return a hook for a job's configuration; without a path, return the hook that the job has made, if any.

        A subclass makes a hook of its own, which replaces the job's.

        Args:
            json_file_path: None for the path in SMDEBUG_CONFIG_FILE_PATH, or the job's default path.

        Raises: FileNotFoundError, ConfigurationError.
        """
        if json_file_path is None and cls is Hook and _hooks and _hooks[0].is_automatic:
            return _hooks[0]
        return cls.from_configuration(read_configuration(configuration_path(json_file_path)), **options)

    @classmethod
    def from_configuration(cls, configuration: HookConfiguration, **options: Any) -> Hook:
        """Return a hook for a configuration."""
        hook = cls(
            out_dir=configuration.out_dir,
            export_tensorboard=configuration.has_tensorboard,
            dry_run=configuration.dry_run,
            reduction_config=configuration.reduction_config,
            save_config=configuration.save_config,
            include_regex=configuration.include_regex,
            include_collections=[one.name for one in configuration.collections],
            save_all=configuration.save_all,
            include_workers=configuration.include_workers,
            **options,
        )
        for given in configuration.collections:
            collection = hook.collection_manager.get(given.name)
            collection.include(given.include_regex)
            collection.save_config, collection.reduction_config = given.save_config, given.reduction_config
        return hook

    # Sources of tensors.

    def register_module(self, module: torch.nn.Module) -> None:
        """Count steps by calls of a model, and save its tensors. Raises: DebuggerError if it is no module."""
        if not isinstance(module, torch.nn.Module):
            raise DebuggerError(f"register_module was given a {type(module).__name__}; expected a torch.nn.Module")
        self._capture.modules.watch(module)

    register_hook = register_module  # the name that AWS's containers call

    def register_loss(self, loss_module: torch.nn.Module) -> None:
        """Save the results of a loss module other than torch's own. Raises: DebuggerError if it is no module."""
        if not isinstance(loss_module, torch.nn.Module):
            raise DebuggerError(f"register_loss was given a {type(loss_module).__name__}; expected a loss module")
        self._capture.modules.add_loss(loss_module)

    def watch_for_model(self) -> None:
        """Register the first called model that has trainable parameters, for programs without register_module."""
        self._capture.modules.watch_for_first()

    # Values that programs pass.

    def save_scalar(self, name: str, value: float, sm_metric: bool = False, timestamp: float | None = None) -> None:
        """Save a number with the current step, as `scalar/NAME`; before the first step, with that step.

        Args:
            sm_metric: whether to add it to the collection `sm_metrics`, too, and to the metrics of the job as
                `scalar/NAME_MODE`, for example `scalar/loss_TRAIN`.
            timestamp: time of the job's metric, in seconds since 1970; None for now. The step's file has its own time.
        """
        self._capture.save_scalar(name, float(value), sm_metric, timestamp)

    def save_tensor(
        self, tensor_name: str, tensor_value: Any, collections_to_write: Iterable[str] | str = CollectionKeys.DEFAULT
    ) -> None:
        """Save a tensor, an array or numbers, if one of the collections is saved at its step.

        A value belongs to the current step if a module's call, a loss or a gradient of the step follows, and otherwise
        to the next step: values may be passed before the model is called. Call `set_mode` before you pass a value for
        the first step of a phase.

        Args:
            tensor_name: name of the tensor in trials.
            tensor_value: a tensor on any device, an array, or numbers. What torch cannot make a tensor of is not saved;
                a warning says so.
            collections_to_write: names of collections to which it is added; missing collections are made, and saved
                from now on.
        """
        names = [collections_to_write] if isinstance(collections_to_write, str) else list(collections_to_write)
        tensor = _tensor_of(tensor_name, tensor_value)
        if tensor is not None:
            self._capture.save_tensor(tensor_name, tensor, names)

    def _write_raw_tensor_simple(
        self, tensor_name: str, tensor_value: Any, tensor_ref: Any = None, timestamp: float | None = None
    ) -> None:
        """Save a tensor, an array or numbers with the current step in any case; public scripts call smdebug's method.

        Args:
            tensor_ref, timestamp: accepted for smdebug's sake and ignored.
        """
        tensor = _tensor_of(tensor_name, tensor_value)
        if tensor is not None and tensor.numel():
            self._capture.save_in_any_case(tensor_name, tensor)

    def record_tensor_value(self, tensor_name: str, tensor_value: torch.Tensor) -> None:
        """Save a tensor of any shape as NAME_output_0, like a module's result, for example a program's own loss."""
        self._capture.see_module(tensor_name, "", (), tensor_value)

    def close(self) -> None:
        """Write all steps and mark this worker as ended, in at most `limit_s`. A second call does nothing."""
        atexit.unregister(self.close)
        self._capture.close()

    _cleanup = close  # smdebug's method, which public scripts call

    # State.

    @property
    def step(self) -> int:
        """The current step, counted over all phases; -1 before the first step."""
        return self._capture.step

    @property
    def mode_steps(self) -> dict[ModeKeys, int]:
        """Phase -> its current step."""
        return self._capture.mode_steps

    @property
    def failure(self) -> Exception | None:
        """The error that has ended saving before the training ended, or None."""
        return self._capture.failure

    @property
    def num_dropped(self) -> int:
        """Number of steps that got no memory in time."""
        return self._output.num_dropped


_hooks: list[Hook] = []  # the program's hook


def get_hook(json_config_path: str | Path | None = None, create_if_not_exists: bool = False) -> Hook | None:
    """Return the program's hook, or None.

    Args:
        create_if_not_exists: make one from the configuration file, if there is one and USE_SMDEBUG is not off.

    Raises: ConfigurationError.
    """
    if not _hooks and create_if_not_exists and not is_switched_off():
        try:
            return Hook.create_from_json_file(json_config_path)
        except FileNotFoundError as error:
            _log.info("debugger: there is no hook, since there is no configuration: %s", error)
    return _hooks[0] if _hooks else None


def set_hook(hook: Hook) -> None:
    """Make a hook the program's hook; close the previous one."""
    for earlier in _hooks:
        if earlier is not hook:
            earlier.close()
    _hooks[:] = [hook]


def del_hook() -> None:
    """Close the program's hook."""
    for hook in _hooks:
        hook.close()
    _hooks.clear()


def _tensor_of(name: str, value: Any) -> torch.Tensor | None:
    """Return a value as a tensor; None, and a line in the log, if it is text or something else without numbers."""
    if isinstance(value, torch.Tensor):
        return value
    try:
        return torch.as_tensor(value, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        _log.warning("debugger: %s is not saved: torch makes no tensor of %s: %s", name, type(value).__name__, error)
        return None
