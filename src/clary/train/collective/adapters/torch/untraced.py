"""Keeps torch.compile out of this package.

Where: `process_group` calls `keep_untraced` once, with the modules to mark. C++ code such as DDP's reducer calls our
methods while compiled code runs, and dynamo would treat them as part of the program and try to trace them, down to
ctypes. The documented decorator, torch.compiler.disable, imports the compiler and costs a microsecond a call; marking
code costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any


def keep_untraced(*modules: ModuleType) -> None:
    """Mark every function that is defined in `modules`; do nothing in a torch that has no such mark."""
    mark = _marker()
    if mark is not None:
        for module in modules:
            for function in _functions_of(module, module.__name__):
                mark(function.__code__)


def _marker() -> Callable[[CodeType], None] | None:
    """Return torch's function that marks code as not to be traced; None in a torch without one."""
    from torch._C._dynamo import eval_frame

    if hasattr(eval_frame, "set_code_exec_strategy"):
        skip, strategy = eval_frame._FrameAction.SKIP, eval_frame._FrameExecStrategy
        return lambda code: eval_frame.set_code_exec_strategy(code, strategy(skip, skip))
    return getattr(eval_frame, "skip_code", None)


def _functions_of(owner: Any, module_name: str) -> Iterator[FunctionType]:
    for value in vars(owner).values():
        unwrapped = value.fget if isinstance(value, property) else value
        if getattr(unwrapped, "__module__", None) != module_name:
            continue
        if isinstance(unwrapped, FunctionType):
            yield unwrapped
        elif isinstance(unwrapped, type):
            yield from _functions_of(unwrapped, module_name)
