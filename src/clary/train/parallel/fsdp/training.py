"""Functions that scripts call around FSDP: `transform` before it, `clip_grad_norm_` in every step."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from clary.train.parallel.fsdp.context.spreading import spread_sequences
from clary.train.parallel.fsdp.experts.configuration import read_moe_config
from clary.train.parallel.fsdp.experts.spreading import spread_experts
from clary.train.parallel.fsdp.gradient_norm import clip_gradients
from clary.train.parallel.fsdp.layers.cutting import cut_layers, name_classes
from clary.train.parallel.fsdp.mistakes import check_weights, note_transformed
from clary.train.parallel.fsdp.state import is_initialized, state
from clary.train.parallel.fsdp.ties import adopt_ties, tie_weights, ties_of
from clary.train.parallel.tensor.collectives import TensorGroup


def transform(
    model: nn.Module,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    config: Any = None,
    load_state_dict_from_rank0: bool = False,
    cp_comm_type: str = "p2p",
) -> nn.Module:
    """Cut a Hugging Face model by the configured degrees, in place; return it on `device` and in `dtype`.

    Models built like Llama, Mistral, Mixtral and GPT-NeoX are supported. Their layers also become instances of
    `TransformerLayer`, even with degrees of 1. Weights that lost their ties on the meta device are tied again. Every
    rank calls it.

    Args:
        device: ignored if a parameter is on the meta device.
        config: a MoEConfig, or a dict of its fields.
        load_state_dict_from_rank0: whether rank 0 sends its weights to its tensor or expert group; FSDP with
            `sync_module_states=True` sends them to the other groups, whose parameters may be on the meta device until
            then. Weights are tied as on rank 0. If False, each rank cuts its own model, which ranks must make from the
            same seed or the same files.
        cp_comm_type: "p2p" or "all_gather".

    Raises:
        RuntimeError: before `tsm.init`.
        ValueError: cp_comm_type has another value; the model is not supported, is cut already, lacks required values,
            or differs between ranks of a group; or config leaves experts whole, but expert_parallel_degree is above 1.
        NotDivisibleError: tensor_parallel_degree does not divide the number of heads or inner channels.
        TypeError: config is not a MoEConfig or a dict of its fields.
    """
    if not is_initialized():
        raise RuntimeError("tsm.transform: call tsm.init first, on every rank")
    if cp_comm_type not in ("p2p", "all_gather"):
        raise ValueError(f"tsm.transform: cp_comm_type is {cp_comm_type!r}; expected p2p or all_gather")
    before = list(model.parameters())
    _tie(model, from_rank0=load_state_dict_from_rank0)
    for group in (state.tp_process_group, state.ep_process_group):
        if group is not None and not load_state_dict_from_rank0:
            check_weights(model, group)
    if state.tp_size > 1:
        cut_layers(
            model,
            TensorGroup(state.tp_process_group, state.tp_rank, state.tp_size),
            from_rank0=load_state_dict_from_rank0,
            is_first_group=state.rank < state.tp_size,
        )
    name_classes(model)
    _spread_experts(model, config, is_sent=load_state_dict_from_rank0 and state.rank < state.ep_size)
    if state.cp_size > 1:
        spread_sequences(model, TensorGroup(state.cp_process_group, state.cp_rank, state.cp_size), cp_comm_type)
    state.is_transformed = True
    note_transformed(model, before, from_rank0=load_state_dict_from_rank0)
    if any(parameter.is_meta for parameter in model.parameters()):
        device = None
    return model if device is None and dtype is None else model.to(device=device, dtype=dtype)


def _tie(model: nn.Module, *, from_rank0: bool) -> None:
    """Tie the weights of a model on the meta device, and with `from_rank0` those of all ranks as on rank 0."""
    if any(parameter.is_meta for parameter in model.parameters()):
        tie_weights(model)
    if from_rank0:
        told = [ties_of(model)]
        dist.broadcast_object_list(told)
        adopt_ties(model, told[0])


def _spread_experts(model: nn.Module, config: Any, *, is_sent: bool) -> None:
    """Spread a model's experts over ranks; on one rank, only balance tokens, and only if `config` is given."""
    if state.ep_size == 1 and (config is None or not _has_experts(model)):
        return
    moe = read_moe_config(config)
    if moe.smp_moe:
        group = TensorGroup(state.ep_process_group, state.ep_rank, state.ep_size)
        spread_experts(model, group, moe, from_first_rank=is_sent)
    elif state.ep_size > 1:
        raise ValueError(
            f"transform: expert_parallel_degree is {state.ep_size} and smp_moe of the MoEConfig is False, which leaves "
            "experts where they are: set the degree to 1, or smp_moe to True"
        )


def _has_experts(model: nn.Module) -> bool:
    return any({"gate", "experts"} <= {name for name, _ in part.named_children()} for part in model.modules())


def clip_grad_norm_(model: nn.Module, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
    """Scale gradients so that their norm over all ranks is at most `max_norm`, in place. Every rank calls it.

    Args:
        model: the outermost FSDP module, a wrapper of it such as `offload_wrapper`, or a model that is not sharded.

    Returns: the norm of the whole model's gradients before scaling, a scalar.
    """
    if state.tp_size > 1 or state.ep_size > 1:
        return clip_gradients(model, max_norm, norm_type)
    if isinstance(model, FullyShardedDataParallel):
        return model.clip_grad_norm_(max_norm, norm_type)
    if FullyShardedDataParallel.fsdp_modules(model):
        return clip_gradients(model, max_norm, norm_type)
    return torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm, norm_type)
