"""The names under which a step's function takes its arguments; independent of the framework.

Where: `microbatches`, `mistakes.alike` and `tf_parallel.arguments` use it, since scripts name the arguments that are
not to be cut.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any


def argument_names(function: Callable[..., Any], arguments: Sequence[Any], told: Collection[str]) -> list[str]:
    """Return the names of positional arguments; arguments in `*args` share its name.

    Args:
        told: names in non_split_inputs and input_split_axes, which are validated.

    Raises:
        ValueError: the function has no parameter of a name in `told`, and takes no other keywords.
        TypeError: more arguments than the function takes.
    """
    signature = inspect.signature(function)
    takes_any = any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())
    for name in told:
        if name not in signature.parameters and not takes_any:
            raise ValueError(
                f"smp.step: {function.__name__} has no argument {name!r}, which non_split_inputs or "
                "input_split_axes names"
            )
    names: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [parameter.name] * max(0, len(arguments) - len(names))
            break
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    if len(arguments) > len(names):
        raise TypeError(f"takes {len(names)} positional arguments but {len(arguments)} were given")
    return names[: len(arguments)]
