"""The object that `smp.step` returns; independent of the framework.

Where: `step` and `tf_parallel.step` make it. Scripts also decorate functions in the body of a class, some of them with
`self` and some without: `self.train_step(model, batch)` may mean either. The name of the first argument decides, and
for names that tell nothing, whether the call fits the function without the instance.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import MethodType
from typing import Any

_OF_METHODS = ("self", "cls")  # names of an argument that the caller leaves out
_ANY = inspect.Parameter.VAR_POSITIONAL


class StepFunction:
    """A decorated function of a step: has the name, the documentation and the signature of the script's function.

    As an attribute of a class it becomes a method if its first argument is named `self` or `cls`, or is `*args`, as
    that of a decorator. Otherwise it stays a function, as with AWS's library, and gets the instance only in calls that
    fit it with the instance and not without.

    Args:
        function: the script's function.
        run: runs the step; its attributes are also those of this object.
    """

    __qualname__: str  # of the script's function

    def __init__(self, function: Callable[..., Any], run: Callable[..., Any]) -> None:
        self._run = run
        self._signature = _signature(function)
        self._is_method = _is_method(self._signature)
        functools.update_wrapper(self, run)
        self.__wrapped__ = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step. Raises: as `smp.step` says."""
        return self._run(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Return a method of the instance, this object, or a call that decides between them by its arguments.

        Before Python 3.13, `classmethod` passes the class as the instance; it passes the class to any function.
        """
        if instance is None:
            return self
        if self._is_method or instance is owner:
            return MethodType(self, instance)
        return self if self._signature is None else _Call(self, self._signature, instance)

    def __reduce__(self) -> str:
        """Return the name by which a pickle finds this object again, as for a function."""
        return self.__qualname__

    def __repr__(self) -> str:
        return f"<smp.step of {self.__wrapped__!r}>"


class _Call:
    """A step function as an attribute of an instance, which each call passes or not; else equal to the function."""

    def __init__(self, function: StepFunction, signature: inspect.Signature, instance: Any) -> None:
        self._function, self._signature, self._instance = function, signature, instance
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step. Raises: as `smp.step` says."""
        if not self._fits(*args, **kwargs) and self._fits(self._instance, *args, **kwargs):
            return self._function(self._instance, *args, **kwargs)
        return self._function(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return other is self._function or (
            isinstance(other, _Call) and (other._function, other._instance) == (self._function, self._instance)
        )

    def __hash__(self) -> int:
        return hash(self._function)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._instance, self._function.__wrapped__.__name__)

    def __repr__(self) -> str:
        return repr(self._function)

    def _fits(self, *args: Any, **kwargs: Any) -> bool:
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError:
            return False
        return True


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # a callable of C without a signature
        return None


def _is_method(signature: inspect.Signature | None) -> bool:
    first = None if signature is None else next(iter(signature.parameters.values()), None)
    return first is not None and (first.name in _OF_METHODS or first.kind is _ANY)
