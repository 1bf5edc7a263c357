"""Hooks that connect the step clock to torch: loaders, backward passes, collectives, optimizers.

Where: `install` is called at the end of `import torch` in a job's programs. An error here must not fail a program or
change its results; the first error ends the recording and is logged once.

[Note: where the hooks are]
optimizer       torch's own hooks of all optimizers.
data            `__next__` of DataLoader's iterators, for which torch has no hook.
backward        `torch.autograd.backward`, which `Tensor.backward` also calls.
communication   `wait` of collectives' Work objects, in the training thread; for functional collectives an operator of
                torch (`functional_hooks`). DDP and FSDP wait for their reductions at the end of a backward pass, inside
                of it. The engine runs callbacks when all gradients are computed, in the order of registration; ours is
                registered with the first gradient, so the time after it is the wait of DDP and FSDP.
All times are measured in the training thread. A GPU computes asynchronously, and its time appears where the thread
waits for it.
Compiled code is not changed: wrappers carry torch's mark of functions that must not be compiled.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from clary.contract import collective_records, step_records
from clary.contract.collective_records import STATE_OFFSET, WAITED_FOR
from clary.contract.step_records import FOLDER_VARIABLE, SWITCH_VARIABLE
from clary.train import operation_record
from clary.train.steps import collective_hooks, functional_hooks, step_clock, step_file
from clary.train.steps.collective_hooks import CollectiveCalls
from clary.train.steps.step_clock import BACKWARD, COMMUNICATION, DATA, StepClock
from clary.train.steps.step_file import StepFile
from clary.train.steps.uncompiled import leave_uncompiled

_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_MARK = "_clary_steps"  # attribute of our wrappers
_COMPILED = "torch._dynamo.compiled_autograd"

_log = logging.getLogger("clary.steps")


class Recorder:
    """Measures the training thread and writes its rows.

    Args:
        folder: folder of the file.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._file: StepFile | None = None
        self.calls = CollectiveCalls()
        self.reset()

    def reset(self) -> None:
        """Reset in a forked process, whose parent owns the file."""
        self.is_on = True
        # The training thread and its clock, replaced together, so that no two threads ever share a clock.
        self._measured = (threading.main_thread().ident, StepClock())
        self.calls.reset()
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def clock(self) -> StepClock:
        """The clock of the training thread."""
        return self._measured[1]

    def clock_here(self) -> StepClock | None:
        """Return the clock if the calling thread is the measured one, else None."""
        thread, clock = self._measured
        return clock if self.is_on and threading.get_ident() == thread else None

    def before_step(self, optimizer: object) -> None:
        """Record the begin of an optimizer's step."""
        if not self.is_on:
            return
        try:
            clock = self.clock_here()
            if clock is None:  # the program trains in another thread
                clock = StepClock()
                self._measured = (threading.get_ident(), clock)
            clock.enter_optimizer(id(optimizer), _num_outer_steps() if clock.is_in_optimizer else 0)
        except Exception as error:  # noqa: BLE001 - boundary: debug hook
            self._give_up(error)

    def after_step(self, optimizer: object) -> None:
        """Record the end of an optimizer's step."""
        try:
            clock = self.clock_here()
            row = clock.leave_optimizer(id(optimizer)) if clock is not None else None
            if row is None:
                return
            if self._file is None:
                _wrap_works(self)  # by now, a program with a process group has imported the Work classes
                self._file = StepFile(self._folder, _rank())
            self._file.write(row)
        except Exception as error:  # noqa: BLE001 - boundary: debug hook
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self.is_on = False
        _log.warning("the times of steps are not recorded any more: %s", error)


def install() -> Recorder | None:
    """Start to record this process's steps if its job enables that, else return None. torch must be imported.

    A second call does nothing and returns None.
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder or os.environ.get(SWITCH_VARIABLE) == "0":
        return None
    import torch
    from torch.optim import optimizer
    from torch.utils.data import dataloader

    if hasattr(torch.autograd.backward, _MARK):
        return None
    recorder = Recorder(folder)
    iterator = dataloader._BaseDataLoaderIter
    iterator.__next__ = _timed_next(iterator.__next__, recorder)
    torch.autograd.backward = _timed_backward(torch.autograd.backward, recorder)
    _tell_scripts(torch.autograd.backward)

    def before_step(optimizer: object, _arguments: object, _keywords: object) -> None:
        recorder.before_step(optimizer)

    def after_step(optimizer: object, _arguments: object, _keywords: object) -> None:
        recorder.after_step(optimizer)

    optimizer.register_optimizer_step_pre_hook(_marked(before_step))
    optimizer.register_optimizer_step_post_hook(_marked(after_step))
    _wrap_works(recorder)
    wrappers = collective_hooks.wrap_groups(recorder.calls, _marked)
    functional_hooks.wrap_operators(recorder.calls, recorder.clock_here)
    os.register_at_fork(after_in_child=recorder.reset)
    recorded = (collective_hooks, functional_hooks, collective_records, operation_record)
    leave_uncompiled(sys.modules[__name__], step_clock, step_file, step_records, *recorded, *wrappers)
    return recorder


def _tell_scripts(backward: Callable[..., Any]) -> None:
    """Make `torch.jit.script`, which identifies functions by `id`, treat the wrapper as the wrapped function."""
    register = getattr(sys.modules.get("torch.jit._builtins"), "_register_builtin", None)
    if register is not None:
        register(backward, "aten::backward")


def _wrap_works(recorder: Recorder) -> None:
    """Wrap `wait` in each Work class that defines it, to time it."""
    distributed = sys.modules.get("torch.distributed")
    work = getattr(distributed, "Work", None)
    if work is None:  # torch without torch.distributed
        return
    for kind in (work, *work.__subclasses__()):
        wait = vars(kind).get("wait")
        if wait is not None and not hasattr(wait, _MARK):
            kind.wait = _timed_wait(wait, recorder)


def _timed_next(function: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    @functools.wraps(function)
    def __next__(self: Any) -> Any:
        clock = recorder.clock_here()
        if clock is None:
            return function(self)
        depth = clock.enter(DATA)
        try:
            return function(self)
        finally:
            clock.leave(depth)

    return _marked(__next__)


def _timed_wait(function: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    # pybind11 treats a Python function as an override of the native method and would call it recursively, unless the
    # caller's frame has the same name and first argument.
    calls = recorder.calls
    works, works_of_rows = calls.works, calls.works_of_rows

    @functools.wraps(function)
    def wait(self: Any, *arguments: Any, **keywords: Any) -> Any:
        clock = recorder.clock_here()
        row = works.pop(id(self), 0)
        if row and works_of_rows.get(row) != id(self):  # its row now belongs to another operation
            row = 0
        if row and clock is not None:
            calls.memory[row + STATE_OFFSET] = WAITED_FOR
        if clock is None and not row:
            return function(self, *arguments, **keywords)
        depth = clock.enter(COMMUNICATION) if clock is not None else 0
        is_good = False
        try:
            result = function(self, *arguments, **keywords)
            is_good = True
            return result
        finally:
            if clock is not None:
                clock.leave(depth)
            if row:
                calls.ended(row, is_good)

    return _marked(wait)


def _timed_backward(function: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    import torch

    engine = torch.autograd.Variable._execution_engine
    is_distributed = torch.distributed.is_initialized if torch.distributed.is_available() else bool
    calls = recorder.calls

    @functools.wraps(function)
    def backward(tensors: Any, *arguments: Any, **keywords: Any) -> Any:
        clock = recorder.clock_here()
        if clock is None:
            return function(tensors, *arguments, **keywords)
        hook = None
        if is_distributed():

            def ends() -> None:  # callback of the engine; `leave` below ends the part
                clock.enter(COMMUNICATION)
                calls.wait_for_gradients()

            def begins(_: object) -> None:
                with contextlib.suppress(RuntimeError):  # the engine may accept no callbacks here
                    engine.queue_callback(ends)

            hook = _hook_first(tensors, begins)
        reduces, is_good = calls.begin_gradients(), False
        depth = clock.enter(BACKWARD)
        try:
            result = function(tensors, *arguments, **keywords)
            is_good = True
            return result
        finally:
            clock.leave(depth)
            if reduces:
                calls.end_gradients(is_good)
            if hook is not None:
                hook.remove()

    return _marked(backward)


def _hook_first(tensors: Any, hook: Callable[[Any], None]) -> Any:
    """Hook a function to the first gradient of a backward pass; return None if hooks are not available."""
    compiled = sys.modules.get(_COMPILED)
    if compiled is not None and getattr(compiled, "compiled_autograd_enabled", True):
        return None  # with compiled autograd, hooks are compiled too
    for tensor in tensors if isinstance(tensors, list | tuple) else (tensors,):
        if getattr(tensor, "grad_fn", None) is not None:
            with contextlib.suppress(RuntimeError, TypeError, AttributeError):  # some tensors accept no hooks
                return tensor.register_hook(hook)
            return None
    return None


def _marked(function: Callable[..., Any]) -> Callable[..., Any]:
    setattr(function, _MARK, True)
    # Same effect as torch.compiler.disable, whose import takes seconds.
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


def _num_outer_steps() -> int:
    """Return the number of optimizer steps that enclose the step whose hook called the caller."""
    stepping = sys._getframe(3)  # frame of torch's wrapper of `step`
    count, frame = 0, stepping.f_back
    while frame is not None:
        count += frame.f_code is stepping.f_code
        frame = frame.f_back
    return count


def _rank() -> int:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    words = (os.environ.get(name, "") for name in _RANK_VARIABLES)
    return next((int(word) for word in words if word.isdecimal()), 0)
