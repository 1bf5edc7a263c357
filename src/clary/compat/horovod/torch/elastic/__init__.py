"""Elastic training with torch: `hvd.elastic.run`, `TorchState`, `ElasticSampler`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from horovod.common.basics import init, shutdown
from horovod.common.elastic import ObjectState, State, run_fn
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training loop whose first argument is its state.

    After a failure, the state is restored from the last commit, also in the next attempt of a job.
    """
    wrapped: Callable[..., Any] = run_fn(func, _reset)
    return wrapped


def _reset() -> None:
    shutdown()
    init()
