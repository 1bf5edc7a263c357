"""Initialisation of a model from the meta device, unit by unit, while FSDP wraps it.

Where: scripts make the model under `torch.device("meta")` and pass the two functions of a `DelayedParamIniter` to FSDP:
one initialises each module's own parameters, the other checks a unit before it is flattened. A rank never holds more
than one whole unit. Ranks that start from the same seed draw the same values, whatever their shards; only for experts
that are modules do ranks draw different values.

[Note: ties] Models that `init_empty_weights` of accelerate made have lost their ties (see `ties`), so the constructor
calls `tie_weights` of a model on the meta device. A parameter that several modules share is then created once and
assigned to all, which FSDP does not do, even if `init_method_using_config` replaces it. The function after the
initialisation of a unit ties again what another `param_init_fn` separated, and calls `tie_weights` of the unit.
[Note: slices] A parameter that `transform` has cut is drawn whole and then cut: ranks of a tensor group that start from
the same seed hold slices of the values that one rank would have drawn. So a rank briefly holds the whole parameters of
one module.
[Note: buffers] On the meta device the constructor's values of a buffer are lost. A module's `reset_parameters`,
`reset_buffers` or `reset_running_stats` may set them again, and `constructor_buffers` computes those of Hugging Face's
models. Any other buffer raises an error that names it: a model with arbitrary values in a buffer would train badly.
Source: SageMaker developer guide, "Delayed parameter initialization" of the library v2.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from clary.train.parallel.fsdp.constructor_buffers import fill_buffers
from clary.train.parallel.fsdp.cuts import Cut, cut_of
from clary.train.parallel.fsdp.experts.layer import drawing_apart
from clary.train.parallel.fsdp.gradient_norm import axis_group
from clary.train.parallel.fsdp.modules import default_device, is_unset, unset
from clary.train.parallel.fsdp.ties import Place, is_flattened, put, refuse_split, tie_weights, tied_places

_RESETS = ("reset_parameters", "_reset_parameters")


class NotInitialisedError(AssertionError, RuntimeError):
    """Parameters or buffers have no values; an AssertionError, as the developer guide documents."""


class DelayedParamIniter:
    """Initialises parameters that have no memory yet.

    Args:
        model: a model with parameters on the meta device, after `transform` and before FSDP wraps it. Its `tie_weights`
            is called.
        init_method_using_config: initialises one module's own parameters, in place, as `_init_weights` of Hugging Face
            models does. None uses the model's `_init_weights` if it has one, otherwise each module's
            `reset_parameters`.
        verbose: print every module that is initialised.
    """

    def __init__(
        self,
        model: nn.Module,
        init_method_using_config: Callable[[nn.Module], None] | None = None,
        verbose: bool = False,
    ) -> None:
        self.model = model
        self.verbose = verbose
        self._initialise = init_method_using_config or getattr(model, "_init_weights", None)
        self._names = {module: name or "the model" for name, module in model.named_modules()}
        if any(parameter.is_meta for parameter in model.parameters()):
            tie_weights(model)  # see [Note: ties]
        self._ties = tied_places(model)
        self._tied = {place: places for places in self._ties for place in places}
        self._wanting: dict[str, Place] = {}  # tensors with memory but without values, by name

    def count_num_params(self, module: nn.Module | None = None, *args: nn.Parameter) -> int:
        """Return the number of elements of parameters; a shared parameter counts once.

        Args:
            module: the module whose parameters are counted; None is the model.
            args: parameters that are counted too.
        """
        counted = [*(self.model if module is None else module).parameters(), *args]
        return sum({id(parameter): parameter.numel() for parameter in counted}.values())

    def get_param_init_fn(self) -> Callable[[nn.Module], None]:
        """Return the function for FSDP's `param_init_fn`; it initialises one module, without its children."""
        return self._initialise_module

    def get_post_param_init_fn(self) -> Callable[[nn.Module], None]:
        """Return the function for FSDP's `post_param_init_fn`; it ties a unit's weights and checks their values.

        It calls `tie_weights` of the unit, if there is one. It raises NotInitialisedError, an AssertionError and a
        RuntimeError, naming parameters or buffers without values.
        """
        return self._finish

    @contextmanager
    def validate_params_and_buffers_inited(self, enabled: bool = True) -> Iterator[None]:
        """Check at the end of a block that the whole model is initialised.

        Raises: NotInitialisedError, an AssertionError and a RuntimeError, naming parameters and buffers that have no
            values.
        """
        yield
        if enabled:
            self._look_over(self.model)

    def _initialise_module(self, module: nn.Module) -> None:
        own = [tensor for tensor in [*module._parameters.values(), *module._buffers.values()] if tensor is not None]
        if not any(tensor.is_meta for tensor in own):
            return
        if self.verbose:
            print(f"tsm: initialising {self._names.get(module, type(module).__name__)}", flush=True)
        device = default_device()
        buffers = {name: one for name, one in module._buffers.items() if one is not None and one.is_meta}
        slices = {}  # see [Note: slices]
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and parameter.is_meta:
                slice_ = self._give_memory(module, name, parameter, device)
                if slice_ is not None:
                    slices[name] = slice_
        for name, buffer in buffers.items():
            module._buffers[name] = torch.full_like(buffer, unset(buffer.dtype), device=device)
        given = {name: one for name, one in [*module._parameters.items(), *module._buffers.items()] if one is not None}
        versions = {name: one._version for name, one in given.items()}
        # Ranks draw equal values for a parameter that is cut afterwards, but different values for experts that lie
        # whole on one rank.
        apart = contextlib.nullcontext() if slices else drawing_apart(module)
        with torch.no_grad(), apart:
            self._call(module)
            fill_buffers(module)
            _fill_norm(module)
        owner = self._names.get(module, type(module).__name__)
        for name, one in given.items():
            now = getattr(module, name, None)
            if not isinstance(now, torch.Tensor) or now.is_meta:
                continue
            is_left = now._version == versions[name] if now is one else now.is_floating_point()
            if is_left and is_unset(now):
                self._wanting[f"{owner}.{name}"] = module, name
            if isinstance(now, nn.Parameter) and now is not one:
                put(now, self._places(module, name))
        for name, (meta, cut) in slices.items():
            group = axis_group(cut.axis)
            own = cut.of(module._parameters[name], dist.get_rank(group), dist.get_world_size(group))
            self._put(module, name, meta, own)

    def _give_memory(
        self, module: nn.Module, name: str, parameter: nn.Parameter, device: torch.device
    ) -> tuple[nn.Parameter, Cut] | None:
        """Allocate a whole parameter without values; return the old parameter and its cut if it is to be cut."""
        cut = cut_of(module, name)
        if cut is not None and not cut.parts:
            cut = None
        shape = parameter.shape if cut is None else cut.whole_shape(parameter.shape)
        whole = torch.full(shape, unset(parameter.dtype), dtype=parameter.dtype, device=device)
        self._put(module, name, parameter, whole)
        return None if cut is None else (parameter, cut)

    def _put(self, module: nn.Module, name: str, meta: nn.Parameter, values: torch.Tensor) -> None:
        real = nn.Parameter(values, meta.requires_grad)
        real.__dict__.update(meta.__dict__)
        put(real, self._places(module, name))

    def _places(self, module: nn.Module, name: str) -> list[Place]:
        return self._tied.get((module, name), [(module, name)])  # see [Note: ties]

    def _call(self, module: nn.Module) -> None:
        if self._initialise is not None:
            self._initialise(module)
            return
        for name in _RESETS:
            if callable(getattr(module, name, None)):
                getattr(module, name)()
                return
        if any(one is not None for one in module._parameters.values()):
            raise RuntimeError(
                f"delayed initialisation: {self._names.get(module, type(module).__name__)}, a {type(module).__name__}, "
                "has parameters and no reset_parameters: give it one, or give DelayedParamIniter "
                "init_method_using_config"
            )

    def _finish(self, unit: nn.Module) -> None:
        inside = set(unit.modules())
        own = [places for places in self._ties if any(module in inside for module, _ in places)]
        for places in own:
            self._tie(places, inside)
        if not any(_is_flat(place) for places in own for place in places):  # a weight that a unit holds cannot be set
            tie_weights(unit)
        for owner, (module, name) in list(self._wanting.items()):
            parameter = module._parameters.get(name)
            if module in inside and parameter is not None and not parameter.is_meta and not is_unset(parameter):
                del self._wanting[owner]  # it has the values of the parameter to which it was tied
        self._look_over(unit)

    def _tie(self, places: list[Place], inside: set[nn.Module]) -> None:
        flat = [_is_flat(place) for place in places]
        if any(flat) and not all(flat) and _is_trained(places):
            refuse_split(self.model, places)
        shared = places[0][0]._parameters.get(places[0][1])
        if shared is not None and not any(flat) and all(module in inside for module, _ in places):
            put(shared, places)

    def _look_over(self, module: nn.Module) -> None:
        without = [name for name, one in [*module.named_parameters(), *module.named_buffers()] if one.is_meta]
        if without or self._wanting:
            raise NotInitialisedError(
                f"delayed initialisation: {', '.join(sorted([*without, *self._wanting]))} has no values: define "
                "a reset_parameters or reset_buffers that sets it in the module that owns it, or make the buffer "
                'outside torch.device("meta")'
            )


def _is_flat(place: Place) -> bool:
    """Return whether a unit of FSDP holds the parameter of a place."""
    module, name = place
    parameter = module._parameters.get(name)
    return parameter is None or is_flattened(parameter)


def _is_trained(places: list[Place]) -> bool:
    """Return whether tied parameters are trained; a unit that took one leaves a view of it at best."""
    return any(getattr(getattr(module, name, None), "requires_grad", False) for module, name in places)


def _fill_norm(module: nn.Module) -> None:
    """Set the weight of an RMSNorm, which `_init_weights` of older Hugging Face models leaves out."""
    weight = module._parameters.get("weight")
    if weight is not None and type(module).__name__.endswith("RMSNorm") and is_unset(weight):
        weight.fill_(1)
