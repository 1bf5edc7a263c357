"""Follows the program step by step and copies the wanted tensors.

A step begins when the model is called, in any phase, and ends at its next call: tensors in between belong to it, except
values of `save_tensor` (`passed_values`). Weights are saved as they are before the step, gradients as they are after
its backward pass.

An error here ends the saving, not the training: it is logged once, and `failure` keeps it. A strict hook raises it
instead.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from typing import Any

import torch

from clary.train.debugger.capture import losses
from clary.train.debugger.capture.choosing import Chooser, Wanted
from clary.train.debugger.capture.copying import StepCopy
from clary.train.debugger.capture.hook_options import HookOptions
from clary.train.debugger.capture.metric_file import MetricFile
from clary.train.debugger.capture.module_watch import ModuleWatch, StepWatch
from clary.train.debugger.capture.own_hooks import OwnHooks
from clary.train.debugger.capture.passed_values import EarlyValues, PassedValues
from clary.train.debugger.capture.step_counting import CountsFile, restored_counts
from clary.train.debugger.capture.surroundings import has_plain_tensors, is_in_backward
from clary.train.debugger.capture.worker_output import WorkerOutput
from clary.train.debugger.collection import Collection, CollectionKeys
from clary.train.debugger.errors import FolderTaken
from clary.train.debugger.modes import ModeKeys

_log = logging.getLogger("clary.debugger")


def _guarded(method: Callable[..., None]) -> Callable[..., None]:
    """Wrap a method so that an error in it ends the saving; with `strict`, the error is raised."""

    @functools.wraps(method)
    def call(self: StepCapture, *args: Any, **kwargs: Any) -> None:
        if self.failure is not None or self._pid != os.getpid():
            return
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            if self._is_strict:
                raise
            self._give_up(error)

    return call


class StepCapture:
    """Counts the steps of one program and saves its tensors; the caller must `close` it.

    Args:
        options: options of the hook, which may change while the program runs.
        strict: whether to raise errors.
        own: hooks of a subclass, which replace those of this class.
    """

    def __init__(self, options: HookOptions, output: WorkerOutput, *, strict: bool, own: OwnHooks) -> None:
        self.step = -1
        self.mode_steps = dict.fromkeys(ModeKeys, -1)
        self.failure: Exception | None = None
        self.modules = ModuleWatch(self._begin_step, self._give_up)
        self._options, self._output = options, output
        self._is_strict, self._pid = strict, os.getpid()
        self._own = own.guarded(self._give_up, strict=strict)
        self._passed, self._early, self._metrics = PassedValues(self._see_tensor), EarlyValues(), MetricFile()
        self._step_mode = ModeKeys.GLOBAL  # phase in which this step began
        self._has_gradients = False  # whether this step began with gradients; values may be passed under `no_grad`
        self._chooser: Chooser | None = None
        self._now: list[Collection] = []  # collections that this step saves
        self._num_values: dict[tuple[str, str], int] = {}  # (module, side) -> number of this step's inputs or outputs
        self._leaves_be = False  # whether this step is not saved because it would replace another program's step
        self._has_trained = False
        self._step_watch: StepWatch | None = None
        self._counts_file: CountsFile | None = None  # None before the first step
        self._is_closed = False
        self._listener = self._see_loss  # the bound method, kept so that it can be removed
        losses.listen(self._listener)

    # Calls of programs.

    @_guarded
    def save_scalar(self, name: str, value: float, sm_metric: bool, timestamp: float | None = None) -> None:
        """Save a number with the current step, as `scalar/NAME`; before the first step, with that step.

        Args:
            name: without `scalar/`.
            value: saved as a double.
            sm_metric: whether to add it to the collection `sm_metrics` and to the metrics of the job, too.
            timestamp: time of the job's metric, in seconds since 1970; None for now.
        """
        if not self._has_to_save():
            return
        full, mode = f"scalar/{name}", self._options.mode
        if sm_metric:
            self._options.collection_manager.get(CollectionKeys.SM_METRICS).add_tensor_name(full)
            self._output.write_collections()
            self._metrics.add(f"{full}_{mode.name}", value, max(0, self.mode_steps[mode]), timestamp)
        self.save_in_any_case(full, torch.tensor(value, dtype=torch.float64, device="cpu"))

    @_guarded
    def save_in_any_case(self, name: str, value: torch.Tensor) -> None:
        """Save a value [any shape] with the current step, saved or not; before the first step, with the first step."""
        if not self._has_to_save() or not has_plain_tensors():
            return
        if self.step < 0:
            kept = value.detach().clone()
            self._early.keep(name, lambda: self.save_in_any_case(name, kept))
        elif (copy := self._open_copy()) is not None:
            copy.add(name, value, Wanted(True, ()))

    @_guarded
    def save_tensor(self, name: str, value: torch.Tensor, collections: list[str]) -> None:
        """Save values with the step of the next event (`passed_values`), if one of the collections is saved there.

        Args:
            name: name of the tensor.
            value: a tensor [any shape] on any device.
            collections: names of collections to which it is added; missing collections are made, and saved from now on.
        """
        self._options.add_tensor_name(name, collections)
        if self.step >= 0 and self._options.has_changed:
            chooser = self._up_to_date()
            if self._output.saves and not self._leaves_be:
                self._now = chooser.at(self._step_mode, self.mode_steps[self._step_mode])
                self._output.write_collections()
        if not has_plain_tensors():
            return
        if not self._may_be_saved(name):
            self._passed.forget(name)
            return
        self._passed.keep(name, value)
        if self.step >= 0 and (self._has_gradients or torch.is_grad_enabled()):
            self._passed.watch_backward(self.modules.model, all_parameters=self._is_wanted(name))

    @_guarded
    def see_module(self, name: str, kind: str, given: Any, result: Any) -> None:
        """Save inputs and outputs of a module by its name.

        Args:
            name: name of the module; `_input_0`, `_output_0` and so on are appended.
            kind: class of the module, for the alias; empty for a loss, which may be called several times in a step.
            given: arguments: tensors, or lists and dicts of tensors.
            result: tensors, or lists and dicts of tensors.
        """
        if not self._now:
            return
        self.see_values(name, kind, "input", given)
        self.see_values(name, kind, "output", result)

    @_guarded
    def see_values(self, name: str, kind: str, side: str, values: Any) -> None:
        """Save the inputs or the outputs of a module; a module's next call in the step goes on with the numbers.

        Calls that compute a part of the model again in the backward pass are left out.

        Args:
            name, kind, values: as for `see_module`.
            side: `input` or `output`.
        """
        if kind and is_in_backward():
            return
        tensors, first = _tensors(values), self._num_values.get((name, side), 0) if kind else 0
        for place, tensor in enumerate(tensors, first):
            alias = f"{name}.{kind}_{side}_{place}" if kind and kind not in name.lower() else ""
            full = f"{name}_{side}_{place}"
            # Modules have names of their own; different losses may have the same.
            self._see_tensor(full if kind else self._output.free_name(full), tensor, alias)
        self._num_values[name, side] = first + len(tensors)

    @_guarded
    def see_tensor(self, name: str, tensor: torch.Tensor) -> None:
        """Save a tensor [any shape] if a collection wants it at this step."""
        self._see_tensor(name, tensor)

    def close(self) -> None:
        """End the last step, write all steps and mark this worker as ended. A second call does nothing."""
        if self._is_closed or self._pid != os.getpid():
            return
        losses.stop_listening(self._listener)
        self.modules.close()
        if self.failure is None:
            self._passed.close(self._has_value)
            self._early.close()
        self._finish_step()
        self._is_closed = True
        if self._counts_file is not None:
            self._counts_file.close()
        self._output.close(failure="" if self.failure is None else repr(self.failure))

    # Events in the program.

    @_guarded
    def _begin_step(self, model: torch.nn.Module) -> None:
        self._finish_step()
        if self._counts_file is None:
            self._counts_file = self._go_on()
        mode = self._step_mode = self._options.mode
        self._has_gradients = torch.is_grad_enabled()
        self.step += 1
        self.mode_steps[mode] += 1
        if mode is not ModeKeys.GLOBAL:
            self.mode_steps[ModeKeys.GLOBAL] = self.step
        chooser = self._up_to_date()
        self._now = chooser.at(mode, self.mode_steps[mode]) if self._output.saves else []
        self._leave_count(self._counts_file)
        if self._now:
            self._leaves_be = self._is_evaluation_after_training()
        elif self._leaves_be and torch.is_grad_enabled():
            self._leaves_be = False
        if self._leaves_be:
            self._now = []
        if self._now:
            self._options.last_saved_step = self.step
            self._step_watch = StepWatch(self.modules, self._now, self, self._is_wanted, self._own)
            self._step_watch.begin()
        self.settle()
        self._early.save()

    @_guarded
    def settle(self) -> None:
        """Save the values of `save_tensor` with this step."""
        self._passed.settle()

    @_guarded
    def _finish_step(self) -> None:
        self._passed.end_step()
        if self._step_watch is not None:
            self._step_watch.end()
            self._step_watch = None
        self._now = []
        self._num_values.clear()
        self._output.finish_step()

    @_guarded
    def _see_tensor(self, name: str, tensor: torch.Tensor, alias: str = "") -> None:
        if not has_plain_tensors():
            return
        wanted = self._up_to_date().wants(self._now, name, alias)
        if wanted is not None and (copy := self._open_copy()) is not None:
            copy.add(name, tensor, wanted, alias)

    def _see_loss(self, module: str, given: tuple[Any, ...], result: Any) -> None:
        self.settle()
        if self._now:
            self.see_module(module, "", given, result)

    # Counting.

    def _go_on(self) -> CountsFile:
        """Continue the step counts of the restored checkpoints; return the file for this attempt's own counts."""
        self._up_to_date()  # also determines the name of the worker
        before = restored_counts(trains_alone=self._output.place.num_trainings > 1)
        self.step = self._output.goes_on_after = before.total
        self.mode_steps = {
            ModeKeys.GLOBAL: before.total,
            ModeKeys.TRAIN: before.train,
            ModeKeys.EVAL: before.evaluate,
            ModeKeys.PREDICT: before.predict,
        }
        return CountsFile(before)

    def _leave_count(self, file: CountsFile) -> None:
        """Record the start of a step if this program trains; a program that only evaluates writes no checkpoints."""
        self._has_trained = self._has_trained or torch.is_grad_enabled()
        if self._has_trained and self._output.saves:
            modes = self.mode_steps
            parts = (modes[ModeKeys.TRAIN], modes[ModeKeys.EVAL], modes[ModeKeys.PREDICT])
            file.add(self._output.place.name, self.step, *parts)

    # Output.

    def _up_to_date(self) -> Chooser:
        """Return the chooser; make a new one if the program has changed its options."""
        if self._chooser is None or self._options.has_changed:
            self._chooser = self._options.make_chooser(self.modules.names)
            self._output.find_worker()
        return self._chooser

    def _is_wanted(self, name: str) -> bool:
        return self._up_to_date().wants(self._now, name) is not None

    def _has_to_save(self) -> bool:
        """Whether this worker saves; before the first step without a chooser, for which models may still be missing."""
        if self.step < 0:
            self._output.find_worker()
        else:
            self._up_to_date()
        return self._output.saves

    def _may_be_saved(self, name: str) -> bool:
        """Whether this step saves a tensor, or the next one of the present phase or of a phase that has begun.

        Step 0 of a phase that never begins would be due for ever.
        """
        if not self._has_to_save():
            return False
        if self.step < 0:  # the first step's number may come from a checkpoint
            return True
        chooser = self._up_to_date()
        return chooser.wants(self._now, name) is not None or any(
            chooser.wants(chooser.at(mode, step + 1), name) is not None
            for mode, step in self.mode_steps.items()
            if step >= 0 or mode is self._options.mode
        )

    def _has_value(self, name: str) -> bool:
        """Whether the last step cannot take a value, since it has one of that name, or since there was no step."""
        return self.step < 0 or self._output.has(name)

    def _is_evaluation_after_training(self) -> bool:
        """Whether an automatic hook sees no gradients, and another program has saved here and ended without an error.

        A program that trains again is saved again, for example a script in a loop, or a training after a preparation.
        """
        return self._options.is_automatic and not torch.is_grad_enabled() and self._output.was_saved_before()

    def _open_copy(self) -> StepCopy | None:
        """Return the copies to add this step's tensors to; None if the step is not saved."""
        if self._is_closed or self.step < 0 or self._leaves_be:
            return None
        return self._output.open_copy(self.step, self._step_mode, self.mode_steps[self._step_mode])

    def _give_up(self, error: Exception) -> None:
        self.failure = error
        if isinstance(error, FolderTaken):
            _log.warning("debugger: this process saves nothing, training goes on: %s", error)
        else:
            _log.error("debugger: nothing more is saved, training goes on: %r", error, exc_info=error)
        self._now = []
        self._passed.end_step()
        self._output.abandon_step()
        watch, self._step_watch = self._step_watch, None
        if watch is not None:
            watch.end()
        self.modules.close()
        losses.stop_listening(self._listener)


def _tensors(values: Any) -> list[torch.Tensor]:
    """Return the tensors in a module's arguments or result, in order."""
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, list | tuple):
        return []
    return [tensor for value in values for tensor in _tensors(value)]
