"""Initialisation and its results: `smp.init`, `smp.state`, ranks, sizes and groups.

Source: sagemaker-python-sdk `doc/api/training/smp_versions/latest/smd_model_parallel_common_api.rst`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from clary.train.parallel import runtime, step
from clary.train.parallel.configuration import Configuration, parse_parameters, read_configuration
from clary.train.parallel.layout.mesh import Along

_PARAMETERS = "SM_HP_MP_PARAMETERS"
_LOG = logging.getLogger("clary.smp")


def init(config: Mapping[str, Any] | None = None) -> None:
    """Join the parallel program; every process calls it first. Keys of the job take precedence over `config`.

    Raises: ValueError for keys that are unknown, wrong or exclude each other; RuntimeError if called again with other
    keys.
    """
    configuration = read_configuration(parse_parameters(os.environ.get(_PARAMETERS, "")), config)
    if config is None and runtime.is_initialized():
        return  # transformers calls `init` at import, even after a call by the script
    runtime.initialize(configuration)
    if ignored := configuration.without_effect():
        _LOG.warning("keys without effect here: %s", ", ".join(ignored))


def is_initialized() -> bool:
    """Whether `init` was called."""
    return runtime.is_initialized()


def shutdown() -> None:
    """Undo `init`; torch.distributed stays initialised."""
    runtime.reset()


def is_tracing() -> bool:
    """Whether the function of a step runs only to trace the model, not to train it."""
    return step.is_tracing()


class ModuleManager:
    """The attributes that transformers reads when it saves a model."""

    @property
    def translate_functions(self) -> list[tuple[Any, Any]]:
        """Pairs of functions that rename states of replaced modules: from SMP's names to transformers', and back."""
        model = runtime.current().model if runtime.is_initialized() else None
        return [] if model is None else list(model.translations)


class State:
    """The state of the parallel program, `smp.state`."""

    def __init__(self) -> None:
        self.module_manager = ModuleManager()

    @property
    def cfg(self) -> Configuration:
        """All keys of the configuration, as attributes."""
        return runtime.current().configuration

    @property
    def param_index_to_name_tp_group(self) -> list[dict[int, str]]:
        """For each tensor rank, a mapping from a parameter's number in the optimizer's states to its name."""
        return [{index: name for name, index in names.items()} for names in self.param_name_to_index_tp_group]

    @property
    def param_name_to_index_tp_group(self) -> list[dict[str, int]]:
        """For each tensor rank, a mapping from a parameter's name to its number in the states; equal on all ranks."""
        optimizer = self.optimizer
        return [] if optimizer is None else [optimizer.param_name_to_index()] * _size(Along.TP)

    @property
    def model(self) -> Any:
        """The DistributedModel, None before it is made."""
        return runtime.current().model

    @property
    def optimizer(self) -> Any:
        """The DistributedOptimizer, None before it is made."""
        return runtime.current().optimizer


state = State()


def rank() -> int:
    """Return this process's rank."""
    return runtime.current().rank


def size() -> int:
    """Return the number of processes."""
    return runtime.current().place.size


def local_rank() -> int:
    """Return this process's rank on its host."""
    return runtime.current().place.local_rank


def local_size() -> int:
    """Return the number of processes on this host."""
    return runtime.current().place.local_size


def _rank(along: Along) -> int:
    return runtime.current().groups.group_rank(along)


def _size(along: Along) -> int:
    return runtime.current().groups.size(along)


def _ranks(along: Along) -> list[int]:
    return list(runtime.current().groups.ranks(along))


def _process_group(along: Along) -> dist.ProcessGroup:
    now = runtime.current()
    if not now.configuration.ddp:
        raise ValueError('process groups need "ddp": True in the configuration')
    return now.groups.process_group(along)


def mp_rank() -> int:
    """Return the rank within the group of ranks that hold one model together."""
    return _rank(Along.MP)


def mp_size() -> int:
    """Return the number of ranks that hold one model together."""
    return _size(Along.MP)


def dp_rank() -> int:
    """Return the rank within the group of ranks that hold the same stage."""
    return _rank(Along.DP)


def dp_size() -> int:
    """Return the number of ranks that hold the same stage."""
    return _size(Along.DP)


def pp_rank() -> int:
    """Return the rank in the pipeline."""
    return _rank(Along.PP)


def pp_size() -> int:
    """Return the length of the pipeline."""
    return _size(Along.PP)


def tp_rank() -> int:
    """Return the rank within the group of ranks that split layers among themselves."""
    return _rank(Along.TP)


def tp_size() -> int:
    """Return the number of ranks that split layers among themselves."""
    return _size(Along.TP)


def rdp_rank() -> int:
    """Return the rank among replicas of the same parameters."""
    return _rank(Along.RDP)


def rdp_size() -> int:
    """Return the number of replicas of the same parameters."""
    return _size(Along.RDP)


def get_mp_group() -> list[int]:
    """Return the ranks that hold one model together."""
    return _ranks(Along.MP)


def get_dp_group() -> list[int]:
    """Return the ranks that hold the same stage."""
    return _ranks(Along.DP)


def get_pp_group() -> list[int]:
    """Return the ranks of this pipeline."""
    return _ranks(Along.PP)


def get_tp_group() -> list[int]:
    """Return the ranks that split layers among themselves, including this rank."""
    return _ranks(Along.TP)


def get_rdp_group() -> list[int]:
    """Return the ranks that hold the same parameters."""
    return _ranks(Along.RDP)


def get_world_process_group() -> dist.ProcessGroup:
    """Return the group of all processes, for torch.distributed."""
    return _process_group(Along.WORLD)


def get_mp_process_group() -> dist.ProcessGroup:
    """Return the group of `get_mp_group`, for torch.distributed."""
    return _process_group(Along.MP)


def get_dp_process_group() -> dist.ProcessGroup:
    """Return the group of `get_dp_group`, for torch.distributed."""
    return _process_group(Along.DP)


def get_pp_process_group() -> dist.ProcessGroup:
    """Return the group of `get_pp_group`, for torch.distributed."""
    return _process_group(Along.PP)


def get_tp_process_group() -> dist.ProcessGroup:
    """Return the group of `get_tp_group`, for torch.distributed."""
    return _process_group(Along.TP)


def get_rdp_process_group() -> dist.ProcessGroup:
    """Return the group of `get_rdp_group`, for torch.distributed."""
    return _process_group(Along.RDP)
