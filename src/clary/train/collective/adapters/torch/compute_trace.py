"""Reports torch's computation to the process's trace: forward and backward passes of modules, and gradients.

Where: `creation.connect` calls `install` when the first group is made while traces are on (`collective.trace`).
Spans lie on the lane `compute`, a module's span inside the span of the module that holds it. The backward span of a
module without children begins when the gradient of its output is ready, and ends when the next span begins or the
backward pass ends; computing in several threads at once is shown in one lane. Hooks are torch's global ones, which
reach every module of the process; they do not change what is computed.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import torch
from torch.autograd import Variable
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from clary.train.collective.trace import COMPUTE, TraceWriter

_installing = threading.Lock()
_installed: list[_ComputeTrace] = []


def install(writer: TraceWriter) -> None:
    """Report to `writer` from now on; a second call does nothing."""
    with _installing:
        if not _installed:
            _installed.append(_ComputeTrace(writer))


class _ComputeTrace:
    def __init__(self, writer: TraceWriter) -> None:
        self._writer = writer
        self._began_ns: list[tuple[int, int]] = []  # a stack: identity of a module, begin of its forward pass
        self._backward_name = ""
        self._backward_ns = 0
        register_module_forward_pre_hook(self._before_forward)
        register_module_forward_hook(self._after_forward)

    def _before_forward(self, module: torch.nn.Module, _: Any) -> None:
        self._began_ns.append((id(module), time.perf_counter_ns()))

    def _after_forward(self, module: torch.nn.Module, _: Any, output: Any) -> None:
        end_ns = time.perf_counter_ns()
        while self._began_ns:  # entries above this module's ended with an exception
            identity, begin_ns = self._began_ns.pop()
            if identity == id(module):
                self._writer.span(COMPUTE, f"forward {_name(module)}", begin_ns, end_ns)
                break
        if not any(True for _ in module.children()):
            first = next((one for one in _tensors(output) if one.requires_grad), None)
            if first is not None:
                first.register_hook(lambda _: self._begin_backward(f"backward {_name(module)}"))

    def _begin_backward(self, name: str) -> None:
        """Called in torch's thread of the backward pass, once for each call of a module."""
        now_ns = time.perf_counter_ns()
        if self._backward_name:
            self._writer.span(COMPUTE, self._backward_name, self._backward_ns, now_ns)
        else:
            # It runs before other callbacks at the end of the pass, such as DistributedDataParallel's for its buckets.
            Variable._execution_engine.queue_callback(self._end_backward)
        self._backward_name, self._backward_ns = name, now_ns

    def _end_backward(self) -> None:
        self._writer.span(COMPUTE, self._backward_name, self._backward_ns, time.perf_counter_ns())
        self._backward_name = ""


def _name(module: torch.nn.Module) -> str:
    shape = getattr(module, "weight", None)
    sizes = f" {list(shape.shape)}" if isinstance(shape, torch.Tensor) else ""
    return type(module).__name__ + sizes


def _tensors(output: Any) -> list[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, dict):
        output = list(output.values())
    return [one for one in output if isinstance(one, torch.Tensor)] if isinstance(output, (list, tuple)) else []
