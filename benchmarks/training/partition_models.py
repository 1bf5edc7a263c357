"""Traces models and prints the costs of their modules as JSON; its interpreter needs torch and transformers.

python -m benchmarks.training.partition_models
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from clary.train.parallel.partition.trace import trace_costs

BATCH, LENGTH = 2, 32


class Block(nn.Module):
    """A residual block of a convolutional network."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)
        self.act = nn.ReLU()
        is_same = stride == 1 and channels_in == channels
        self.skip = nn.Identity() if is_same else nn.Conv2d(channels_in, channels, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.act(self.first_norm(self.first(x)))
        return self.act(self.second_norm(self.second(hidden)) + self.skip(x))


class ResNet(nn.Module):
    """Shaped as ResNet-18, an eighth as wide."""

    def __init__(self) -> None:
        super().__init__()
        widths = [8, 8, 16, 16, 32, 32, 64, 64]
        self.stem = nn.Conv2d(3, 8, 7, 2, 3)
        before = [8, *widths[:-1]]
        self.blocks = nn.Sequential(
            *(Block(one, width, 2 if one != width else 1) for one, width in zip(before, widths, strict=True))
        )
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def models() -> Iterator[tuple[str, nn.Module, Callable[[nn.Module], Any]]]:
    """Yield name, model and how it is called."""
    ids = torch.randint(0, 500, (BATCH, LENGTH))
    images = torch.randn(BATCH, 3, 64, 64)
    yield "resnet-like", ResNet(), lambda model: model(images)
    try:
        import transformers as hf
    except ImportError:
        return
    sizes = {"vocab_size": 500}
    yield (
        "gpt2",
        hf.GPT2LMHeadModel(hf.GPT2Config(n_embd=128, n_layer=12, n_head=4, n_positions=64, **sizes)),
        lambda model: model(input_ids=ids),
    )
    yield (
        "bert",
        hf.BertModel(
            hf.BertConfig(hidden_size=128, num_hidden_layers=12, num_attention_heads=4, intermediate_size=512, **sizes)
        ),
        lambda model: model(input_ids=ids),
    )
    yield (
        "t5-like",
        hf.T5ForConditionalGeneration(
            hf.T5Config(d_model=128, d_kv=32, d_ff=512, num_layers=6, num_heads=4, decoder_start_token_id=0, **sizes)
        ),
        lambda model: model(input_ids=ids, labels=ids),
    )


def main() -> None:
    """Print one JSON line a model."""
    torch.set_num_threads(1)
    for name, model, call in models():
        costs = [
            {**dataclasses.asdict(one), "shared": sorted(one.shared)}
            for one in trace_costs(model.eval(), partial(call, model))
        ]
        print(json.dumps({"model": name, "costs": costs}), flush=True)


if __name__ == "__main__":
    main()
