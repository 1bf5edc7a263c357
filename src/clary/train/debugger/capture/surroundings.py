"""Tests whether torch runs a call normally, or traces, compiles or transforms it.

In a traced or transformed call a hook would become part of the compiled or traced code, get tensors without values, or
break the capture of a GPU's work: it does nothing then.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch

_is_compiling: Any = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)  # of torch before 2.3


def is_traced() -> bool:
    """Whether a compiler or tracer follows the program: such a call is no step."""
    return bool(_is_compiling() or torch.jit.is_tracing())


def is_compiled(modules: Iterable[torch.nn.Module]) -> bool:
    """Whether torch.compile has compiled something in this process, or will compile one of these modules.

    Its compiled code depends on the global hooks: with a hook that comes and goes it compiles again each time, until it
    gives up, or makes a program with `fullgraph=True` fail.
    """
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    if counters is not None and counters.get("frames", {}).get("total"):
        return True
    return any(getattr(one, "_compiled_call_impl", None) is not None or hasattr(one, "_orig_mod") for one in modules)


def has_plain_tensors() -> bool:
    """Whether tensors are plain and may be copied: no mode, functional transform or graph capture is active.

    Modes make fake tensors, or keep results of operations for recomputing a part of the model; `vmap` and `grad` of
    torch.func wrap tensors; while a GPU's work is captured, no memory may be allocated and nothing may wait.
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
