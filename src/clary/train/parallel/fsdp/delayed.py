"""Initialisation of a model from the meta device, unit by unit, while FSDP wraps it.

Where: scripts make the model under `torch.device("meta")` and pass the two functions of a `DelayedParamIniter` to FSDP:
one initialises each module's own parameters, the other checks a unit before it is flattened. A rank never holds more
than one whole unit. Ranks that start from the same seed draw the same values, whatever their shards; only for experts
that are modules do ranks draw different values.

[Note: ties] A parameter that two modules share is created once and assigned to both, which FSDP does not do.
[Note: slices] A parameter that `transform` has cut is drawn whole and then cut: ranks of a tensor group that start from
the same seed hold slices of the values that one rank would have drawn. So a rank briefly holds the whole parameters of
one module.
[Note: buffers] On the meta device the constructor's values of a buffer are lost. A module's `reset_parameters`,
`reset_buffers` or `reset_running_stats` may set them again; Hugging Face rotary embeddings compute their buffers from
`rope_init_fn` or `compute_default_rope_parameters`. Any other buffer raises an error that names it: a model with
arbitrary values in a buffer would train badly.
Source: SageMaker developer guide, "Delayed parameter initialization" of the library v2.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from clary.train.parallel.fsdp.cuts import Cut, cut_of
from clary.train.parallel.fsdp.experts.layer import drawing_apart
from clary.train.parallel.fsdp.gradient_norm import axis_group

_RESETS = ("reset_parameters", "_reset_parameters")
_ROPES = ("rope_init_fn", "compute_default_rope_parameters")


class DelayedParamIniter:
    """Initialises parameters that have no memory yet.

    Args:
        model: a model with parameters on the meta device, after `transform` and before FSDP wraps it.
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
        self._places: dict[int, list[tuple[nn.Module, str]]] = {}
        for module in model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None and parameter.is_meta:
                    self._places.setdefault(id(parameter), []).append((module, name))
        # Kept alive, since an id may be reused once its parameter is freed.
        self._kept = [parameter for parameter in model.parameters() if parameter.is_meta]
        self._wanting: set[str] = set()  # names of tensors with memory but without values

    def count_num_params(self) -> int:
        """Return the number of elements of all parameters; a shared parameter counts once."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def get_param_init_fn(self) -> Callable[[nn.Module], None]:
        """Return the function for FSDP's `param_init_fn`; it initialises one module, without its children."""
        return self._initialise_module

    def get_post_param_init_fn(self) -> Callable[[nn.Module], None]:
        """Return the function for FSDP's `post_param_init_fn`; it checks that one unit is initialised.

        The function raises RuntimeError naming a parameter or buffer without values.
        """
        return self._look_over

    @contextmanager
    def validate_params_and_buffers_inited(self, enabled: bool = True) -> Iterator[None]:
        """Check at the end of a block that the whole model is initialised.

        Raises: RuntimeError naming parameters and buffers that have no values.
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
        device = _device()
        buffers = {name: one for name, one in module._buffers.items() if one is not None and one.is_meta}
        slices = {}  # see [Note: slices]
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and parameter.is_meta:
                slice_ = self._give_memory(module, name, parameter, device)
                if slice_ is not None:
                    slices[name] = slice_
        for name, buffer in buffers.items():
            module._buffers[name] = torch.full_like(buffer, _unset(buffer.dtype), device=device)
        given = {name: one for name, one in [*module._parameters.items(), *module._buffers.items()] if one is not None}
        versions = {name: one._version for name, one in given.items()}
        # Ranks draw equal values for a parameter that is cut afterwards, but different values for experts that lie
        # whole on one rank.
        apart = contextlib.nullcontext() if slices else drawing_apart(module)
        with torch.no_grad(), apart:
            self._call(module)
            _fill_buffers(module)
            _fill_norm(module)
        owner = self._names.get(module, type(module).__name__)
        for name, one in given.items():
            now = getattr(module, name, None)
            if now is one and now is not None and now._version == versions[name] and _is_unset(now):
                self._wanting.add(f"{owner}.{name}")
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
        unset = torch.full(shape, _unset(parameter.dtype), dtype=parameter.dtype, device=device)
        self._put(module, name, parameter, unset)
        return None if cut is None else (parameter, cut)

    def _put(self, module: nn.Module, name: str, meta: nn.Parameter, values: torch.Tensor) -> None:
        real = nn.Parameter(values, meta.requires_grad)
        real.__dict__.update(meta.__dict__)
        for place, own_name in self._places.get(id(meta), [(module, name)]):  # see [Note: ties]
            place._parameters[own_name] = real

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

    def _look_over(self, module: nn.Module) -> None:
        without = [name for name, one in [*module.named_parameters(), *module.named_buffers()] if one.is_meta]
        if without or self._wanting:
            raise RuntimeError(
                f"delayed initialisation: {', '.join(sorted([*without, *self._wanting]))} has no values: define "
                "a reset_parameters or reset_buffers that sets it in the module that owns it, or make the buffer "
                'outside torch.device("meta")'
            )


def _fill_buffers(module: nn.Module) -> None:
    """Compute buffers as the module's constructor did; see [Note: buffers]."""
    if callable(getattr(module, "reset_buffers", None)):
        module.reset_buffers()
    if callable(getattr(module, "reset_running_stats", None)):
        module.reset_running_stats()
    frequencies = module._buffers.get("inv_freq")
    if frequencies is None or not hasattr(module, "config") or not _is_unset(frequencies):
        return  # `_init_weights` of transformers 5 computes them
    for name in _ROPES:
        compute = getattr(module, name, None)
        if compute is not None:
            takes_device = "device" in inspect.signature(compute).parameters
            values: Any = compute(module.config, *([frequencies.device] if takes_device else []))[0]
            frequencies.copy_(values)
            if isinstance(getattr(module, "original_inv_freq", None), torch.Tensor):
                module.original_inv_freq = frequencies
            return


def _fill_norm(module: nn.Module) -> None:
    """Set the weight of an RMSNorm, which `_init_weights` of older Hugging Face models leaves out."""
    weight = module._parameters.get("weight")
    if weight is not None and type(module).__name__.endswith("RMSNorm") and _is_unset(weight):
        weight.fill_(1)


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def _unset(dtype: torch.dtype) -> float | int | bool:
    """Return the value that marks memory of a dtype as not initialised."""
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return False if dtype is torch.bool else int(torch.iinfo(dtype).max)


def _is_unset(tensor: torch.Tensor) -> bool:
    if tensor.numel() == 0:
        return False
    unset = _unset(tensor.dtype)
    return bool((tensor.isnan() if unset != unset else tensor == unset).all())  # only NaN differs from itself
