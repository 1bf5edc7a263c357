"""One model that torch.compile has compiled in place: its first call, and its return to eager execution.

Where: `outermost` makes one for each model that the policy permits. `nn.Module` calls the function in a module's
`_compiled_call_impl`, as it does after `Module.compile`; keys of state_dict stay unchanged, and pickles and copies omit
the attribute.

[Note: no failure]
A graph that Inductor cannot compile runs uncompiled. Code that Dynamo cannot follow runs as Python, by Dynamo's setting
`suppress_errors`; an error that the compiler still raises ends the use of the compiled model, and the call is repeated
in eager execution. The backward graph is compiled together with the forward graph, so that no compiler error can occur
in the backward pass. Random numbers are drawn as in eager execution (`fallback_random`), so that a program's losses
stay the same, with or without dropout. Source: torch.compile, "Frequently asked questions"; torch/_inductor/config.py,
torch/_functorch/config.py.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import nn

from clary.train.compilation.policies import judge_first_call
from clary.train.compilation.report import Report

_BACKEND = "inductor"
_REASON_CHARACTERS = 240
_COMPILER = ("torch._dynamo.", "torch._inductor.", "torch._functorch.")


class CompiledModel:
    """Callable for a module's `_compiled_call_impl`.

    Args:
        module: module to compile.
        name: name of the model in the log.
        report: receives the outcome of the first call, and the reason of a return to eager execution.
    """

    def __init__(self, module: nn.Module, *, name: str, report: Report) -> None:
        self._module = module
        self._name = name
        self._report = report
        self._num_graphs = self._num_compiled = 0
        self._failure = ""
        self._is_settled = False
        self._dynamo: Any = import_module("torch._dynamo")
        self._inductor = self._dynamo.lookup_backend(_BACKEND)
        self._functorch: Any = import_module("torch._functorch.config")
        self._dynamo.config.suppress_errors = True
        _keep_headers()
        report.open_torch_logs()
        self._compiled: Callable[..., Any] = torch.compile(_followed(module), backend=self._compile)

    def install(self) -> None:
        """Redirect the module's calls to this object."""
        self._module._compiled_call_impl = self

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the module: compiled in training, otherwise uncompiled."""
        module = self._module
        if not module.training or not torch.is_grad_enabled():
            return module._call_impl(*arguments, **keywords)
        try:
            if self._is_settled:
                return self._compiled(*arguments, **keywords)
            return self._first_call(arguments, keywords)
        except Exception as error:
            if not _is_of_compiler(error):
                raise  # an error of the program
            self._give_up(_in_words(error))
            return module._call_impl(*arguments, **keywords)

    def _first_call(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        breaks = dict(self._breaks())
        started_s = time.monotonic()
        result = self._compiled(*arguments, **keywords)
        seconds = time.monotonic() - started_s
        self._is_settled = True
        new_breaks = {why: number - breaks.get(why, 0) for why, number in self._breaks().items()}
        new_breaks = {why: number for why, number in new_breaks.items() if number > 0}
        self._report.breaks(new_breaks)
        decision = judge_first_call(num_graphs=self._num_graphs, num_compiled=self._num_compiled, failure=self._failure)
        if not decision.applies:
            self._give_up(decision.reason)
            return result
        num_breaks = sum(new_breaks.values())
        left = f"; {self._num_graphs - self._num_compiled} of them run eagerly: {decision.reason}"
        self._report.say(
            f"compiled {self._name} by torch.compile (inductor), {_counted(self._num_graphs, 'graph')}, "
            f"{_counted(num_breaks, 'break')}, in {seconds:.1f} s{left if decision.reason else ''}"
        )
        return result

    def _compile(self, graph: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile one graph; Dynamo calls this as its backend."""
        self._num_graphs += 1
        settings = contextlib.nullcontext()
        if hasattr(self._functorch, "force_non_lazy_backward_lowering"):
            settings = self._functorch.patch(force_non_lazy_backward_lowering=True)
        try:
            with settings:
                compiled: Callable[..., Any] = self._inductor(graph, inputs, config_patches={"fallback_random": True})
        except (self._dynamo.exc.RestartAnalysis, self._dynamo.exc.SkipFrame):
            self._num_graphs -= 1  # Dynamo compiles the frame again
            raise
        except Exception as error:  # noqa: BLE001 - boundary: torch's compiler; the graph runs as it is
            self._failure = self._failure or _in_words(error)
            forward: Callable[..., Any] = graph.forward
            return forward
        self._num_compiled += 1
        return compiled

    def _give_up(self, reason: str) -> None:
        self._module._compiled_call_impl = None
        self._report.say(f"not compiled: {self._name}: {reason}", every_rank=True)

    def _breaks(self) -> dict[str, int]:
        counters: Any = import_module("torch._dynamo.utils").counters
        return dict(counters["graph_break"])


def _followed(module: nn.Module) -> Callable[..., Any]:
    """Return a module's call in a form that Dynamo follows; by default Dynamo skips torch's own code."""
    call: Callable[..., Any] = module._call_impl
    if not import_module("torch._dynamo.trace_rules").check(module.forward):
        return call
    wrapped: Callable[..., Any] = import_module("torch._dynamo.external_utils").wrap_inline(call)
    return wrapped


def _keep_headers() -> None:
    """Keep precompiled C++ headers in the folder of compiled files; torch's default is /tmp, separate on each host."""
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    codecache: Any = import_module("torch._inductor.codecache")
    if folder and hasattr(codecache, "_HEADER_DIR"):
        codecache._HEADER_DIR = os.path.join(folder, "precompiled_headers")
        codecache._HEADER_LOCK_DIR = os.path.join(codecache._HEADER_DIR, "locks")


def _is_of_compiler(error: BaseException) -> bool:
    """Whether an error came from torch's compiler, not from the program or one of its operations."""
    name, traceback = "", error.__traceback__
    while traceback is not None:
        name = str(traceback.tb_frame.f_globals.get("__name__", ""))
        traceback = traceback.tb_next
    return name.startswith(_COMPILER) or type(error).__module__.startswith(_COMPILER)


def _in_words(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:_REASON_CHARACTERS]


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
