"""Patches of transformers' Trainer under smdistributed.modelparallel (SMP v1), in versions that use accelerate.

Where: `installing` patches two modules of transformers. Versions up to 4.28 counted SMP's replicas themselves and need
no patch on a GPU. Later versions let accelerate count, which counts ranks instead of replicas.

[Note: what goes wrong otherwise]
device      transformers assumes CUDA with SMP.
batches     accelerate gives each rank its own batches, even in a pipeline, which uses one rank's batches only.
metrics     accelerate gathers over all ranks, so each pipeline counts several times, once per rank.
model       versions 5 wrap the model by SMP a second time, for evaluation.
optimizer   versions 5 make no optimizer for a model that SMP has wrapped, and wrap an existing optimizer in a
            class that lacks the methods for saving it.
Source: transformers 4.28, 4.46, 5.24 `TrainingArguments._setup_devices`, `Trainer._prepare_for_training`,
`Trainer._save_optimizer_and_scheduler`; accelerate 1.1, 1.15 `Accelerator.prepare_optimizer`, `state.PartialState`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from clary.train.parallel import runtime
from clary.train.parallel.layout.mesh import Along
from clary.train.parallel.model import DistributedModel
from clary.train.parallel.optimizer import DistributedOptimizer
from clary.train.trainers.arguments import choose_devices_by

_PREPARED = "_is_accelerate_prepared"  # accelerate does not wrap an optimizer with this mark
_SKIPPED = "step_was_skipped"  # accelerate reads this attribute of an optimizer after each step


def mend_training_arguments(module: ModuleType) -> None:
    """Make TrainingArguments choose the CPU if there is no GPU, and accelerate count replicas.

    Args:
        module: `transformers.training_args`.
    """

    def choose(arguments: Any, otherwise: Callable[[Any], Any]) -> Any:
        import torch

        if not getattr(module, "is_sagemaker_mp_enabled", bool)():
            return otherwise(arguments)
        if torch.cuda.is_available():
            device = otherwise(arguments)
        else:
            device = torch.device("cpu")
            arguments._n_gpu, arguments.distributed_state = 0, None
        count_replicas(module, device)
        return device

    choose_devices_by(module, choose)


def mend_trainer(module: ModuleType) -> None:
    """Make Trainer gather over replicas, and keep the optimizer that SMP has wrapped.

    Args:
        module: `transformers.trainer`; methods that its version lacks are not patched.
    """
    trainer = module.Trainer
    if not getattr(module, "is_sagemaker_mp_enabled", bool)():
        return
    make_accelerator = getattr(trainer, "create_accelerator_and_postprocess", None)
    if make_accelerator is not None:

        @functools.wraps(make_accelerator)
        def create_accelerator_and_postprocess(self: Any, *arguments: Any, **keywords: Any) -> Any:
            result = make_accelerator(self, *arguments, **keywords)
            self.accelerator.gather, self.accelerator.pad_across_processes = gather, pad
            return result

        trainer.create_accelerator_and_postprocess = create_accelerator_and_postprocess
    _wrap_once(trainer)
    if "model" in inspect.signature(trainer.create_optimizer).parameters:
        _mend_optimizer(trainer)


def _wrap_once(trainer: Any) -> None:
    """Make Trainer use a model that SMP has wrapped without wrapping it again, in evaluation too."""
    wrap = trainer._wrap_model

    @functools.wraps(wrap)
    def _wrap_model(self: Any, *arguments: Any, **keywords: Any) -> Any:
        wrapped = getattr(self, "model_wrapped", None)
        return wrapped if isinstance(wrapped, DistributedModel) else wrap(self, *arguments, **keywords)

    trainer._wrap_model = _wrap_model


def _mend_optimizer(trainer: Any) -> None:
    """Make Trainer create the optimizer as soon as SMP has wrapped the model, and not wrap the optimizer again."""
    make, wrap = trainer.create_optimizer, trainer._wrap_model

    @functools.wraps(make)
    def create_optimizer(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if not isinstance(self.optimizer, DistributedOptimizer):
            make(self, *arguments, **keywords)
            if isinstance(self.optimizer, DistributedOptimizer):
                setattr(self.optimizer, _PREPARED, True)
                setattr(self.optimizer, _SKIPPED, False)
        return self.optimizer

    @functools.wraps(wrap)
    def _wrap_model(self: Any, model: Any, training: bool = True, *arguments: Any, **keywords: Any) -> Any:
        wrapped = wrap(self, model, training, *arguments, **keywords)
        if training and self.optimizer is None:
            self.create_optimizer(wrapped)
        return wrapped

    trainer.create_optimizer, trainer._wrap_model = create_optimizer, _wrap_model


def count_replicas(module: ModuleType, device: Any) -> None:
    """Make accelerate count replicas of the model as processes; a no-op in versions without accelerate.

    Args:
        module: `transformers.training_args`, which imports accelerate.
        device: the `torch.device` of this rank's computation.
    """
    make_state = getattr(module, "PartialState", None)
    if make_state is None:
        return
    module.AcceleratorState._reset_state(reset_partial_state=True)
    state = make_state(cpu=device.type == "cpu")
    place = runtime.current().place
    along = _replicas()
    groups = runtime.current().groups
    state.device = device
    state.num_processes, state.process_index = groups.size(along), groups.group_rank(along)
    state.local_process_index = place.local_rank
    if state.num_processes == 1:
        state.distributed_type = type(state.distributed_type).NO


def gather(data: Any) -> Any:
    """Gather tensors of all replicas, concatenated along their first dimension. All ranks call it.

    Args:
        data: a tensor, or tensors in tuples, lists and dicts. A tensor without dimensions counts as a vector of one
            element.

    Raises: TypeError for other data.
    """
    import torch

    if isinstance(data, dict):
        return type(data)({key: gather(value) for key, value in data.items()})
    if isinstance(data, tuple | list):
        return _like(data, (gather(value) for value in data))
    if not isinstance(data, torch.Tensor):
        raise TypeError(f"gather: expected tensors, or tuples, lists and dicts of them; got {type(data).__name__}")
    parts = runtime.current().groups.allgather(torch.atleast_1d(data.detach()).cpu(), _replicas())
    return torch.cat(list(parts), dim=0).to(data.device)


def pad(data: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
    """Pad tensors to the longest length of any replica along one dimension. All ranks call it.

    Args:
        data: as in `gather`; tensors that lack the dimension, and values other than tensors, are returned unchanged.
        dim: the dimension to pad.
        pad_index: value of the added elements.
        pad_first: whether to add before the values; else after them.
    """
    import torch

    if isinstance(data, dict):
        return type(data)({key: pad(value, dim, pad_index, pad_first) for key, value in data.items()})
    if isinstance(data, tuple | list):
        return _like(data, (pad(value, dim, pad_index, pad_first) for value in data))
    if not isinstance(data, torch.Tensor) or not -data.dim() <= dim < data.dim():
        return data
    length = data.shape[dim]
    longest = max(runtime.current().groups.allgather(length, _replicas()))
    shape = list(data.shape)
    shape[dim] = longest - length
    added = data.new_full(shape, pad_index)
    return torch.cat([added, data] if pad_first else [data, added], dim=dim)


def _like(data: Any, values: Any) -> Any:
    """Return the values as a sequence of the type of `data`, which may be a named tuple."""
    return type(data)(*values) if hasattr(data, "_fields") else type(data)(values)


def _replicas() -> Along:
    """Return the group of ranks whose batches differ."""
    return Along.RDP if runtime.current().configuration.prescaled_batch else Along.DP
