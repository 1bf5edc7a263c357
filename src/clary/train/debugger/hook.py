"""Saves a torch program's tensors. The names are those of `smdebug.pytorch.Hook`; see docs/debugger.md.

A step begins when the model is called, in whatever phase, and ends when it is called again: what is seen in between
belongs to it. Weights are those that the step was computed with, gradients those that its backward pass has left.

    Net_fc.weight                 a parameter: class of the model, its name there
    gradient/Net_fc.weight        its gradient
    fc_input_0, fc_output_0       what goes into a module and comes out of it
    CrossEntropyLoss_output_0     a loss, of the module or of the function
    optimizer/Net_fc.weight_exp_avg, scalar/lr    what an optimizer keeps, what `save_scalar` was given

Whatever fails here ends the saving, not the training: it is said once, and `failure` keeps it.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from clary.train.debugger import losses
from clary.train.debugger.choosing import Chooser, Wanted
from clary.train.debugger.collection import Collection, CollectionKeys, CollectionManager
from clary.train.debugger.configuration import (
    DEFAULT_FOLDER,
    HookConfiguration,
    check_workers,
    configuration_path,
    read_configuration,
)
from clary.train.debugger.copying import StepCopy
from clary.train.debugger.errors import ConfigurationError, DebuggerError, FolderTaken, UnsupportedError
from clary.train.debugger.folder_claims import has_ended_well
from clary.train.debugger.modes import ModeKeys
from clary.train.debugger.module_watch import ModuleWatch, StepWatch
from clary.train.debugger.ranks import WorkerPlace, worker_place
from clary.train.debugger.reduction_config import ReductionConfig
from clary.train.debugger.save_config import SaveConfig
from clary.train.debugger.saving import Saver
from clary.train.debugger.surroundings import has_plain_tensors

LIMIT_S = 30.0  # a step waits so long for memory, the end so long for the disk
_log = logging.getLogger("clary.debugger")


def _guarded(method: Callable[..., None]) -> Callable[..., None]:
    """Have what fails in a method end the saving; with `strict`, raise it."""

    @functools.wraps(method)
    def call(self: Hook, *args: Any, **kwargs: Any) -> None:
        if self.failure is not None or self._pid != os.getpid():
            return
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            if self._is_strict:
                raise
            self._give_up(error)

    return call


class Hook:
    """Saves what its collections ask for. A program has one: a new one closes the one before.

    Args:
        out_dir: folder; made when the first step is saved. None for a job's own, /opt/ml/output/tensors.
        reduction_config, save_config: for collections that have none of their own.
        include_regex: tensors that are saved as the collection `default`.
        include_collections: collections to save by name, besides `losses`.
        save_all: all that is seen.
        include_workers: `one` for rank 0 alone, `all`.
        dry_run: write nothing.
        strict: raise what fails.
        limit_s: seconds that a step waits for memory, and the end for the disk.

    Raises: ConfigurationError, UnsupportedError.
    """

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
            raise UnsupportedError("export_tensorboard is not supported: use torch.utils.tensorboard in the program")
        if limit_s <= 0:
            raise ConfigurationError(f"limit_s is {limit_s}; expected seconds, more than 0")
        self.out_dir = str(out_dir or DEFAULT_FOLDER)
        self.save_config = SaveConfig.parse(save_config)
        self.reduction_config = reduction_config
        self.collection_manager = CollectionManager()
        names = [include_collections] if isinstance(include_collections, str) else list(include_collections or ())
        self.include_collections = set(names)
        if include_regex:
            self.collection_manager.get(CollectionKeys.DEFAULT).include(include_regex)
            self.include_collections.add(CollectionKeys.DEFAULT)
        self.save_all, self.dry_run = save_all, dry_run
        self.include_workers = check_workers(include_workers)
        self.mode = ModeKeys.GLOBAL
        self.step = -1
        self.mode_steps = dict.fromkeys(ModeKeys, -1)
        self.failure: Exception | None = None
        self.is_automatic = False  # put there by the job, not by the program
        self._is_strict, self._limit_s, self._pid = strict, limit_s, os.getpid()
        self._chooser: Chooser | None = None
        self._now: list[Collection] = []  # collections that this step saves
        self._saver: Saver | None = None
        self._place: WorkerPlace | None = None
        self._leaves_be = False  # this step would take the place of another program's
        self._scalars: dict[str, tuple[float, bool]] = {}
        self._custom: dict[str, tuple[torch.Tensor, list[str]]] = {}
        self._modules = ModuleWatch(self._begin_step, self._give_up)
        self._step_watch: StepWatch | None = None
        self._is_closed = False
        self._listener = self._see_loss  # one object, to be found again
        losses.listen(self._listener)
        atexit.register(self.close)
        set_hook(self)

    @classmethod
    def create_from_json_file(cls, json_file_path: str | Path | None = None, **options: Any) -> Hook:
        """Return a hook as a job's configuration has it; in a job whose hook is there already, that one.

        Args:
            json_file_path: None for SMDEBUG_CONFIG_FILE_PATH's, or the job's own place.

        Raises: FileNotFoundError, ConfigurationError.
        """
        if json_file_path is None and _hooks and _hooks[0].is_automatic:
            return _hooks[0]
        return cls.from_configuration(read_configuration(configuration_path(json_file_path)), **options)

    @classmethod
    def from_configuration(cls, configuration: HookConfiguration, **options: Any) -> Hook:
        """Return a hook that does what a configuration says."""
        if configuration.has_tensorboard:
            _log.warning("debugger: export_tensorboard is not supported and is left out")
        hook = cls(
            out_dir=configuration.out_dir,
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

    # What programs call.

    def get_collection(self, name: str) -> Collection:
        """Return a collection, a new one where there is none of this name. It is saved from now on if it is new."""
        if name not in self.collection_manager.collections:
            self.include_collections.add(name)
        self._chooser = None
        collection = self.collection_manager.get(name)
        if collection.save_config is None:
            collection.save_config = self.save_config.changed_by({})  # its own, which the program may change
        return collection

    def get_collections(self) -> dict[str, Collection]:
        """Return all collections by name."""
        self._chooser = None
        return self.collection_manager.collections

    def add_collection(self, collection: Collection) -> None:
        """Add a collection, or put it in the place of the one of its name, and save it."""
        if not isinstance(collection, Collection):
            raise ConfigurationError(f"add_collection was given a {type(collection).__name__}; expected a Collection")
        self.collection_manager.add(collection)
        self.include_collections.add(collection.name)
        self._chooser = None

    def set_mode(self, mode: ModeKeys) -> None:
        """Count the next steps as steps of a phase. Raises: ConfigurationError."""
        if not isinstance(mode, ModeKeys):
            raise ConfigurationError(f"mode is {mode!r}; expected one of {', '.join(map(str, ModeKeys))}")
        self.mode = mode

    def register_module(self, module: torch.nn.Module) -> None:
        """Count steps by calls of this model, and save what is in it. Raises: DebuggerError for what is no module."""
        if not isinstance(module, torch.nn.Module):
            raise DebuggerError(f"register_module was given a {type(module).__name__}; expected a torch.nn.Module")
        self._modules.watch(module)

    register_hook = register_module  # the name that AWS's containers call

    def register_loss(self, loss_module: torch.nn.Module) -> None:
        """Save what a loss module returns; those of torch are seen anyhow. Raises: DebuggerError for what is none."""
        if not isinstance(loss_module, torch.nn.Module):
            raise DebuggerError(f"register_loss was given a {type(loss_module).__name__}; expected a loss module")
        self._modules.add_loss(loss_module)

    def watch_for_model(self) -> None:
        """Register the first model that is called and has something to train. Called where no program does."""
        self._modules.watch_for_first()

    def save_scalar(self, name: str, value: float, sm_metric: bool = False, timestamp: float | None = None) -> None:
        """Save a number with the current step, as `scalar/NAME`.

        Args:
            sm_metric: put it into the collection `sm_metrics` too.
            timestamp: taken for smdebug's sake; the step's file has its own.
        """
        self._save_scalar(name, float(value), sm_metric)

    def save_tensor(
        self, tensor_name: str, tensor_value: Any, collections_to_write: Iterable[str] | str = CollectionKeys.DEFAULT
    ) -> None:
        """Save a tensor, an array or numbers with the current step, where one of the collections is saved then."""
        names = [collections_to_write] if isinstance(collections_to_write, str) else list(collections_to_write)
        self._save_tensor(tensor_name, tensor_value, names)

    def record_tensor_value(self, tensor_name: str, tensor_value: torch.Tensor) -> None:
        """Save a tensor as NAME_output_0, as if a module had returned it: a loss of the program's own."""
        self._see_module(tensor_name, "", (), tensor_value)

    def close(self) -> None:
        """Write what is left and say that this worker has ended; waits `limit_s` at most. Harmless when repeated."""
        if self._is_closed or self._pid != os.getpid():
            return
        self._is_closed = True
        atexit.unregister(self.close)
        losses.stop_listening(self._listener)
        self._modules.close()
        self._finish_step()
        if self._saver is not None:
            self._saver.close(failure="" if self.failure is None else repr(self.failure))

    # What happens in the program.

    @_guarded
    def _begin_step(self, model: torch.nn.Module) -> None:
        self._finish_step()
        self.step += 1
        self.mode_steps[self.mode] += 1
        if self.mode is not ModeKeys.GLOBAL:
            self.mode_steps[ModeKeys.GLOBAL] = self.step
        if self._chooser is None:
            self._prepare()
        assert self._chooser is not None
        self._now = self._chooser.at(self.mode, self.mode_steps[self.mode]) if self._saves else []
        if self._now:
            self._leaves_be = self._is_evaluation_after_training()
        elif self._leaves_be and torch.is_grad_enabled():
            self._leaves_be = False
        if not self._now or self._leaves_be:
            self._now = []
            return
        self._step_watch = StepWatch(self._modules, self._now, self._see_tensor, self._see_module, self._is_wanted)
        self._step_watch.begin()

    @_guarded
    def _finish_step(self) -> None:
        if self._step_watch is not None:
            self._step_watch.end()
            self._step_watch = None
        self._now = []
        if self._saver is not None:
            self._saver.finish_step()

    @_guarded
    def _see_tensor(self, name: str, tensor: torch.Tensor, alias: str = "") -> None:
        assert self._chooser is not None
        if not has_plain_tensors():
            return
        wanted = self._chooser.wants(self._now, name, alias)
        if wanted is not None and (copy := self._open_copy()) is not None:
            copy.add(name, tensor, wanted, alias)

    def _see_loss(self, module: str, given: tuple[Any, ...], result: Any) -> None:
        if self._now:
            self._see_module(module, "", given, result)

    @_guarded
    def _see_module(self, name: str, kind: str, given: Any, result: Any) -> None:
        """Save what a module was given and returned, by its name; `kind` is its class where the name says none."""
        if not self._now:
            return
        for side, values in (("input", given), ("output", result)):
            for place, tensor in enumerate(_tensors(values)):
                alias = f"{name}.{kind}_{side}_{place}" if kind and kind not in name.lower() else ""
                full = self._free_name(f"{name}_{side}_{place}", is_repeated=not kind)
                self._see_tensor(full, tensor, alias)

    @_guarded
    def _save_scalar(self, name: str, value: float, sm_metric: bool) -> None:
        if self._chooser is None:
            self._prepare()
        if self._saves and (copy := self._open_copy()) is not None:
            if sm_metric:
                self.collection_manager.get(CollectionKeys.SM_METRICS).add_tensor_name(f"scalar/{name}")
                self._write_collections()
            copy.add(f"scalar/{name}", torch.tensor(value, dtype=torch.float64), Wanted(True, ()))

    @_guarded
    def _save_tensor(self, name: str, value: Any, names: list[str]) -> None:
        new = [one for one in names if name not in self.collection_manager.get(one).tensor_names]
        for one in new:
            self.include_collections.add(one)
            self.collection_manager.get(one).add_tensor_name(name)
        if new or self._chooser is None:
            self._prepare()
            if self.step >= 0 and self._saves:
                self._now = self._chooser.at(self.mode, self.mode_steps[self.mode]) if self._chooser else []
                self._write_collections()
        self._see_tensor(name, torch.as_tensor(value))

    # How it is kept.

    @property
    def num_dropped(self) -> int:
        """Steps that had no memory in time."""
        return 0 if self._saver is None else self._saver.num_dropped

    @property
    def _saves(self) -> bool:
        saves_here = self.include_workers == "all" or (self._place is not None and self._place.is_chief)
        return saves_here and not self.dry_run

    def _prepare(self) -> None:
        for collection in self.collection_manager:
            collection.include_modules(self._modules.names)
        self._chooser = Chooser(
            self.collection_manager,
            self.include_collections,
            save_all=self.save_all,
            save_config=self.save_config,
            reduction_config=self.reduction_config,
        )
        if self._saver is None:
            self._place = worker_place()

    def _is_evaluation_after_training(self) -> bool:
        """Whether this step computes no gradients, and another program has saved here and ended well.

        Whoever trains again saves again: a script that is run in a loop, what follows a preparation.
        """
        if self._saver is not None or not self.is_automatic or torch.is_grad_enabled():
            return False
        return has_ended_well(Path(self.out_dir), (self._place or worker_place()).name)

    def _is_wanted(self, name: str) -> bool:
        return self._chooser is not None and self._chooser.wants(self._now, name) is not None

    def _open_copy(self) -> StepCopy | None:
        """Return where this step's tensors go; None if it has to do without."""
        if self._is_closed or self.step < 0 or self._leaves_be:
            return None
        if self._saver is None:
            place, saves_all = self._place or worker_place(), self.include_workers == "all"
            self._saver = Saver(
                Path(self.out_dir),
                place.name,
                num_workers=place.num_workers if saves_all else 1,
                num_ends=place.num_workers if saves_all else place.num_trainings,
                collections=self.collection_manager,
                limit_s=self._limit_s,
            )
        return self._saver.open_copy(self.step, self.mode, self.mode_steps[self.mode])

    def _free_name(self, name: str, *, is_repeated: bool) -> str:
        """Return a name that this step does not have; a module's is its own, a loss may be computed several times."""
        copy = None if self._saver is None else self._saver.copy
        if copy is None or not is_repeated:
            return name
        found, number = name, 1
        while found in copy:
            found, number = f"{name}_{number}", number + 1
        return found

    def _write_collections(self) -> None:
        if self._saver is not None:
            self._saver.write_collections()

    def _give_up(self, error: Exception) -> None:
        self.failure = error
        if isinstance(error, FolderTaken):
            _log.warning("debugger: this process saves nothing, training goes on: %s", error)
        else:
            _log.error("debugger: nothing more is saved, training goes on: %r", error, exc_info=error)
        self._now = []
        if self._saver is not None:
            self._saver.abandon_step()
        watch, self._step_watch = self._step_watch, None
        if watch is not None:
            watch.end()
        self._modules.close()
        losses.stop_listening(self._listener)


def _tensors(values: Any) -> list[torch.Tensor]:
    """Return the tensors in what a module takes or returns, in order."""
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, list | tuple):
        return []
    return [tensor for value in values for tensor in _tensors(value)]


_hooks: list[Hook] = []  # the program's one


def get_hook(json_config_path: str | Path | None = None, create_if_not_exists: bool = False) -> Hook | None:
    """Return the program's hook, None if it has none.

    Args:
        create_if_not_exists: make one of the configuration file.
    """
    if not _hooks and create_if_not_exists:
        return Hook.create_from_json_file(json_config_path)
    return _hooks[0] if _hooks else None


def set_hook(hook: Hook) -> None:
    """Make a hook the program's; the one before is closed."""
    for earlier in _hooks:
        if earlier is not hook:
            earlier.close()
    _hooks[:] = [hook]


def del_hook() -> None:
    """Close the program's hook."""
    for hook in _hooks:
        hook.close()
    _hooks.clear()
