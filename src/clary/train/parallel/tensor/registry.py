"""Registry of module classes' distributed versions, and marks of the modules to distribute.

Where: programs mark modules and register classes before or while they build a model; `replacement` reads both.

[Note: marks] `tensor_parallelism` marks every module that is made in its block, `set_tensor_parallelism` marks a module
and its descendants. The last mark wins. A mark is a request; whether a module is replaced also depends on its class,
its sizes and its weights.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import torch
from torch import nn

from clary.train.parallel.tensor.module import DistributedModule

Arguments = tuple[Any, Mapping[str, Any]]  # positional arguments, keywords
StateDict = dict[str, torch.Tensor]
Translations = tuple[Callable[..., StateDict], Callable[..., StateDict]]

MARK = "_tensor_parallelism"  # key of a module's Mark in the module's `__dict__`
_RECORDS = "records_arguments_of"  # attribute of a recording constructor that holds its class
ARGUMENTS = "_tensor_parallel_arguments"  # key of the constructor's arguments in `__dict__`


@dataclass(frozen=True)
class Mark:
    """A program's request to distribute a module or not; see [Note: marks].

    Args:
        keywords: arguments that override the results of `init_hook`.
    """

    is_enabled: bool
    keywords: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Registration:
    """The distributed version of one module class, and the conversions of arguments, results and states.

    Args:
        init_hook: converts constructor arguments to those of the distributed class; None passes them unchanged.
        forward_hook: converts arguments of `forward` in the same way.
        return_hook: converts the distributed module's result to the replaced class's.
        arguments_of: derives the constructor's arguments from a module, if they were not recorded.
        to_distributed: converts the whole state of a module to that of its replacement; its second argument is the
            first argument of `init_hook`.
        translations: function of the first argument of `init_hook`, which returns two functions for checkpoints: from
            the distributed state to the replaced class's, and back.
    """

    module_class: type[nn.Module]
    distributed_class: type[DistributedModule]
    init_hook: Callable[..., Arguments | None] | None = None
    forward_hook: Callable[..., Arguments] | None = None
    return_hook: Callable[[Any], Any] | None = None
    arguments_of: Callable[[Any], Arguments] | None = None
    to_distributed: Callable[[StateDict, Any], StateDict] | None = None
    translations: Callable[[Any], Translations] | None = None


_registered: dict[type[nn.Module], Registration] = {}
_wanted: ContextVar[Mark | None] = ContextVar("tensor_parallelism", default=None)
_lock = Lock()
_num_contexts = 0
_own_init: Callable[..., None] = nn.Module.__init__


def tp_register(
    dist_module: type[DistributedModule],
    init_hook: Callable[..., Arguments | None] | None = None,
    forward_hook: Callable[..., Arguments] | None = None,
    return_hook: Callable[[Any], Any] | None = None,
) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Return a class decorator that registers the distributed version of the class.

    Args: as `Registration`; `dist_module` is its `distributed_class`.

    Raises: as `tp_register_with_module`, from the decorator.
    """

    def decorate(module_class: type[nn.Module]) -> type[nn.Module]:
        tp_register_with_module(module_class, dist_module, init_hook, forward_hook, return_hook)
        return module_class

    return decorate


def tp_register_with_module(
    module_cls: type[nn.Module],
    dist_module: type[DistributedModule],
    init_hook: Callable[..., Arguments | None] | None = None,
    forward_hook: Callable[..., Arguments] | None = None,
    return_hook: Callable[[Any], Any] | None = None,
) -> None:
    """Register the distributed version of a class; modules that are made from now on can be replaced.

    Args: as `Registration`; `module_cls` is its `module_class`, `dist_module` its `distributed_class`.

    Raises: TypeError if `module_cls` is not a class of modules, or `dist_module` not a class of distributed modules.
    """
    if not (isinstance(dist_module, type) and issubclass(dist_module, DistributedModule)):
        raise TypeError(f"tp_register: {dist_module!r} is no subclass of smp.nn.DistributedModule")
    if not (isinstance(module_cls, type) and issubclass(module_cls, nn.Module)):
        raise TypeError(f"tp_register: {module_cls!r} is no subclass of torch.nn.Module")
    _record_arguments(module_cls)
    _registered[module_cls] = Registration(module_cls, dist_module, init_hook, forward_hook, return_hook)


def registered(module_class: type[nn.Module]) -> Registration | None:
    """Return the program's registration of exactly this class, or None."""
    return _registered.get(module_class)


def unregister(module_class: type[nn.Module]) -> None:
    """Remove a registration. For tests."""
    del _registered[module_class]
    own = module_class.__dict__["__init__"]
    setattr(module_class, "__init__", own.__wrapped__)  # noqa: B010 - mypy takes no assignment to it


@contextmanager
def tensor_parallelism(enabled: bool = True, **kwargs: Any) -> Iterator[None]:
    """Mark all modules that are made in the block; see [Note: marks].

    Args:
        kwargs: arguments that override those of the distributed modules; a module ignores keywords that it does not
            take, and the summary lists keywords that no module takes.
    """
    token = _wanted.set(Mark(bool(enabled), kwargs))
    _count_contexts(1)
    try:
        yield
    finally:
        _count_contexts(-1)
        _wanted.reset(token)


def set_tensor_parallelism(module: nn.Module, enabled: bool = True, **kwargs: Any) -> None:
    """Mark a module and its descendants; arguments as in `tensor_parallelism`."""
    for each in module.modules():
        each.__dict__[MARK] = Mark(bool(enabled), kwargs)


def mark_of(module: nn.Module) -> Mark | None:
    """Return the mark of a module, None without one."""
    mark: Mark | None = module.__dict__.get(MARK)
    return mark


def _count_contexts(change: int) -> None:
    """Count open contexts; while any is open, torch's module constructor is patched to mark modules."""
    global _num_contexts, _own_init
    with _lock:
        was_open = _num_contexts > 0
        _num_contexts += change
        if not was_open:
            _own_init = nn.Module.__init__
            nn.Module.__init__ = functools.wraps(_own_init)(_marking_init)
        elif _num_contexts == 0:
            nn.Module.__init__ = _own_init


def _marking_init(self: nn.Module, *args: Any, **kwargs: Any) -> None:
    _own_init(self, *args, **kwargs)
    mark = _wanted.get()
    if mark is not None:  # None in a thread without a context
        self.__dict__[MARK] = mark


def _record_arguments(module_class: type[nn.Module]) -> None:
    """Patch a class's constructor to record its arguments on each module, for a later replacement."""
    own = module_class.__init__
    if getattr(own, "__dict__", {}).get(_RECORDS) is module_class:
        return

    @functools.wraps(own)
    def recording_init(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        if type(self) is module_class:
            self.__dict__[ARGUMENTS] = (args, kwargs)
        own(self, *args, **kwargs)

    recording_init.__dict__[_RECORDS] = module_class
    setattr(module_class, "__init__", recording_init)  # noqa: B010 - mypy takes no assignment to it
