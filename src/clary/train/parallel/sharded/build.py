"""Cutting of a model into shards."""

from __future__ import annotations

import logging

import torch.distributed as dist
from torch import nn

from clary.train.parallel.sharded.flat import Flat
from clary.train.parallel.sharded.groups import ShardingGroups
from clary.train.parallel.sharded.layout import FlatLayout, ParameterSpec, plan_flats
from clary.train.parallel.sharded.model import ShardedModel
from clary.train.parallel.sharded.settings import ShardingSettings
from clary.train.parallel.sharded.units import Units, find_units

_LOG = logging.getLogger(__name__)


def shard_model(module: nn.Module, groups: ShardingGroups, settings: ShardingSettings | None = None) -> ShardedModel:
    """Cut a model's parameters into shards, which modules gather before use. All replicas call it.

    The module is changed in place: its parameters keep identity and shape, and hold NaN while they are not gathered.
    Wrap optimizers of these parameters in `ShardedOptimizer`.

    Args:
        module: a module with all its values, on the device on which it will run.

    Raises: ValueError if a parameter has no values (meta), is complex or has a gradient, or the model has no parameter
        to shard.
    """
    settings = settings or ShardingSettings()
    units = find_units(module, settings.unit_classes)
    floating = [parameter for parameter in units.users if parameter.is_floating_point()]
    _check(units, floating)
    if settings.broadcasts_first:
        first = dist.get_global_rank(groups.replicas, 0)
        for tensor in [*(one for one in units.users if not one.is_floating_point()), *module.buffers()]:
            dist.broadcast(tensor.data, first, group=groups.replicas)
    by_name = {units.names[parameter]: parameter for parameter in floating}
    plans = plan_flats(
        [_spec(units, parameter, settings) for parameter in floating],
        degree=groups.degree,
        persistence_threshold=settings.param_persistence_threshold,
        most_elements=settings.reduce_bucket_size,
    )
    flats: list[Flat] = []
    needs: dict[nn.Module, list[Flat]] = {module: []}
    for plan in plans:
        parameters = [by_name[name] for name in plan.names]
        if settings.broadcasts_first:
            for parameter in parameters:  # frees each whole parameter as soon as it is cut
                dist.broadcast(parameter.data, dist.get_global_rank(groups.replicas, 0), group=groups.replicas)
        layout = FlatLayout(
            plan.names, tuple(tuple(one.shape) for one in parameters), groups.degree if plan.is_sharded else 1
        )
        compute_dtype = settings.compute_dtype or parameters[0].dtype
        flat = Flat(
            layout,
            parameters,
            groups if plan.is_sharded else None,
            compute_dtype=compute_dtype,
            reduce_dtype=settings.reduce_dtype or compute_dtype,
        )
        flats.append(flat)
        if plan.is_sharded:
            for user in sorted(plan.users):
                needs.setdefault(units.modules[user], []).append(flat)
    if groups.degree > 1 and not any(plan.is_sharded for plan in plans):
        _LOG.warning(
            "nothing is sharded over the %d ranks: every parameter has fewer elements than "
            "sdp_param_persistence_threshold, which is %d, and stays whole on each rank; the largest has %d",
            groups.degree,
            settings.param_persistence_threshold,
            max(parameter.numel() for parameter in floating),
        )
    return ShardedModel(module, flats, needs, groups, settings)


def _spec(units: Units, parameter: nn.Parameter, settings: ShardingSettings) -> ParameterSpec:
    kind = (settings.compute_dtype or parameter.dtype, parameter.dtype, parameter.requires_grad, parameter.device)
    return ParameterSpec(units.names[parameter], tuple(parameter.shape), frozenset(units.users[parameter]), kind)


def _check(units: Units, floating: list[nn.Parameter]) -> None:
    if not floating:
        raise ValueError("sharded data parallelism: the model has no parameters of floating point")
    for parameter in units.users:
        if parameter.is_meta or parameter.dtype.is_complex:
            what = (
                "has no values (it is on meta): give the module its values first" if parameter.is_meta else "is complex"
            )
            raise ValueError(f"sharded data parallelism: parameter {units.names[parameter]} {what}")
        if parameter.requires_grad and parameter.grad is not None:
            raise ValueError(
                f"sharded data parallelism: parameter {units.names[parameter]} has a gradient already: shard the model "
                "before its first backward pass, or clear gradients"
            )
