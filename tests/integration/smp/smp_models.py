"""Models for tests of model parallelism, and the results of training them in one process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn


class Named(NamedTuple):
    """The result of a step."""

    loss: torch.Tensor
    correct: dict[str, object]


@dataclass
class Record:
    """A dataclass, which is no mapping."""

    one: torch.Tensor
    two: list


class SharedPerceptron(nn.Module):
    """Two layers share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = nn.Linear(8, 8)
        self.middle = nn.Sequential(nn.Linear(8, 32), nn.ReLU(inplace=True), nn.Linear(32, 8))
        self.again = nn.Linear(8, 8, bias=False)
        self.again.weight = self.inputs.weight
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.again(self.middle(self.inputs(x))))


class Winding(nn.Module):
    """Has skip connections, a repeated block, a path that depends on the data, and outputs in nested containers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.block = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.LayerNorm(16))
        self.pair = Pair()
        self.even = nn.Linear(16, 16)
        self.odd = nn.Linear(16, 16)
        self.last = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> dict[str, object]:
        first = self.first(x)
        hidden = first
        for _ in range(3):
            hidden = hidden + self.block(hidden)
        hidden = self.even(hidden) if float(x[0, 0]) > 0 else self.odd(hidden)
        parts = self.pair({"one": hidden, "rest": [first, 2]})
        return {"scores": self.last(parts["sum"] + first), "extra": (parts["scaled"], None)}


class Pair(nn.Module):
    """Takes and returns nested containers, some of whose leaves are no tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(16))

    def forward(self, given: dict[str, object]) -> dict[str, torch.Tensor]:
        rest, factor = given["rest"]
        return {"sum": given["one"] + rest, "scaled": given["one"] * self.gain * factor}


class Convolutions(nn.Module):
    """Has buffers that a forward pass changes."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.Conv2d(4, 4, 3, padding=1),
        )
        self.head = nn.Linear(4 * 64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x).flatten(1))


def scores_of(output: object) -> torch.Tensor:
    """Return the scores in a model's output, from which the loss is computed."""
    if isinstance(output, dict):
        return output["scores"] + 0.1 * output["extra"][0].mean()
    return output


def loss_of(output: object, targets: torch.Tensor) -> torch.Tensor:
    return ((scores_of(output) - targets) ** 2).mean()


def make(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(7)
    return kind()


def batch_of(kind: type[nn.Module], number: int, size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets; the same on every rank."""
    generator = torch.Generator().manual_seed(number)
    shape = (size, 1, 8, 8) if kind is Convolutions else (size, 8)
    return torch.randn(shape, generator=generator), torch.randn(size, 4, generator=generator)


def train_alone(
    kind: type[nn.Module], num_microbatches: int, *, num_steps: int = 3, lr: float = 0.05
) -> tuple[list[float], dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Train in one process; return losses, the first step's gradients, and the state at the end."""
    model = make(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    losses, first = [], {}
    for number in range(num_steps):
        inputs, targets = batch_of(kind, number)
        optimizer.zero_grad()
        parts = [
            loss_of(model(x), y)
            for x, y in zip(inputs.chunk(num_microbatches), targets.chunk(num_microbatches), strict=True)
        ]
        loss = torch.stack(parts).mean()
        loss.backward()
        if number == 0:
            first = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
        optimizer.step()
        losses.append(loss.item())
    return losses, first, model.state_dict()
