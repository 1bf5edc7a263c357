"""Whether a call is one of training, or somebody has torch look at the program without running it as it stands.

A hook in a call of the second kind would end up in what a compiler or a tracer makes of it, be handed tensors without
values, or break a capture of a GPU's work: it keeps still then.
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
    """Whether torch.compile has compiled something here, or will with one of these modules.

    What it compiles is tied to the global hooks that there are: with a hook that comes and goes it compiles each time
    anew, until it gives up, or fails the program where it was told `fullgraph=True`.
    """
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    if counters is not None and counters.get("frames", {}).get("total"):
        return True
    return any(getattr(one, "_compiled_call_impl", None) is not None or hasattr(one, "_orig_mod") for one in modules)


def has_plain_tensors() -> bool:
    """Whether tensors are plain and may be copied: no mode, functional transform or graph capture is active.

    Modes make fake tensors, or keep what operations return for when a part of the model is computed again; `vmap` and
    `grad` of torch.func wrap; while a GPU's work is captured nothing may be allocated or waited for.
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
