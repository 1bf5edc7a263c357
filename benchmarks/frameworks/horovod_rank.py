"""Ran as one rank by `bench_horovod`, with either Horovod: times operations and a training, rank 0 prints JSON.

Arguments: sizes in bytes, joined by commas; seconds for each size; steps of training.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import horovod.torch as hvd
import torch
from torch import nn

_FLOAT_BYTES = 4
_WARM_UP = 5


def time_allreduce(num_bytes: int, limit_s: float) -> dict[str, Any]:
    """Return the median of an all-reduce in place, its spread, and whether every result was right."""
    tensor = torch.ones(max(num_bytes // _FLOAT_BYTES, 1))
    is_right = True
    samples: list[float] = []
    rounds = 0
    while True:
        tensor.fill_(hvd.rank() + 1.0)
        begun = time.perf_counter()
        hvd.allreduce_(tensor, op=hvd.Sum, name=f"bytes.{num_bytes}")
        samples.append(time.perf_counter() - begun)
        is_right = is_right and tensor[0].item() == tensor[-1].item() == hvd.size() * (hvd.size() + 1) / 2
        rounds += 1
        if rounds % _WARM_UP == 0:  # ranks agree on the end
            left = hvd.allreduce(torch.tensor(limit_s - sum(samples)), op=hvd.Min, name="left").item()
            if left < 0 and rounds > _WARM_UP:
                break
    timed = samples[_WARM_UP:]
    quarters = statistics.quantiles(timed, n=4) if len(timed) > 1 else [timed[0]] * 3
    median = statistics.median(timed)
    return {"median_s": median, "spread": (quarters[2] - quarters[0]) / median, "count": len(timed), "right": is_right}


class Block(nn.Module):
    """Two convolutions around which the input goes past."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [batch, channels, height, width]."""
        return torch.relu(x + self.body(x))


def make_model() -> nn.Module:
    """Return a network in the shape of a small ResNet: many small tensors, a few of a megabyte and more."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, stride=2, padding=1)]
    for channels, wider in ((32, 64), (64, 128), (128, 256)):
        layers += [Block(channels), Block(channels), nn.Conv2d(channels, wider, 3, stride=2, padding=1)]
    return nn.Sequential(*layers, Block(256), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))


def train(steps: int) -> dict[str, Any]:
    """Return the seconds of a step, and the loss after the last one over all ranks."""
    model = make_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05), model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    generator = torch.Generator().manual_seed(hvd.rank())
    images = torch.randn(4, 3, 32, 32, generator=generator)
    labels = torch.randint(0, 10, (4,), generator=generator)
    samples, loss = [], torch.zeros(())
    for _ in range(steps + _WARM_UP):
        begun = time.perf_counter()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        samples.append(time.perf_counter() - begun)
    mean = hvd.allreduce(loss.detach(), name="loss").item()
    return {"median_s": statistics.median(samples[_WARM_UP:]), "loss": mean, "tensors": len(list(model.parameters()))}


def main() -> None:
    """Measure, and print on rank 0."""
    torch.set_num_threads(1)
    sizes, limit_s, steps = [int(text) for text in sys.argv[1].split(",")], float(sys.argv[2]), int(sys.argv[3])
    hvd.init()
    found = {"sizes": {size: time_allreduce(size, limit_s) for size in sizes}, "training": train(steps)}
    if hvd.rank() == 0:
        print("measured " + json.dumps(found), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
