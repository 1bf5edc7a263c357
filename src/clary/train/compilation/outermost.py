"""Hooks into the outermost module of each call in training: there a model is compiled or runs under autocast.

Where: `install` is called at the end of `import torch` in a job's programs, if the job requests it. No error in this
module may make a program fail.

[Note: the hook]
Every kind of training calls `nn.Module.__call__`: plain loops, Trainer, Lightning, DDP, FSDP, smp. A module that is
called while no other module runs, in training mode and with gradients, is a model; the policies judge it once. A call
inside a backward pass recomputes a part of a model and does not count. torch's compiler is imported after the hook is
installed and treats it as torch's own `__call__`; while the compiler traces a call, the hook does nothing.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import nn

from clary.train.compilation import facts
from clary.train.compilation.compiled import CompiledModel
from clary.train.compilation.policies import ModelFacts, judge_compilation, judge_precision
from clary.train.compilation.precision import Autocast
from clary.train.compilation.report import Report
from clary.train.compilation.wishes import Wishes, read_wishes

_MARK = "_clary_outermost"  # attribute of the wrapper
_NO_TASK = -1  # autograd's engine runs no task


@dataclass(frozen=True)
class _Plan:
    autocast: Autocast | None = None


class _Depth(threading.local):
    is_inside = False  # whether a module is running in this thread


class Watch:
    """Judges models and runs their calls.

    Args:
        wishes: requests of the job.
        original: `nn.Module.__call__` of torch.
    """

    def __init__(self, wishes: Wishes, original: Callable[..., Any]) -> None:
        self._wishes = wishes
        self._original = original
        self._report = Report(wishes.debug_folder)
        self._plans: weakref.WeakKeyDictionary[nn.Module, _Plan] = weakref.WeakKeyDictionary()
        self._num_compiled = 0
        self._lock = threading.Lock()

    def call(self, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call an outermost module.

        Args:
            module: the called module.
            arguments: arguments of the call, by position.
            keywords: arguments of the call, by name.
        """
        if not module.training or not torch.is_grad_enabled():
            return self._original(module, *arguments, **keywords)
        plan = self._plans.get(module)
        if plan is None:
            plan = self._planned(module)
        if plan.autocast is None:
            return self._original(module, *arguments, **keywords)
        return plan.autocast.run(self._original, module, *arguments, **keywords)

    def _planned(self, module: nn.Module) -> _Plan:
        """Judge a module at its first call; traced, backward and lazy calls do not count, and a later call decides."""
        try:
            if facts.is_watched_otherwise() or _is_in_backward() or facts.is_lazy(module):
                return _Plan()
            with self._lock:
                plan = self._plans[module] = self._judged(module)
        except Exception as error:  # noqa: BLE001 - boundary: modules of users; training goes on as it is
            self._report.say(f"not compiled: {type(module).__name__}: {error!r}", every_rank=True)
            plan = self._plans[module] = _Plan()
        return plan

    def _judged(self, module: nn.Module) -> _Plan:
        model = facts.model_facts(module)
        autocast = self._autocast(model) if self._wishes.mixes_precision else None
        if self._wishes.compiles and model.num_trainable:
            self._compile(module, model)
        return _Plan(autocast)

    def _autocast(self, model: ModelFacts) -> Autocast | None:
        device_type = min(model.device_types, default="cpu")
        decision = judge_precision(model, facts.precision_facts(device_type))
        if decision.applies:
            note = f"; {decision.reason}" if decision.reason else ""
            self._report.say(f"{model.name} trains under autocast in {decision.dtype} (sagemaker_amp){note}")
            return Autocast(device_type, decision.dtype)
        if decision.reason:
            self._report.say(f"sagemaker_amp leaves {model.name} as it is: {decision.reason}", every_rank=True)
        return None

    def _compile(self, module: nn.Module, model: ModelFacts) -> None:
        compiler = facts.compiler_facts(self._wishes, num_models=self._num_compiled)
        decision = judge_compilation(model, compiler)
        if decision.applies:
            self._num_compiled += 1
            CompiledModel(facts.target_of(module), name=model.name, report=self._report).install()
        elif decision.reason:
            self._report.say(f"not compiled: {model.name}: {decision.reason}", every_rank=True)


def install() -> Watch | None:
    """Watch module calls in this process if the job requests it; return None if not, or if already watched."""
    wishes = read_wishes(os.environ)
    if not wishes.any or hasattr(nn.Module.__call__, _MARK):
        return None
    original = nn.Module.__call__
    watch = Watch(wishes, original)
    depth = _Depth()
    is_compiling = torch.compiler.is_compiling

    @functools.wraps(original)
    def __call__(self: nn.Module, *arguments: Any, **keywords: Any) -> Any:
        if is_compiling() or depth.is_inside:
            return original(self, *arguments, **keywords)
        depth.is_inside = True
        try:
            return watch.call(self, arguments, keywords)
        finally:
            depth.is_inside = False

    setattr(__call__, _MARK, True)
    nn.Module.__call__ = __call__
    wrapper: Any = __call__
    _leave_uncompiled(wrapper.__code__, Watch.call.__code__, Autocast.run.__code__)
    return watch


def _is_in_backward() -> bool:
    task: Any = getattr(torch._C, "_current_graph_task_id", lambda: _NO_TASK)
    return bool(task() != _NO_TASK)


def _leave_uncompiled(*codes: CodeType) -> None:
    """Make torch run functions uncompiled; functions that they call are still compiled."""
    frames: Any = sys.modules.get("torch._C._dynamo.eval_frame")
    skip: Any = getattr(frames, "skip_code", None)
    if hasattr(frames, "set_code_exec_strategy"):
        strategy = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)

        def set_strategy(code: CodeType) -> None:
            frames.set_code_exec_strategy(code, strategy)

        skip = set_strategy
    for code in codes if skip is not None else ():
        skip(code)
