"""Hooks of subclasses of Hook: programs override smdebug's `forward_hook` and `backward_hook` to save other tensors.

Where: `module_watch` calls them at the steps that are saved. `ModuleHooks` has what such code calls in turn.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

_GRADIENT = "gradient/"
_NOT_CALLED = ("forward_pre_hook", "fhook", "bhook")  # methods of smdebug's hook that Clary's has no use for
_log = logging.getLogger("clary.debugger")

OfModule = Callable[[torch.nn.Module, Any, Any], Any]
OfGradient = Callable[[str], Callable[[torch.Tensor], Any]]


@dataclass(frozen=True)
class OwnHooks:
    """The hooks that a subclass overrides; None for each hook that it leaves.

    Args:
        of_module: called with a module, its arguments and its result.
        of_gradient: returns, for a parameter's name, what is called with its gradient.
    """

    of_module: OfModule | None = None
    of_gradient: OfGradient | None = None

    def guarded(self, give_up: Callable[[Exception], None], *, strict: bool) -> OwnHooks:
        """Return the hooks such that an error in them ends the saving, not the training.

        Args:
            give_up: called with the error.
            strict: whether to raise errors instead.
        """
        if strict:
            return self

        def safe(call: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(call)
            def run(*args: Any) -> Any:
                try:
                    return call(*args)
                except Exception as error:  # noqa: BLE001 - code of the program, in a call that must go on
                    give_up(error)
                    return None

            return run

        of_gradient = self.of_gradient
        return OwnHooks(
            None if self.of_module is None else safe(self.of_module),
            None if of_gradient is None else lambda name: safe(of_gradient(name)),
        )


class Names(Protocol):
    """Names of modules and registered losses, by `id`."""

    names: dict[int, str]
    losses: dict[int, torch.nn.Module]


class Capture(Protocol):
    """Saves tensors with the present step."""

    @property
    def modules(self) -> Names:
        """The names of modules."""

    def see_values(self, name: str, kind: str, side: str, values: Any) -> None:
        """Save inputs or outputs of a module.

        Args:
            name: name of the module.
            kind: its class.
            side: "input" or "output".
            values: a tensor, or a nest of tensors.
        """

    def see_tensor(self, name: str, tensor: torch.Tensor) -> None:
        """Save a tensor [any shape] if a collection wants it."""

    def save_in_any_case(self, name: str, value: torch.Tensor) -> None:
        """Save a tensor [any shape]."""


class ModuleHooks:
    """Methods of smdebug's hook that subclasses override or call; Hook derives from it."""

    _capture: Capture

    def forward_hook(self, module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        """Save inputs and outputs of a module, after its call; a subclass may override it.

        Args: as for torch's `register_forward_hook`.
        """
        name, kind = self.module_maps[module], module.__class__.__name__.lower()
        self._capture.see_values(name, kind, "input", inputs)
        self._capture.see_values(name, kind, "output", outputs)

    def backward_hook(self, tname: str) -> Callable[[torch.Tensor], Any]:
        """Return a function that saves a gradient as `gradient/TNAME`; a subclass may override it."""

        def save(gradient: torch.Tensor) -> None:
            if gradient is not None:
                self._save_for_tensor(_GRADIENT + tname, gradient)

        return save

    @property
    def module_maps(self) -> NamesOfModules:
        """Module -> its name."""
        return NamesOfModules(self._capture)

    def _write_inputs(self, name: str, inputs: Any) -> None:
        self._capture.see_values(name, name.lower(), "input", inputs)

    def _write_outputs(self, name: str, outputs: Any) -> None:
        self._capture.see_values(name, name.lower(), "output", outputs)

    def _save_for_tensor(self, tensor_name: str, tensor_value: torch.Tensor, check_before_write: bool = True) -> None:
        if check_before_write:
            self._capture.see_tensor(tensor_name, tensor_value)
        else:
            self._capture.save_in_any_case(tensor_name, tensor_value)

    def _own_hooks(self) -> OwnHooks:
        """Return the hooks that this object's class overrides; name in the log overridden hooks that are not called."""
        kind = type(self)
        for name in _NOT_CALLED:
            if hasattr(kind, name):
                _log.warning(
                    "debugger: %s.%s is never called: override forward_hook or backward_hook", kind.__name__, name
                )
        return OwnHooks(
            None if kind.forward_hook is ModuleHooks.forward_hook else self.forward_hook,
            None if kind.backward_hook is ModuleHooks.backward_hook else self.backward_hook,
        )


class NamesOfModules:
    """Names of the registered models' modules, by module, and of registered losses."""

    def __init__(self, capture: Capture) -> None:
        self._modules = capture.modules

    def __contains__(self, module: torch.nn.Module) -> bool:
        return id(module) in self._modules.names or id(module) in self._modules.losses

    def __getitem__(self, module: torch.nn.Module) -> str:
        if module not in self:
            raise KeyError(f"{module.__class__.__name__} is in no registered model")
        return self._modules.names.get(id(module)) or module.__class__.__name__
