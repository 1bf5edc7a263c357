"""Hooks in torch: permanently on the model, on other modules and parameters only in steps that are saved.

Hooks on every module and parameter would slow down each step, including the 499 of 500 steps that are not saved. So
only the model has a permanent hook, which reports the start of a step. The other hooks are installed at the start of a
step that is saved, and removed when that step ends.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer

from clary.train.debugger.capture import losses
from clary.train.debugger.capture.choosing import needs_modules
from clary.train.debugger.capture.graphed_callables import stay, step_aside
from clary.train.debugger.capture.own_hooks import OwnHooks
from clary.train.debugger.capture.surroundings import is_compiled, is_traced
from clary.train.debugger.collection import Collection, CollectionKeys

GRADIENT = "gradient/"
OPTIMIZER = "optimizer/"
SEARCH_S = 0.5  # longest total time to find a model, so that a program without a model is not slowed down further
_WRAPPERS = ("_orig_mod", "module", "_fsdp_wrapped_module")  # attributes of the wrappers of torch.compile, DDP, FSDP


class ModuleWatch:
    """Keeps the model and the names of its modules and parameters, and reports the model's calls.

    Args:
        begin_step: called with the model before each call of the model.
        give_up: called with an error of the search for a model, since such an error must not fail the program.
    """

    def __init__(self, begin_step: Callable[[torch.nn.Module], None], give_up: Callable[[Exception], None]) -> None:
        self._begin_step, self._give_up = begin_step, give_up
        self._searched_s = 0.0
        self._handles: list[Any] = []
        self._searching: Any = None
        self._is_closed = False
        self._model: weakref.ref[torch.nn.Module] | None = None  # weak, so that a dropped model is freed
        self.names: dict[int, str] = {}  # names of modules, by id; the model's name is its class's name
        self.losses: dict[int, torch.nn.Module] = {}
        step_aside(self.without_hook)

    @property
    def model(self) -> torch.nn.Module | None:
        """The model, or None before it is known and after it was freed."""
        return None if self._model is None else self._model()

    def watch(self, model: torch.nn.Module) -> None:
        """Register a model; calls of the first model count steps.

        Of further models only inputs and outputs of modules are saved.
        """
        self._stop_searching()
        root = _unwrapped(model).__class__.__name__
        for name, module in model.named_modules():
            self.names.setdefault(id(module), _without_wrappers(name) or root)
        if self._model is None:
            self._model = weakref.ref(model)
            self._handles.append(model.register_forward_pre_hook(_Call(self._called)))

    def add_loss(self, loss: torch.nn.Module) -> None:
        """Register a module of any class as a loss."""
        self.losses[id(loss)] = loss

    def watch_for_first(self) -> None:
        """Register the first module that is called and has parameters to train."""
        self._searching = torch_module.register_module_forward_pre_hook(self._search)

    def parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Yield the model's parameters with their names in files, except lazy parameters, which have no shape yet."""
        model = self.model
        if model is not None:
            root = _unwrapped(model).__class__.__name__
            for name, parameter in model.named_parameters():
                if not torch.nn.parameter.is_lazy(parameter):
                    yield f"{root}_{_without_wrappers(name)}", parameter

    @contextlib.contextmanager
    def without_hook(self) -> Iterator[None]:
        """Remove the hook from the model within a block; calls within the block do not count as steps."""
        model, handles, self._handles = self.model, self._handles, []
        for handle in handles:
            handle.remove()
        try:
            yield
        finally:
            if model is not None and handles and not self._is_closed:
                self._handles.append(model.register_forward_pre_hook(_Call(self._called)))

    def close(self) -> None:
        """Remove all hooks from torch."""
        self._is_closed = True
        stay(self.without_hook)
        self._stop_searching()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _search(self, module: torch.nn.Module, _inputs: Any) -> None:
        if is_traced():
            return
        began_s = time.perf_counter()
        try:
            is_found = (
                self._model is None
                and not isinstance(module, torch.jit.ScriptModule)  # ScriptModule does not support hooks
                and any(parameter.requires_grad for parameter in module.parameters())
            )
            if is_found:
                self.watch(module)
        except Exception as error:  # noqa: BLE001 - a model of the user's may do as it likes with its methods
            self._give_up(error)
            return
        if is_found:
            self._begin_step(module)  # the new hook is not called for the present call
            return
        self._searched_s += time.perf_counter() - began_s
        if self._searched_s > SEARCH_S:
            self._stop_searching()

    def _stop_searching(self) -> None:
        if self._searching is not None:
            self._searching.remove()
            self._searching = None

    def _called(self, module: torch.nn.Module, _inputs: Any) -> None:
        if not is_traced():
            self._begin_step(module)


class _Call:
    """The hook on the model. Copies and pickles of the model, which include its hooks, get a function without effect.

    That function belongs to the standard library, so that a model that was pickled as a whole can be loaded without
    Clary.
    """

    def __init__(self, call: Callable[[torch.nn.Module, Any], None]) -> None:
        self._call = call

    def __call__(self, module: torch.nn.Module, inputs: Any) -> None:
        self._call(module, inputs)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class Seen(Protocol):
    """Receives tensors and calls from hooks."""

    def see_tensor(self, name: str, tensor: torch.Tensor) -> None:
        """Receive a tensor [any shape] by its name."""

    def see_module(self, name: str, kind: str, given: Any, result: Any) -> None:
        """Receive a call of a module.

        Args:
            name: name of the module.
            kind: its class; empty if the name is the class.
            given: arguments of the call.
            result: its result.
        """

    def settle(self) -> None:
        """Learn that a module's call has ended, or that a gradient is there."""


class StepWatch:
    """Hooks in torch for one step.

    Args:
        collections: the collections to save at the step.
        is_wanted: returns whether a tensor with a name is saved.
        own: hooks of a subclass of Hook, called in place of ours.
    """

    def __init__(
        self,
        modules: ModuleWatch,
        collections: list[Collection],
        seen: Seen,
        is_wanted: Callable[[str], bool],
        own: OwnHooks,
    ) -> None:
        self._modules = modules
        self._names = {one.name for one in collections}
        self._needs_modules = needs_modules(collections)
        self._seen, self._is_wanted, self._own = seen, is_wanted, own
        self._handles: list[Any] = []
        self._has_gradient: set[str] = set()

    def begin(self) -> None:
        """Save weights, and hook gradients, optimizers and modules; modules of compiled models are left alone."""
        for name, parameter in self._modules.parameters():
            if self._is_wanted(name):
                self._seen.see_tensor(name, parameter)
            if self._own.of_gradient is not None:
                if parameter.requires_grad:
                    self._has_gradient.add(name)
                    self._handles.append(parameter.register_hook(self._own.of_gradient(name)))
            elif parameter.requires_grad and parameter.is_leaf and self._is_wanted(GRADIENT + name):
                self._handles.append(parameter.register_post_accumulate_grad_hook(self._gradient_hook(name)))
        register = torch_optimizer.register_optimizer_step_pre_hook
        self._handles.append(register(self._before_optimizer))
        if CollectionKeys.OPTIMIZER_VARIABLES in self._names or CollectionKeys.ALL in self._names:
            self._handles.append(torch_optimizer.register_optimizer_step_post_hook(self._after_optimizer))
        model = self._modules.model
        if model is not None and not is_compiled(model.modules()):
            self._handles.append(torch_module.register_module_forward_hook(self._after_module))

    def end(self) -> None:
        """Remove all hooks from torch."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _gradient_hook(self, name: str) -> Callable[[torch.Tensor], None]:
        def see(parameter: torch.Tensor) -> None:
            if parameter.grad is not None:
                self._has_gradient.add(name)
                self._seen.see_tensor(GRADIENT + name, parameter.grad)

        return see

    def _before_optimizer(self, *_: Any) -> None:
        """Save gradients that no hook has reported: set by a library, or belonging to a sharded parameter."""
        for name, parameter in self._modules.parameters():
            if name not in self._has_gradient and parameter.grad is not None and self._is_wanted(GRADIENT + name):
                self._seen.see_tensor(GRADIENT + name, parameter.grad)

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        names = {id(parameter): name for name, parameter in self._modules.parameters()}
        for parameter, state in optimizer.state.items():
            for key, value in state.items():
                if isinstance(value, torch.Tensor) and id(parameter) in names:
                    self._seen.see_tensor(f"{OPTIMIZER}{names[id(parameter)]}_{key}", value)

    def _after_module(self, module: torch.nn.Module, given: Any, result: Any) -> None:
        if is_traced():
            return
        name = self._modules.names.get(id(module))
        is_loss = id(module) in self._modules.losses
        if name is not None or is_loss:
            self._seen.settle()
        if self._own.of_module is not None and (name is not None or is_loss):
            self._own.of_module(module, given, result)
        elif name is not None:
            if self._needs_modules:
                self._seen.see_module(name, module.__class__.__name__.lower(), given, result)
        elif not losses.calls_loss_function(module) and (
            is_loss
            or (
                isinstance(module, torch.nn.modules.loss._Loss) and not module.__class__.__module__.startswith("torch.")
            )
        ):
            self._seen.see_module(module.__class__.__name__, "", given, result)


def _unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """Return the model inside torch's wrappers, so that names are equal with and without wrappers."""
    children = dict(module.named_children())
    for name in _WRAPPERS:
        inner = children.get(name)
        if inner is not None and len(children) == 1:
            return _unwrapped(inner)
    return module


def _without_wrappers(name: str) -> str:
    parts = name.split(".")
    while parts and parts[0] in _WRAPPERS:
        parts.pop(0)
    return ".".join(part for part in parts if part not in ("_orig_mod", "_fsdp_wrapped_module"))
