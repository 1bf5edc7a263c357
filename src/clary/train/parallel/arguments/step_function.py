"""The object that `smp.step` returns; independent of the framework.

Where: `step` and `tf_parallel.step` make it. Scripts also decorate functions in the body of a class, some of them with
`self` and some without: `self.train_step(model, batch)` may mean either. The name of the first argument decides.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import MethodType
from typing import Any

_OF_METHODS = ("self", "cls")  # names of an argument that the caller leaves out


class StepFunction:
    """A decorated function of a step: has the name, the documentation and the signature of the script's function.

    As an attribute of a class it becomes a method only if its first argument is named `self` or `cls`; otherwise it
    stays a function, as with AWS's library.

    Args:
        function: the script's function.
        run: runs the step; its attributes are also those of this object.
    """

    __qualname__: str  # of the script's function

    def __init__(self, function: Callable[..., Any], run: Callable[..., Any]) -> None:
        self._run = run
        self._is_method = _is_method(function)
        functools.update_wrapper(self, run)
        self.__wrapped__ = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step. Raises: as `smp.step` says."""
        return self._run(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Return a method of the instance, or this object.

        Before Python 3.13, `classmethod` passes the class as the instance; it passes the class to any function.
        """
        if instance is None or not (self._is_method or instance is owner):
            return self
        return MethodType(self, instance)

    def __reduce__(self) -> str:
        """Return the name by which a pickle finds this object again, as for a function."""
        return self.__qualname__

    def __repr__(self) -> str:
        return f"<smp.step of {self.__wrapped__!r}>"


def _is_method(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a callable of C without a signature
        return False
    return next(iter(parameters), "") in _OF_METHODS
