"""Exclusion of our functions from `torch.compile`, since compiled programs call our hooks.

Where: `torch_hooks` calls it after it has installed all hooks. The mark of torch's `disable` prevents inlining of a
function into its caller, but its callees would still be compiled, repeatedly, with warnings in the program's log.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any


def leave_uncompiled(*parts: ModuleType | FunctionType) -> None:
    """Make torch never compile these functions and these modules' functions; a no-op if torch lacks the setting."""
    frames: Any = sys.modules.get("torch._C._dynamo.eval_frame")
    skip = getattr(frames, "skip_code", None)
    if hasattr(frames, "set_code_exec_strategy"):  # in newer releases
        action = frames._FrameAction
        strategy = frames._FrameExecStrategy(action.SKIP, action.DEFAULT)

        def set_strategy(code: CodeType) -> None:
            frames.set_code_exec_strategy(code, strategy)

        skip = set_strategy
    if skip is None:
        return
    for part in parts:
        for code in _with_inner(part.__code__) if isinstance(part, FunctionType) else _codes_of(part):
            skip(code)


def _codes_of(module: ModuleType) -> Iterator[CodeType]:
    for item in list(vars(module).values()):
        if getattr(item, "__module__", None) != module.__name__:
            continue
        for member in vars(item).values() if isinstance(item, type) else (item,):
            function = getattr(member, "fget", None) or getattr(member, "__func__", member)
            if isinstance(function, FunctionType):
                yield from _with_inner(function.__code__)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
