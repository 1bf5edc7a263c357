"""Activation checkpointing: activations are recomputed in backward instead of kept.

Where: scripts mark modules with `set_activation_checkpointing`, or call `checkpoint` in their own forward. The engine
sets the ranks of modules with `use_placement`, and the offloader of kept inputs with `use_offloader`.

Torch's non-reentrant checkpoint does the recomputation. All tensors among the arguments, also nested tensors, are
passed to it one by one, so that all can be offloaded.
Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174; for the functions, the sources
named in `segments`.
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from clary.train.parallel.memory.offloading import Offloader
from clary.train.parallel.memory.segments import Owners, Segment, cut

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Placement:
    """The ranks that hold modules, for checkpointing.

    Args:
        own_rank: pipeline rank of this process.
        owner_of: returns the pipeline rank that holds a module; None if unknown.
        is_manual: whether the script placed modules itself; if so, a module on several ranks is an error.
        run_segment: called with the arguments of `run_segment` below; runs it on the rank that holds the segment. If
            None, children on other ranks are called one by one, and their owner keeps their activations.
    """

    own_rank: int
    owner_of: Callable[[nn.Module], int | None]
    is_manual: bool = False
    run_segment: Callable[..., Any] | None = None


@dataclass
class _State:
    placement: Placement | None = None
    offloader: Offloader | None = None


class _Depth(threading.local):
    """The nesting depth of checkpointed regions in this thread; inner regions keep and offload no tensors."""

    value = 0


_state = _State()
_depth = _Depth()


def use_placement(placement: Placement | None) -> None:
    """Set the placement of modules; None means that this process holds all modules."""
    _state.placement = placement


def use_offloader(offloader: Offloader | None) -> None:
    """Set the offloader of checkpointed modules' inputs; None does not offload them."""
    _state.offloader = offloader


def set_activation_checkpointing(
    module: nn.Module,
    preserve_rng_state: bool = True,
    pack_args_as_tuple: bool = False,
    strategy: str = "each",
) -> None:
    """Checkpoint every later call of a module; marking it again replaces the earlier options.

    Args:
        preserve_rng_state: whether dropout draws the same numbers in the recomputation.
        pack_args_as_tuple: for a `Sequential`: whether its children take one tuple; otherwise tuples are unpacked,
            except for children with a single parameter, such as layers of `smp.nn`.
        strategy: for a `Sequential`; see `segments`. A `Sequential` whose class overrides forward counts as a plain
            module.

    Raises:
        TypeError: `module` is not a module.
        ValueError: `strategy` or `pack_args_as_tuple` given for a module other than a `Sequential`, or unknown
            strategy. Raised by a call of the module: the script itself placed the module on several ranks.
    """
    _check_target(module, "set_activation_checkpointing")
    cut([], strategy)
    is_sequence = _is_sequence(module)
    if not is_sequence and (strategy != "each" or pack_args_as_tuple):
        raise ValueError(
            f"set_activation_checkpointing: strategy={strategy!r}, pack_args_as_tuple={pack_args_as_tuple} for a "
            f"{type(module).__name__}; they may be given for a torch.nn.Sequential only, whose forward is torch's own"
        )
    unset_activation_checkpointing(module)
    if isinstance(module, nn.Sequential) and is_sequence:
        forward: Any = _SequenceForward(module, strategy, preserve_rng_state, pack_args_as_tuple)
    else:
        forward = _ModuleForward(module, module.forward, preserve_rng_state)
    # An instance attribute, which `__call__` calls: so hooks run once per call, and parameter names stay.
    module.forward = forward


def unset_activation_checkpointing(module: nn.Module) -> None:
    """Remove a module's mark, if it has one."""
    marked = vars(module).get("forward")
    if isinstance(marked, _ModuleForward):
        module.forward = marked.forward
    elif isinstance(marked, _SequenceForward):
        del module.forward


def checkpoint(module: nn.Module, *args: Any, preserve_rng_state: bool = True) -> Any:
    """Checkpoint one call of a module.

    Raises: TypeError if it is not a module; ValueError as `set_activation_checkpointing`.
    """
    _check_target(module, "checkpoint")
    if not _can_checkpoint(module):
        return module(*args)
    return _run_checkpointed(module, args, {}, preserve_rng_state)


def checkpoint_sequential(
    sequential_module: nn.Sequential,
    input: Any,  # noqa: A002 - the name that scripts use
    strategy: str = "each",
    preserve_rng_state: bool = True,
    pack_args_as_tuple: bool = False,
) -> Any:
    """Checkpoint one call of a sequence, with its children grouped by `strategy`.

    Args:
        input: argument of the first child; for tuples see `pack_args_as_tuple` of `set_activation_checkpointing`.

    Raises: TypeError if it is not a `Sequential`; ValueError as `set_activation_checkpointing`.
    """
    if not isinstance(sequential_module, nn.Sequential):
        raise TypeError(
            f"checkpoint_sequential: got a {type(sequential_module).__name__}; expected a torch.nn.Sequential"
        )
    sequence = _SequenceForward(sequential_module, strategy, preserve_rng_state, pack_args_as_tuple)
    return sequence(input)


def run_segment(
    sequential: nn.Sequential,
    segment: Segment,
    value: Any,
    *,
    preserve_rng_state: bool = True,
    pack_args_as_tuple: bool = False,
) -> Any:
    """Call neighbouring children of a sequence, all on this rank, and recompute them together in backward.

    Args:
        segment: the children from `start` up to `stop`, exclusive; its owner is ignored.
        value: argument of the first child.
        preserve_rng_state: as in `set_activation_checkpointing`; so is `pack_args_as_tuple`.
    """
    children = list(sequential)[segment.start : segment.stop]

    def run(value: Any) -> Any:
        for child in children:
            value = _call(child, value, pack_args_as_tuple)
        return value

    return _run_checkpointed(run, (value,), {}, preserve_rng_state)


@dataclass(eq=False)
class _ModuleForward:
    """Replaces the forward of a marked module. A plain object, so that modules can be copied and pickled."""

    module: nn.Module
    forward: Callable[..., Any]
    preserve_rng_state: bool

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not _can_checkpoint(self.module):
            return self.forward(*args, **kwargs)
        return _run_checkpointed(self.forward, args, kwargs, self.preserve_rng_state)


@dataclass(eq=False)
class _SequenceForward:
    """Replaces the forward of a marked sequence."""

    module: nn.Sequential
    strategy: str
    preserve_rng_state: bool
    pack_args_as_tuple: bool

    def __call__(self, *args: Any) -> Any:
        # Like its children, a sequence may be called with several arguments or with one tuple.
        value: Any = args[0] if len(args) == 1 else args
        children = list(self.module)
        placement = _state.placement
        owners = [_owners(child) for child in children]
        for child, owner in zip(children, owners, strict=True):
            if owner.is_split:
                _refuse_split(child, owner)
        for segment in cut(owners, self.strategy):
            is_here = placement is None or segment.owner in (None, placement.own_rank)
            run = run_segment if is_here or placement is None else placement.run_segment
            if segment.is_checkpointed and run is not None:
                value = run(
                    self.module,
                    segment,
                    value,
                    preserve_rng_state=self.preserve_rng_state,
                    pack_args_as_tuple=self.pack_args_as_tuple,
                )
            else:
                for child in children[segment.start : segment.stop]:
                    value = _call(child, value, self.pack_args_as_tuple)
        return value


def _is_sequence(module: nn.Module) -> bool:
    """Return whether a module's forward only calls its children one by one."""
    forward = vars(module).get("forward")
    return type(module).forward is nn.Sequential.forward and (forward is None or isinstance(forward, _SequenceForward))


def _call(child: nn.Module, value: Any, pack_args_as_tuple: bool) -> Any:
    if not isinstance(value, tuple) or pack_args_as_tuple or (len(value) > 1 and _takes_one(type(child).forward)):
        return child(value)
    return child(*value)


@functools.cache
def _takes_one(forward: Callable[..., Any]) -> bool:
    """Return whether a class's `forward` takes a single value, so that a tuple must be passed whole."""
    try:
        _, *parameters = inspect.signature(forward).parameters.values()  # without `self`
    except (TypeError, ValueError):  # not a Python function, or a function without parameters
        return False
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return len(positional) == 1 and not any(one.kind is one.VAR_POSITIONAL for one in parameters)


def _check_target(module: Any, function: str) -> None:
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"{function}: got a {type(module).__name__}; expected an instance of torch.nn.Module (put a function into "
            "the forward of one)"
        )


def _owners(module: nn.Module) -> Owners:
    if _state.placement is None:
        return Owners()
    found = map(_state.placement.owner_of, module.modules())
    return Owners(frozenset(rank for rank in found if rank is not None))


def _can_checkpoint(module: nn.Module) -> bool:
    """Return whether a module lies whole on this rank; a module on another rank is checkpointed by that rank."""
    owners = _owners(module)
    if owners.is_split:
        _refuse_split(module, owners)
        return False
    return _state.placement is None or owners.ranks <= {_state.placement.own_rank}


def _refuse_split(module: nn.Module, owners: Owners) -> None:
    """Log that a module lies on several ranks and is not checkpointed.

    Raises: ValueError if the script placed it so.
    """
    what = (
        f"activation checkpointing: a {type(module).__name__} with {sum(1 for _ in module.parameters())} parameters "
        f"lies on pipeline ranks {', '.join(map(str, sorted(owners.ranks)))}; what is checkpointed must lie on one"
    )
    if _state.placement is not None and _state.placement.is_manual:
        raise ValueError(f"{what}: mark its children instead, or place all of it with one smp.set_partition")
    if module not in _told:
        _told.add(module)
        _log.warning("%s: it is not checkpointed", what)


_told: weakref.WeakSet[nn.Module] = weakref.WeakSet()


@contextmanager
def _inside() -> Iterator[None]:
    _depth.value += 1
    try:
        yield
    finally:
        _depth.value -= 1


def _run_checkpointed(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], preserve_rng_state: bool
) -> Any:
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    leaves, shape = pytree.tree_flatten((args, kwargs))

    def run(*leaves: Any) -> Any:
        args, kwargs = pytree.tree_unflatten(list(leaves), shape)
        with _inside():
            return function(*args, **kwargs)

    def call() -> Any:
        return torch_checkpoint(run, *leaves, use_reentrant=False, preserve_rng_state=preserve_rng_state)

    if _state.offloader is None or _depth.value > 0:
        return call()
    with _state.offloader.region([leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]):
        return call()
