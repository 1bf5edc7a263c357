"""A model whose backward pass takes a given time and no processor, to see how much communication hides behind it.

Every layer holds a given number of bytes of weights. Its backward sleeps and then has a gradient, so gradients become
ready one after the other, last layer first, as in a real model; torch's DistributedDataParallel does the rest.
Where: `collective_rank` does this on order of `bench_overlap`.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.collectives.collective_board import Board
from benchmarks.collectives.collective_doors import FLOAT_BYTES
from clary.train.collective.adapters.torch.overlap import BucketTuning, tune_buckets

MIB = 1 << 20
NUM_PLACES = 64  # of every layer whose gradient is compared


class _SlowLayer(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: Any, weight: Any, gradient: Any, backward_s: float) -> Any:
        context.gradient, context.backward_s = gradient, backward_s
        return value.clone()

    @staticmethod
    def backward(context: Any, *gradients: Any) -> tuple[Any, ...]:
        time.sleep(context.backward_s)
        return gradients[0], context.gradient.clone(), None, None


class SlowModel(nn.Module):
    """Layers in a row, each with the gradient that it will have."""

    def __init__(self, gradients: list[torch.Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients)
        self.own_gradients = gradients
        self.backward_s = 0.0  # of all layers together

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        for weight, gradient in zip(self.weights, self.own_gradients, strict=True):
            value = _SlowLayer.apply(value, weight, gradient, self.backward_s / len(self.weights))
        return value


class Overlap:
    """Slow models, each with its own DistributedDataParallel.

    Args:
        models: by name, the group and what sets the buckets: `layer` (one a layer), `default` (torch), `tuned`
            (`tune_buckets`), or `none`: one a layer, and nothing is communicated.
        rank: whose gradients these are; every rank has others.
    """

    def __init__(
        self,
        models: dict[str, tuple[Any, str]],
        board: Board,
        rank: int,
        *,
        num_layers: int,
        layer_bytes: int,
        seed: int,
    ) -> None:
        self._board = board
        count = layer_bytes // FLOAT_BYTES
        draw = np.random.default_rng([seed, rank])
        gradients = [torch.from_numpy(draw.random(count, dtype=np.float32)) for _ in range(num_layers)]
        self._groups = {name: group for name, (group, _) in models.items()}
        self._models = {name: SlowModel(gradients) for name in models}
        self._tunings: dict[str, BucketTuning] = {}
        self._wrapped = {
            name: self._wrap(name, group, buckets, layer_bytes / MIB) for name, (group, buckets) in models.items()
        }
        self._buckets = [torch.zeros(count) for _ in range(num_layers)]

    def steps(self, name: str, *, backward_s: float, num_steps: int) -> list[float]:
        """Seconds of each step, forward and backward."""
        model, wrapped = self._models[name], self._wrapped[name]
        model.backward_s = backward_s
        seconds = []
        for _ in range(num_steps):
            for weight in model.weights:
                weight.grad = None
            value = torch.ones(1, requires_grad=True)
            self._board.start_together()
            began = time.perf_counter()
            wrapped(value).backward()
            seconds.append(time.perf_counter() - began)
        return seconds

    def communication(self, name: str, *, num_samples: int) -> list[float]:
        """Seconds to reduce all buckets with nothing else going on, all asked for at once."""
        seconds = []
        for _ in range(num_samples):
            self._board.start_together()
            began = time.perf_counter()
            works = [dist.all_reduce(bucket, group=self._groups[name], async_op=True) for bucket in self._buckets]
            for work in works:
                work.wait()
            seconds.append(time.perf_counter() - began)
        return seconds

    def buckets(self, name: str) -> str:
        """Return the outcome of tuning the buckets of a model; empty if they are not tuned."""
        return str(self._tunings[name].outcome) if name in self._tunings else ""

    def problems(self, name: str) -> list[str]:
        """Compare the last step's gradients with the mean of all ranks' own, at some places of every layer."""
        found = []
        for index, (weight, own) in enumerate(
            zip(self._models[name].weights, self._models[name].own_gradients, strict=True)
        ):
            places = np.linspace(0, len(own) - 1, NUM_PLACES).astype(np.int64)
            shown = self._board.exchange(own.numpy()[places].astype(np.float64).tobytes())
            wanted = np.mean([np.frombuffer(data) for data in shown], axis=0)
            if weight.grad is None or not np.allclose(weight.grad.numpy()[places], wanted, rtol=1e-6, atol=0):
                found.append(f"{name}: gradient of layer {index} is not the mean of all ranks'")
        return found

    def _wrap(self, name: str, group: Any, buckets: str, layer_mib: float) -> DistributedDataParallel:
        cap = layer_mib if buckets in ("layer", "none") else None
        wrapped = DistributedDataParallel(self._models[name], process_group=group, bucket_cap_mb=cap)
        if buckets == "tuned":
            self._tunings[name] = tune_buckets(wrapped)
        elif buckets == "none":
            wrapped.register_comm_hook(None, lambda _, bucket: _keep(bucket))
        return wrapped


def _keep(bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Leave a bucket as it is: everything that the reducer does but communicate."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
