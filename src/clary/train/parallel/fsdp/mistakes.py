"""Detection of mistakes in SMP v2 scripts that would silently train another model than intended.

Where: `training.transform` and `additions` call the checks and install the hooks.

[Note: marks] Marks are attributes of the parameters themselves, since FSDP keeps some parameters and replaces others;
an optimizer that a script made too early holds the replaced parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import clip_grad

from clary.train.parallel.fsdp.cuts import axes_of
from clary.train.parallel.fsdp.gradient_norm import axis_group
from clary.train.parallel.fsdp.state import state
from clary.train.parallel.fsdp.ties import refuse_split
from clary.train.parallel.layout.agreement import first_difference
from clary.train.parallel.mistakes.alike import digest
from clary.train.parallel.mistakes.taken_names import replace_everywhere

_LEFT = "_clary_left"  # attribute of a parameter that left the model: function that replaced it
_FSDP = "FSDP"  # value of `_LEFT`
_PIECE = "_clary_is_piece"  # attribute of a parameter of which other ranks hold other pieces
_FROM_RANK0 = "_clary_from_rank0"  # attribute of a model whose first group got rank 0's weights
_FIRST = "_clary_before_first_forward"  # attribute of a model before its first call
_SAMPLE = 16  # number of elements of each parameter to compare
_BY_NORM = clip_grad.clip_grad_norm_


def check_weights(model: nn.Module, group: Any) -> None:
    """Check that the models that the ranks of a group are about to cut have equal weights. All these ranks call it.

    The first elements of each parameter are compared. Parameters that any rank has on the meta device are skipped:
    `layers.weights` checks those.

    Raises: ValueError naming a parameter that differs.
    """
    own = {
        name: digest(one.detach().reshape(-1)[:_SAMPLE]) for name, one in model.named_parameters() if not one.is_meta
    }
    told = _told(own, group)
    common = set.intersection(*map(set, told))
    alike = [{name: value for name, value in one.items() if name in common} for one in told]
    if (found := first_difference(alike)) is not None:
        raise ValueError(
            f"tsm.transform: {found[1]} has different values on rank {found[0]} of the group that shares "
            "the model and on the first rank of that group: make the model on all ranks after the same "
            "torch.manual_seed, or from the same files, or let rank 0 send its weights, by "
            "load_state_dict_from_rank0=True and sync_module_states=True of FSDP"
        )


def note_transformed(model: nn.Module, before: Iterable[nn.Parameter], *, from_rank0: bool) -> None:
    """Mark the parameters that `transform` has replaced and cut in a model.

    Args:
        before: the model's parameters before `transform`.
        from_rank0: whether the first group got rank 0's weights.
    """
    _note_left(before, model, "tsm.transform")
    if axes_of(model):
        for one in model.parameters():
            setattr(one, _PIECE, True)
    vars(model)[_FROM_RANK0] = from_rank0
    if state.tp_size > 1 or state.cp_size > 1 or state.ep_size > 1:
        vars(model)[_FIRST] = True
        model.register_forward_pre_hook(_check_first_inputs, with_kwargs=True)


def check_synchronised(model: nn.Module, *, synchronises: bool) -> None:
    """Check that FSDP sends rank 0's weights to the ranks that did not get them from `transform`.

    Raises: ValueError if FSDP does not send them.
    """
    if vars(model).get(_FROM_RANK0) and not synchronises and state.world_size > state.tp_size:
        raise ValueError(
            "tsm.transform was called with load_state_dict_from_rank0=True, which gives rank 0's weights to its own "
            "group alone: give them to the others by FSDP(..., sync_module_states=True)"
        )


def check_not_left(model: nn.Module) -> None:
    """Check that FSDP is given no weight that a unit which the script made before took from another module.

    Raises: ValueError naming the weight, which would be trained apart, and its other owners if they are known.
    """
    for module in model.modules():
        for name, one in module._parameters.items():
            if getattr(one, _LEFT, None) == _FSDP and one is not None and one.requires_grad:
                refuse_split(model, [(module, name)])


def note_wrapped(unit: Any, before: Iterable[nn.Parameter]) -> None:
    """Mark the parameters that a unit of FSDP has replaced and cut."""
    _note_left(before, unit, _FSDP)
    handle = getattr(unit, "_handle", None)
    if handle is not None and (handle.uses_sharded_strategy or state.tp_size > 1 or state.ep_size > 1):
        for one in (handle.flat_param, *(handle.flat_param._params or [])):
            setattr(one, _PIECE, True)


def check_replicas(model: nn.Module, group: Any) -> None:
    """Check that torch's DistributedDataParallel would not average different slices as replicas.

    Args:
        group: the ranks over which DistributedDataParallel would average; None is all ranks.

    Raises: ValueError if the group contains ranks with different slices.
    """
    ranks = set(dist.get_process_group_ranks(group if group is not None else dist.group.WORLD))
    for axis in axes_of(model):
        if len(ranks & set(dist.get_process_group_ranks(axis_group(axis)))) > 1:
            raise ValueError(
                f"DistributedDataParallel was given a model that tsm.transform has cut ({axis}), and would average "
                "slices of different ranks: use FSDP, which knows the groups, or process_group="
                "tsm.state.rep_rank_process_group"
            )


def refuse_early_optimizer(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
    """Refuse an optimizer step on parameters that the model no longer has; runs as a hook before every step.

    Raises: RuntimeError.
    """
    given = [one for group in optimizer.param_groups for one in group["params"]]
    left = [one for one in given if hasattr(one, _LEFT)]
    if left:
        raise RuntimeError(
            f"{len(left)} of the {len(given)} parameters of {type(optimizer).__name__} no longer belong to the model, "
            f"since {getattr(left[0], _LEFT)} has replaced them, and stepping them trains nothing: make the optimizer "
            "of model.parameters() after tsm.transform and FSDP"
        )


def watch_clipping() -> None:
    """Make torch's `clip_grad_norm_` refuse gradients of which this rank has pieces; a second call does nothing."""
    replace_everywhere(_BY_NORM, clip_grad_norm_)


def unwatch_clipping() -> None:
    """Restore torch's own `clip_grad_norm_`."""
    replace_everywhere(clip_grad_norm_, _BY_NORM)


@functools.wraps(_BY_NORM)
def clip_grad_norm_(parameters: torch.Tensor | Iterable[torch.Tensor], *args: Any, **kwargs: Any) -> torch.Tensor:
    """Clip as torch does, by the norm of this rank's gradients.

    Raises: RuntimeError for parameters of which this rank has pieces.
    """
    given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    if any(hasattr(one, _PIECE) for one in given):
        raise RuntimeError(
            "torch.nn.utils.clip_grad_norm_ was given parameters that FSDP or tsm.transform has cut, and would scale "
            "each rank's pieces by a norm of their own: call torch.sagemaker.grad_norm.clip_grad_norm_(model, "
            "max_norm), or model.clip_grad_norm_(max_norm)"
        )
    return _BY_NORM(given, *args, **kwargs)


def _check_first_inputs(model: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
    """Check once that tensor group ranks got the same batch, and context group ranks different parts of a batch."""
    if not vars(model).pop(_FIRST, False):
        return
    if any(kind.__name__ == "FSDPModule" for one in model.modules() for kind in type(one).__mro__):  # by `fully_shard`
        raise RuntimeError(
            "fully_shard was given a model that tsm.transform has cut, and takes slices of different ranks for parts "
            "of one parameter: use torch.distributed.fsdp.FullyShardedDataParallel"
        )
    if state.tp_size > 1:
        own = {f"argument {place}": digest(one) for place, one in enumerate(args)}
        own |= {name: digest(one) for name, one in kwargs.items()}
        if (found := first_difference(_told(own, state.tp_process_group))) is not None:
            raise ValueError(
                f"{type(model).__name__}: {found[1]} of tensor rank {found[0]} differs from that of tensor "
                "rank 0, and the ranks of a tensor group work on one batch: load data by rank // "
                "tensor_parallel_degree (and // context_parallel_degree)"
            )
    tokens = kwargs.get("input_ids", args[0] if args else kwargs.get("inputs_embeds"))
    if state.cp_size == 1 or not isinstance(tokens, torch.Tensor) or bool((tokens == tokens.flatten()[0]).all()):
        return
    parts = _told({"": digest(tokens)}, state.cp_process_group)
    if all(one == parts[0] for one in parts):
        raise ValueError(
            f"{type(model).__name__}: all ranks of a context group were given the same tokens, of shape "
            f"{tuple(tokens.shape)}, and each needs its part of the sequences: batch = "
            "torch.sagemaker.context_parallel.utils.get_batch_for_cp_rank(batch)"
        )


def _note_left(before: Iterable[nn.Parameter], model: nn.Module, by: str) -> None:
    kept = {id(one) for one in model.parameters()}
    for one in before:
        if id(one) not in kept:
            setattr(one, _LEFT, by)


def _told(own: dict[str, str], group: Any) -> list[dict[str, str]]:
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, own, group=group)
    return everyone
