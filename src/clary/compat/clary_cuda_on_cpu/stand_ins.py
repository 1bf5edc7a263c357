"""Stand-ins for kernel libraries that need a GPU to be installed: apex, flash_attn, Transformer Engine.

Where: in rehearsals, scripts import a stand-in by the library's name if the environment lacks the library. The
stand-ins compute the same results on the CPU with torch's own functions; FP8 is not rehearsed, numbers keep their
precision. An import of a missing name raises an error with that name.

Source: the documentation of apex's `multi_tensor_apply` and of Transformer Engine's PyTorch and recipe pages.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import sys
from collections.abc import Callable, Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any

from .flash_attention import FlashAttention, flash_attn_func


def stand_in_for_kernels() -> None:
    """Add a finder of the modules in `_MODULES` after all other finders: an installed library has precedence."""
    if not any(isinstance(finder, StandInFinder) for finder in sys.meta_path):
        sys.meta_path.append(StandInFinder())


class StandInFinder(MetaPathFinder):
    """Finds the modules in `_MODULES`."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return a spec for a module in `_MODULES`; None for other modules, and for `find_spec` without an import.

        Libraries such as transformers call `find_spec` to check whether apex is installed, and would then use parts of
        apex that the stand-in lacks.

        Args: as `importlib.abc.MetaPathFinder.find_spec`; `path` and `target` have no effect.
        """
        if fullname not in _MODULES or _is_asked_alone():
            return None
        return ModuleSpec(fullname, _StandInLoader(), origin="clary: stands in for it in rehearsals", is_package=True)


class _StandInLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return None: Python makes the module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Fill the module with its names from `_MODULES`, and make it refuse every other name."""
        name = module.__name__

        def refuse(word: str) -> Any:
            if word.startswith("__"):
                raise AttributeError(word)
            if f"{name}.{word}" in _MODULES:  # libraries import their own submodules
                return importlib.import_module(f"{name}.{word}")
            raise AttributeError(
                f"{name}.{word} is not rehearsed on the CPU: the stand-in for {name} has only "
                f"{', '.join(sorted(_MODULES[name]))}; remove its use for the rehearsal, or run the script on "
                "a GPU"
            )

        vars(module).update(_MODULES[name], __getattr__=refuse)


def _is_asked_alone() -> bool:
    """Return whether `importlib.util.find_spec` is one of the nearest callers: then no import is in progress."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_CALLERS):
        if frame is None or frame.f_globals.get("__name__") == "importlib.util":
            return frame is not None
        frame = frame.f_back
    return False


def multi_tensor_applier(operation: Callable[..., Any], overflow: Any, tensor_lists: Any, *arguments: Any) -> Any:
    """Apply an operation of `amp_C` to lists of tensors.

    Args:
        operation: called with a chunk length, followed by the other arguments.
        overflow: a tensor that the operation fills with 1 if a number is not finite.
        tensor_lists: as the operation takes them.
        arguments: further positional arguments of the operation.

    Returns: the operation's result.
    """
    return operation(_CHUNK_ELEMENTS, overflow, tensor_lists, *arguments)


def multi_tensor_scale(chunk: int, overflow: Any, tensor_lists: Any, scale: float) -> None:
    """Write each tensor of the first list, times `scale`, into the tensor at the same index of the second list.

    If a tensor is not finite, `overflow` becomes 1.

    Args:
        chunk: without effect.
        overflow: a tensor of any shape.
        tensor_lists: two lists; tensors at the same index have the same shape.
    """
    for source, target in zip(*tensor_lists, strict=True):
        target.copy_(source * scale)
        if not bool(source.isfinite().all()):
            overflow.fill_(1)


def multi_tensor_l2norm(chunk: int, overflow: Any, tensor_lists: Any, per_tensor: bool = False) -> tuple[Any, Any]:
    """Return the joint norm of the first list's tensors, shape [1], and on request the norm of each tensor.

    Args:
        chunk: without effect.
        overflow: without effect.
        tensor_lists: only the first list is used.
        per_tensor: whether the second result has the norm of each tensor, [tensors], in place of None.
    """
    import torch

    norms = [tensor.float().norm() for tensor in tensor_lists[0]]
    each = torch.stack(norms) if norms else torch.zeros(0)
    return each.norm().reshape(1), each if per_tensor else None


class Format(enum.Enum):
    """Kinds of FP8."""

    E4M3 = "E4M3"
    E5M2 = "E5M2"
    HYBRID = "HYBRID"


class DelayedScaling:
    """A recipe of FP8, which keeps its arguments and has no effect."""

    def __init__(self, **given: Any) -> None:
        vars(self).update(given)


@contextlib.contextmanager
def fp8_autocast(enabled: bool = True, **given: Any) -> Iterator[None]:
    """Do nothing: computations keep their present precision."""
    yield


def checkpoint(function: Callable[..., Any], *arguments: Any, **given: Any) -> Any:
    """Compute a function again in the backward pass, as torch's own checkpoint does.

    Args:
        given: arguments of the function, and arguments of Transformer Engine's checkpoint (`_OF_CHECKPOINT`), which are
            dropped.
    """
    from torch.utils.checkpoint import checkpoint as again

    kept = {name: value for name, value in given.items() if name not in _OF_CHECKPOINT}
    return again(function, *arguments, use_reentrant=False, **kept)


_CALLERS = 3  # find_spec calls a finder through two functions of importlib
_CHUNK_ELEMENTS = 2048 * 32  # the value of apex's own applier
_OF_CHECKPOINT = ("distribute_saved_activations", "get_rng_state_tracker", "tp_group", "use_reentrant")
_MODULES: dict[str, dict[str, Any]] = {
    "amp_C": {"multi_tensor_scale": multi_tensor_scale, "multi_tensor_l2norm": multi_tensor_l2norm},
    "apex": {},
    "apex.multi_tensor_apply": {"multi_tensor_applier": multi_tensor_applier},
    "flash_attn": {"flash_attn_func": flash_attn_func},
    "flash_attn.flash_attention": {"FlashAttention": FlashAttention},
    "flash_attn.flash_attn_interface": {"flash_attn_func": flash_attn_func},
    "transformer_engine": {},
    "transformer_engine.common": {},
    "transformer_engine.common.recipe": {"Format": Format, "DelayedScaling": DelayedScaling},
    "transformer_engine.pytorch": {"fp8_autocast": fp8_autocast, "checkpoint": checkpoint},
}
