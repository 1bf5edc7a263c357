"""Patches that `tsm.init` applies to torch's FSDP: constructor and config arguments, groups, whole states.

[Note: patches] Scripts import the classes before they call `init`, so the classes themselves are patched, which also
changes their subclasses; `remove` restores everything. Some patched functions are private:
`_init_utils._move_module_to_device`, which FSDP calls after a unit's parameters got their values and before it lists,
synchronises and flattens them, the functions in `_MATERIALISE`, which give parameters on the meta device memory and
would break ties, and those in `slice_groups.ADDITIONS`. They exist in torch 2.6 to 2.13; `check` raises an error if one
of them is missing.

[Note: CPUs] With `sync_module_states`, FSDP refuses parameters on the CPU, since NCCL cannot send them. Without a GPU
the backend can send them, so the patch removes that check.
Source: SageMaker developer guide, "SageMaker model parallel library v2 reference".
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, ShardingStrategy, _init_utils
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from clary.train.parallel.fsdp import mistakes
from clary.train.parallel.fsdp.checkpoint import sharded_optimizer, slice_groups
from clary.train.parallel.fsdp.checkpoint.full_state import state_additions
from clary.train.parallel.fsdp.checkpoint.slice_folders import folder_additions
from clary.train.parallel.fsdp.experts.wrapping import expert_wrapping
from clary.train.parallel.fsdp.gradient_norm import clip_gradients
from clary.train.parallel.fsdp.state import state
from clary.train.parallel.fsdp.ties import check_units, keeping_ties, naming, trained_ties

PostInit = Callable[[torch.nn.Module], None]

_MOVE = "_move_module_to_device"
_MATERIALISE = ("_materialize_with_param_init_fn", "_materialize_meta_module")
_SYNC_CHECK = "_check_module_states_for_sync_module_states"
_HYBRID = (ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2)
_post_param_init_fn: ContextVar[PostInit | None] = ContextVar("clary_post_param_init_fn", default=None)
_originals: dict[tuple[Any, str], Any] = {}  # the owner's own attribute, None if it was inherited
_handles: list[Any] = []  # handles of hooks


def check() -> None:
    """Check that this torch has the names that the additions need.

    Raises: RuntimeError naming a missing function.
    """
    for name in (_MOVE, *_MATERIALISE):
        if not callable(getattr(_init_utils, name, None)):
            raise RuntimeError(
                f"torch.sagemaker: FSDP of torch {torch.__version__} has no {name}; torch 2.6 to 2.13 have it"
            )
    slice_groups.check()


def install() -> None:
    """Install the additions; a second call does nothing."""
    if _originals:
        return
    fsdp = FullyShardedDataParallel
    _replace(fsdp, "__init__", _constructor(fsdp.__init__))
    _replace(FullStateDictConfig, "__init__", _config_constructor(FullStateDictConfig.__init__))
    _replace(_init_utils, _MOVE, _moving(getattr(_init_utils, _MOVE)))
    for name in _MATERIALISE:
        _replace(_init_utils, name, _materialising(getattr(_init_utils, name)))
    if hasattr(_init_utils, _SYNC_CHECK) and not torch.cuda.is_available():
        _replace(_init_utils, _SYNC_CHECK, lambda _: None)  # see [Note: CPUs]
    for name, addition in state_additions().items():
        _replace(fsdp, name, addition)
    for module, name in slice_groups.ADDITIONS:
        _replace(module, name, slice_groups.with_groups_of_slices(getattr(module, name)))
    for owner, name, method in folder_additions():
        _replace(owner, name, method)
    _replace(fsdp, "clip_grad_norm_", _clipping(fsdp.clip_grad_norm_))
    _replace(DistributedDataParallel, "__init__", _replicas(DistributedDataParallel.__init__))
    sharded_optimizer.install()
    _handles.append(register_optimizer_step_pre_hook(mistakes.refuse_early_optimizer))
    mistakes.watch_clipping()


def remove() -> None:
    """Restore torch's own FSDP."""
    for (owner, name), original in _originals.items():
        if original is None:
            delattr(owner, name)
        else:
            setattr(owner, name, original)
    _originals.clear()
    sharded_optimizer.remove()
    while _handles:
        _handles.pop().remove()
    mistakes.unwatch_clipping()


def _replace(owner: Any, name: str, new: Any) -> None:
    _originals[owner, name] = vars(owner).get(name)
    setattr(owner, name, new)


def _constructor(original: Any) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def construct(self: Any, *args: Any, post_param_init_fn: PostInit | None = None, **kwargs: Any) -> None:
        _check_transformed()
        arguments = signature.bind(self, *args, **kwargs).arguments
        model = arguments["module"]
        mistakes.check_synchronised(model, synchronises=bool(arguments.get("sync_module_states")))
        with naming(model):
            mistakes.check_not_left(model)
            before, ties = list(model.parameters()), trained_ties(model)
            if state.expert_groups is None or not expert_wrapping(arguments, state.expert_groups):
                _shard_by_degree(arguments)
            if post_param_init_fn is None:  # also None for the inner units that this unit's constructor wraps
                original(**arguments)
            else:
                token = _post_param_init_fn.set(post_param_init_fn)
                try:
                    original(**arguments)
                finally:
                    _post_param_init_fn.reset(token)
            check_units(self, ties)
            mistakes.note_wrapped(self, before)

    return construct


def _clipping(original: Any) -> Any:
    @functools.wraps(original)
    def clip_grad_norm_(self: Any, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        if state.tp_size > 1 or state.ep_size > 1:  # torch's own method counts one slice only
            return clip_gradients(self, max_norm, norm_type)
        norm: torch.Tensor = original(self, max_norm, norm_type)
        return norm

    return clip_grad_norm_


def _replicas(original: Any) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        arguments = signature.bind(self, *args, **kwargs).arguments
        mistakes.check_replicas(arguments["module"], arguments.get("process_group"))
        original(self, *args, **kwargs)

    return construct


def _check_transformed() -> None:
    """Check that a model was transformed if the degrees require it.

    Raises: RuntimeError naming the degrees.
    """
    degrees = {
        "tensor_parallel_degree": state.tp_size,
        "expert_parallel_degree": state.ep_size,
        "context_parallel_degree": state.cp_size,
    }
    asked = [f"{name} is {degree}" for name, degree in degrees.items() if degree > 1]
    if asked and not state.is_transformed:
        raise RuntimeError(
            f"FSDP: {' and '.join(asked)}, and tsm.transform was not called, so the model is not cut: "
            "call model = tsm.transform(model) before FSDP, or set the degree to 1"
        )


def _shard_by_degree(arguments: dict[str, Any]) -> None:
    """Replace the strategy and process group in FSDP's arguments by those for the configured degrees."""
    degree = state.hybrid_shard_degree
    if degree == 0 and state.tp_size == 1:
        return
    groups: Any = (state.shard_process_group, state.rep_rank_process_group)
    if degree == 1:
        arguments["sharding_strategy"] = ShardingStrategy.NO_SHARD
        if state.tp_size == 1:
            return
        groups = state.rep_rank_process_group
    elif degree == 0 and arguments.get("sharding_strategy") not in _HYBRID:
        groups = state.shard_process_group
    elif arguments.get("sharding_strategy") is not ShardingStrategy._HYBRID_SHARD_ZERO2:
        arguments["sharding_strategy"] = ShardingStrategy.HYBRID_SHARD
    given = arguments.get("process_group")
    if arguments.get("device_mesh") is not None or (given is not None and given != groups):
        raise ValueError(
            f"FSDP was given a process_group or a device_mesh, but hybrid_shard_degree is {degree} and "
            f"tensor_parallel_degree is {state.tp_size}, from which FSDP's groups are made: leave these "
            "arguments out, or set hybrid_shard_degree to 0 and tensor_parallel_degree to 1"
        )
    arguments["process_group"] = groups


def _moving(original: Any) -> Any:
    @functools.wraps(original)
    def move(module: torch.nn.Module, *rest: Any, **named: Any) -> Any:
        after = _post_param_init_fn.get()
        if after is not None:
            after(module)
        return original(module, *rest, **named)

    return move


def _materialising(original: Any) -> Any:
    @functools.wraps(original)
    def materialise(root_module: torch.nn.Module, *rest: Any, **named: Any) -> Any:
        with keeping_ties(root_module):
            return original(root_module, *rest, **named)

    return materialise


def _config_constructor(original: Any) -> Any:
    @functools.wraps(original)
    def construct(self: Any, *args: Any, translate_on_save: bool = True, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.translate_on_save = translate_on_save  # read by `full_state`: whether to join slices

    return construct
