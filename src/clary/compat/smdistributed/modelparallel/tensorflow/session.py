"""Initialisation and its results: `smp.init`, `smp.state`, ranks, sizes and groups.

Source: sagemaker-python-sdk `doc/api/training/smp_versions/latest/smd_model_parallel_common_api.rst`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from clary.train.parallel.configuration import Configuration, parse_parameters, read_configuration
from clary.train.parallel.layout.mesh import Along
from clary.train.tf_parallel import session, tracing
from clary.train.tf_parallel.gradients import teach_optimizers
from clary.train.tf_parallel.norms import teach_tensorflow

_PARAMETERS = "SM_HP_MP_PARAMETERS"
_SERVED = ("horovod",)  # keys that have an effect with TensorFlow alone
_LOG = logging.getLogger("clary.smp")


def init(config: Mapping[str, Any] | None = None) -> None:
    """Join the parallel program; every process calls it first. Keys of the job take precedence over `config`.

    Raises: ValueError for keys that are unknown, wrong, valid only for PyTorch, or exclude each other; RuntimeError if
        called again with other keys.
    """
    configuration = read_configuration(parse_parameters(os.environ.get(_PARAMETERS, "")), config)
    if config is None and session.is_initialized():
        return
    session.initialize(configuration)
    teach_optimizers()
    teach_tensorflow()
    ignored = [name for name in configuration.without_effect() if name not in _SERVED]
    if ignored:
        _LOG.warning("keys without effect here: %s", ", ".join(ignored))


def is_initialized() -> bool:
    """Whether `init` was called."""
    return session.is_initialized()


def shutdown() -> None:
    """Undo `init`; partitioned models cannot be used any more."""
    session.reset()


def is_tracing() -> bool:
    """Whether the function of a step is being traced into a graph."""
    return tracing.current() is not None


class State:
    """The state of the parallel program, `smp.state`."""

    @property
    def cfg(self) -> Configuration:
        """All keys of the configuration, as attributes."""
        return session.current().configuration

    @property
    def model(self) -> Any:
        """The DistributedModel that was partitioned last, or None."""
        models = session.current().models
        return models[-1] if models else None


state = State()


def rank() -> int:
    """Return this process's rank."""
    return session.current().place.rank


def size() -> int:
    """Return the number of processes."""
    return session.current().place.size


def local_rank() -> int:
    """Return this process's rank on its host."""
    return session.current().place.local_rank


def local_size() -> int:
    """Return the number of processes on this host."""
    return session.current().place.local_size


def mp_rank() -> int:
    """Return the rank within the group of ranks that hold one model together."""
    return session.current().links.group_rank(Along.MP)


def mp_size() -> int:
    """Return the number of ranks that hold one model together."""
    return session.current().links.size(Along.MP)


def dp_rank() -> int:
    """Return the rank within the group of ranks that hold the same part of the model."""
    return session.current().links.group_rank(Along.DP)


def dp_size() -> int:
    """Return the number of ranks that hold the same part of the model."""
    return session.current().links.size(Along.DP)


def pp_rank() -> int:
    """Return the rank in the pipeline."""
    return session.current().links.group_rank(Along.PP)


def pp_size() -> int:
    """Return the length of the pipeline."""
    return session.current().links.size(Along.PP)


def tp_rank() -> int:
    """Return 0: TensorFlow has no tensor parallelism."""
    return session.current().links.group_rank(Along.TP)


def tp_size() -> int:
    """Return 1: TensorFlow has no tensor parallelism."""
    return session.current().links.size(Along.TP)


def rdp_rank() -> int:
    """Return the rank among replicas of the same part; equal to `dp_rank`."""
    return session.current().links.group_rank(Along.RDP)


def rdp_size() -> int:
    """Return the number of replicas of the same part; equal to `dp_size`."""
    return session.current().links.size(Along.RDP)


def get_mp_group() -> list[int]:
    """Return the ranks that hold one model together."""
    return list(session.current().links.ranks(Along.MP))


def get_dp_group() -> list[int]:
    """Return the ranks that hold the same part of the model."""
    return list(session.current().links.ranks(Along.DP))


def get_pp_group() -> list[int]:
    """Return the ranks of this pipeline."""
    return list(session.current().links.ranks(Along.PP))


def get_tp_group() -> list[int]:
    """Return this rank alone: TensorFlow has no tensor parallelism."""
    return list(session.current().links.ranks(Along.TP))


def get_rdp_group() -> list[int]:
    """Return the ranks that hold the same part of the model."""
    return list(session.current().links.ranks(Along.RDP))
