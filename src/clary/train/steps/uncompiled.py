"""Keeps our functions out of `torch.compile`: hooks are called by programs that are compiled around them.

Where: `torch_hooks`, when everything is in place. The mark of torch's `disable` says that a function is not to be drawn
into its caller; what it calls would be compiled by itself, again and again, with warnings in the program's log.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any


def leave_uncompiled(*parts: ModuleType | FunctionType) -> None:
    """Have torch run these functions, and those of these modules, as they are; nothing where it knows no such wish."""
    frames: Any = sys.modules.get("torch._C._dynamo.eval_frame")
    skip = getattr(frames, "skip_code", None)
    if hasattr(frames, "set_code_exec_strategy"):  # of newer releases
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
