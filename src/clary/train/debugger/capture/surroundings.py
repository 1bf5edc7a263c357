"""Tests whether torch runs a call normally, or traces, compiles or transforms it.

In a traced or transformed call a hook does nothing: it would become part of the compiled or traced code, receive
tensors without values, or break the capture of a CUDA graph.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch

# default for torch before 2.3
_is_compiling: Any = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)


def is_traced() -> bool:
    """Whether a compiler or tracer follows the program; such a call is no step."""
    return bool(_is_compiling() or torch.jit.is_tracing())


def is_in_backward() -> bool:
    """Whether a backward pass calls the program, as when a part of the model is computed again."""
    task: Any = getattr(torch._C, "_current_graph_task_id", None)
    return task is not None and task() >= 0


def is_compiled(modules: Iterable[torch.nn.Module]) -> bool:
    """Whether torch.compile has compiled something in this process, or will compile one of these modules.

    Compiled code depends on the global hooks: a hook that is installed and removed causes a compilation each time,
    until the compiler gives up or fails a program with `fullgraph=True`.
    """
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    if counters is not None and counters.get("frames", {}).get("total"):
        return True
    return any(getattr(one, "_compiled_call_impl", None) is not None or hasattr(one, "_orig_mod") for one in modules)


def has_plain_tensors() -> bool:
    """Whether tensors are plain and may be copied, since no mode, functional transform or graph capture is active.

    Modes make fake tensors, or keep results of operations for recomputing a part of the model; `vmap` and `grad` of
    torch.func wrap tensors; while a CUDA graph is captured, no memory may be allocated and no call may wait.
    """
    if _num_modes() or _transform() is not None:
        return False
    return not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def _num_modes() -> int:
    count: Any = getattr(torch._C, "_len_torch_dispatch_stack", None)
    return 0 if count is None else int(count())


def _transform() -> object:
    peek: Any = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", None)
    return None if peek is None else peek()
