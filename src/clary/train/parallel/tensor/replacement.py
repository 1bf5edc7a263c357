"""Replacement of a model's marked modules by distributed modules, if possible.

Where: DistributedModel calls `replace_modules` on every rank, before optimizers are made.
Source: as `attention`, "Enabling Tensor Parallelism".
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import nn

from clary.train.parallel import runtime
from clary.train.parallel.marks import copy_mark
from clary.train.parallel.memory.delayed import delay_param_initialization
from clary.train.parallel.tensor.collectives import NotDivisibleError
from clary.train.parallel.tensor.embedding import DistributedEmbedding
from clary.train.parallel.tensor.huggingface.reader import MODELS, registrations
from clary.train.parallel.tensor.linear import DistributedLinear
from clary.train.parallel.tensor.module import DistributedModule
from clary.train.parallel.tensor.registry import (
    ARGUMENTS,
    Arguments,
    Registration,
    StateDict,
    Translations,
    mark_of,
    registered,
)
from clary.train.parallel.tensor.settings import WITHOUT_EFFECT, LayerSettings, NotSupportedError
from clary.train.parallel.tensor.slices import cut_state_dict


@dataclass(frozen=True)
class Change:
    """The outcome for one marked module.

    Args:
        name: path of the module in the model; empty for the model itself.
        reason: reason why the module was kept; None if it was replaced.
    """

    name: str
    module_class: str
    distributed_class: str
    reason: str | None = None

    def __str__(self) -> str:
        what = f"{self.name or 'the model'} ({self.module_class})"
        if self.reason is None:
            return f"{what}: replaced by {self.distributed_class}"
        return f"{what}: kept, {self.reason}"


@dataclass
class Replacements:
    """The outcome of `replace_modules`.

    Args:
        root: the model; a new object if the model itself was replaced.
        changes: outcomes in the order of the model's modules, without modules inside of replaced modules.
        translations: two functions for each replaced class: from its distributed state to the original, and back.
        without_effect: keywords of marks that have no effect here.
        unknown: keywords of marks that no distributed class takes.
    """

    root: nn.Module
    changes: list[Change] = field(default_factory=list)
    translations: list[Translations] = field(default_factory=list)
    without_effect: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    _originals: list[weakref.ref[nn.Module]] = field(default_factory=list)

    def originals(self) -> list[nn.Module]:
        """Return the replaced original modules that are still alive."""
        return [module for one in self._originals if (module := one()) is not None]

    def __str__(self) -> str:
        lines = ["Tensor parallelism:", *(f"  {change}" for change in self.changes)]
        if any(change.reason is None for change in self.changes):
            lines.append("Replaced modules start with new weights: load a state into the DistributedModel for others.")
        if self.without_effect:
            lines.append(f"Keywords without effect here: {', '.join(self.without_effect)}.")
        if self.unknown:
            lines.append(f"Keywords that no class put in takes: {', '.join(self.unknown)}: misspelt, or of no use?")
        return "\n".join(lines)


def replace_modules(root: nn.Module, *, carries_weights: bool = False) -> Replacements:
    """Replace the outermost supported and marked modules, in place. Every rank calls it on the same model.

    With a tensor group of one rank, modules are replaced too, since scripts look for layers of `smp.nn` with any
    degree. A module is kept, with a reason, if it shares weights with an outside module, if only some of its parameters
    are frozen, if the degree does not divide its sizes, if the distributed version lacks one of its features, if its
    mark or its init_hook forbids the replacement, or if it was made before its class was registered and its arguments
    cannot be derived from it (for modules of torch and transformers they can). If a module is kept, the modules inside
    of it are tried.

    Args:
        carries_weights: whether replacements start with the weights of the replaced modules, if a conversion is known;
            otherwise they start with new weights.

    Raises: errors of the program's own hooks.
    """
    done = Replacements(root)
    known = {**_of_torch(), **_of_transformers()}
    names = _names_of_parameters(root)
    given: dict[str, bool] = {}  # keyword of a mark -> whether a class takes it

    def visit(name: str, module: nn.Module, parent: nn.Module | None, config: Any) -> None:
        config = getattr(module, "config", config)
        mark = mark_of(module)
        own = known.get(type(module))
        registration = registered(type(module)) or own
        if mark is not None and mark.is_enabled and registration is not None:
            words = (name, type(module).__name__, registration.distributed_class.__name__)
            taken = _taken_by(registration.distributed_class)
            given.update({key: given.get(key, False) or key in taken for key in mark.keywords})
            arguments = _arguments_of(name, module, own or registration, config)
            sharing = _sharing(name, module, names)
            made = _try_replace(module, registration, arguments, mark.keywords, sharing, carries_weights)
            if isinstance(made, DistributedModule):
                if parent is None:
                    done.root = made
                else:
                    setattr(parent, name.rpartition(".")[2], made)
                done.changes.append(Change(*words))
                done._originals.append(weakref.ref(module))
                if registration.translations is not None and arguments is not None:
                    pair = registration.translations(arguments[0][0])
                    done.translations += [pair] if pair not in done.translations else []
                return
            done.changes.append(Change(*words, reason=made))
        if not isinstance(module, DistributedModule):
            for child_name, child in list(module.named_children()):
                visit(f"{name}.{child_name}" if name else child_name, child, module, config)

    visit("", root, None, None)
    done.without_effect = [key for key in given if key in WITHOUT_EFFECT and key != "distribute_embedding"]
    done.unknown = [key for key, is_taken in given.items() if not is_taken and key not in WITHOUT_EFFECT]
    return done


def _try_replace(
    module: nn.Module,
    registration: Registration,
    arguments: Arguments | None,
    keywords: Mapping[str, Any],
    sharing: str | None,
    carries_weights: bool,
) -> DistributedModule | str:
    """Return the replacement, or the reason why the module is kept."""
    if sharing is not None:
        return sharing
    if registration.distributed_class is DistributedEmbedding and not keywords.get("distribute_embedding", True):
        return "distribute_embedding is false"
    if len({parameter.requires_grad for parameter in module.parameters()}) > 1:
        return "some of its parameters are frozen and some are not"
    if arguments is None:
        return "it was made before its class was registered: register the class first"
    args, kwargs = tuple(arguments[0]), arguments[1]
    try:
        wanted = (args, kwargs) if registration.init_hook is None else registration.init_hook(*args, **kwargs)
        if wanted is None:
            return "its init_hook gave nothing"
        made = _make(module, registration.distributed_class, wanted, keywords)
    except (NotDivisibleError, NotSupportedError) as error:
        return str(error)
    if carries_weights and registration.to_distributed is not None:
        state = registration.to_distributed(module.state_dict(), args[0] if args else None)
        if not any(value.is_meta for value in state.values()):
            made.load_state_dict(cut_state_dict(made, state))
    if {parameter.requires_grad for parameter in module.parameters()} == {False}:
        made.requires_grad_(requires_grad=False)
    made.train(module.training)
    copy_mark(module, made)
    _adapt_calls(made, registration)
    return made


def _arguments_of(name: str, module: nn.Module, registration: Registration, config: Any) -> Arguments | None:
    """Return the arguments of a module's constructor; None if unknown.

    Args:
        config: configuration of the nearest enclosing module that has one. Blocks of transformers before 4.40 do not
            store the configuration and layer index that their constructor takes; the index is in their name.
    """
    if ARGUMENTS in module.__dict__:
        recorded: Arguments = module.__dict__[ARGUMENTS]
        return recorded
    if registration.arguments_of is None:
        return None
    try:
        return registration.arguments_of(module)
    except AttributeError:
        number = name.rpartition(".")[2]
        return None if config is None else ((config, int(number) if number.isdigit() else None), {})


def _make(
    module: nn.Module, distributed_class: type[DistributedModule], wanted: Arguments, keywords: Mapping[str, Any]
) -> DistributedModule:
    """Return a distributed module on the replaced module's device, and in its dtype unless `fp16_params` is set."""
    args, kwargs = tuple(wanted[0]), dict(wanted[1])
    parameters = inspect.signature(distributed_class).parameters
    taken = _taken_by(distributed_class) - (WITHOUT_EFFECT - set(parameters))  # the summary prints the other keywords
    overrides = {key: value for key, value in keywords.items() if key in taken}
    named = dict(zip(parameters, args, strict=False))  # by name, so that a keyword may override a positional argument
    first = next(module.parameters(), torch.empty(0))
    keeps_dtype = first.is_floating_point() and not runtime.current().configuration.fp16_params
    # A parameter on the meta device is replaced by a delayed parameter, which is initialised when it gets memory.
    with delay_param_initialization() if first.is_meta else torch.device(first.device):
        made = distributed_class(*args[len(parameters) :], **{**named, **kwargs, **overrides})
        if keeps_dtype and any(parameter.dtype != first.dtype for parameter in made.parameters()):
            made.to(first.dtype)
    return made


def _taken_by(distributed_class: type[DistributedModule]) -> set[str]:
    """Return the keywords that a class takes."""
    parameters = inspect.signature(distributed_class).parameters
    takes_settings = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    return set(parameters) | ({one.name for one in fields(LayerSettings)} | WITHOUT_EFFECT if takes_settings else set())


def _adapt_calls(made: DistributedModule, registration: Registration) -> None:
    """Hook a replacement so that it accepts the replaced module's calls and returns the replaced module's results."""
    forward_hook, return_hook = registration.forward_hook, registration.return_hook
    if forward_hook is not None:

        def adapt(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            positional, named = forward_hook(*args, **kwargs)
            return tuple(positional), dict(named)

        made.register_forward_pre_hook(adapt, with_kwargs=True)
    if return_hook is not None:

        def answer(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            return return_hook(output)

        made.register_forward_hook(answer)


def _names_of_parameters(root: nn.Module) -> dict[int, list[str]]:
    """Return all names of every parameter, by its id."""
    found: dict[int, list[str]] = {}
    for name, parameter in root.named_parameters(remove_duplicate=False):
        found.setdefault(id(parameter), []).append(name)
    return found


def _sharing(name: str, module: nn.Module, names: dict[int, list[str]]) -> str | None:
    """Return a text on a weight shared with an outside module, which prevents a replacement; else None."""
    for parameter in module.parameters():
        for other in names[id(parameter)]:
            if name and not other.startswith(f"{name}."):
                return f"it shares a weight with {other.rpartition('.')[0]}"
    return None


def _of_torch() -> dict[type[nn.Module], Registration]:
    return {
        nn.Linear: Registration(
            nn.Linear,
            DistributedLinear,
            arguments_of=lambda one: ((one.in_features, one.out_features, one.bias is not None), {}),
            to_distributed=_as_it_is,
        ),
        nn.Embedding: Registration(
            nn.Embedding,
            DistributedEmbedding,
            arguments_of=lambda one: (
                (
                    one.num_embeddings,
                    one.embedding_dim,
                    one.padding_idx,
                    one.max_norm,
                    one.norm_type,
                    one.scale_grad_by_freq,
                    one.sparse,
                ),
                {},
            ),
            to_distributed=_as_it_is,
        ),
    }


def _as_it_is(state: StateDict, first_argument: Any) -> StateDict:
    return state


def _of_transformers() -> dict[type[nn.Module], Registration]:
    """Return registrations of the transformers models whose modules the program has imported."""
    found: dict[type[nn.Module], Registration] = {}
    for model, module_name in MODELS.items():
        if module_name in sys.modules:
            for one in registrations(model, sys.modules[module_name]):
                found[one.module_class] = one
    return found
