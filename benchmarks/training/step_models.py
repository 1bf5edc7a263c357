"""The model of `bench_step`: a small GPT, a sequence of modules as pipelines like them; imported by ranks only.

Shapes: B sequences, T positions, D channels, V words, H heads, E channels a head.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

WEIGHT_STD = 0.02  # as GPT-2's
UP = 4  # channels between the two products of a block, in widths


@dataclass(frozen=True)
class Sizes:
    """Sizes of a GPT and of its batches.

    Args:
        batch: sequences a step, of all replicas together.
    """

    num_layers: int = 8
    width: int = 256
    num_heads: int = 4
    length: int = 128
    vocabulary: int = 256
    batch: int = 8


class Embed(nn.Module):
    """Words and where they stand."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.words = nn.Embedding(sizes.vocabulary, sizes.width)
        self.positions = nn.Embedding(sizes.length, sizes.width)
        nn.init.normal_(self.words.weight, std=WEIGHT_STD)
        nn.init.normal_(self.positions.weight, std=WEIGHT_STD)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.words(tokens_BT) + self.positions.weight[: tokens_BT.shape[1]]
        return hidden


class Block(nn.Module):
    """Attention and two products, each behind a norm and beside a residual."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.width
        self.num_heads = sizes.num_heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.dense = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, UP * width), nn.Linear(UP * width, width)

    def forward(self, hidden_BTD: torch.Tensor) -> torch.Tensor:
        mixed_BTD = attend(self.query_key_value(self.before_attention(hidden_BTD)), self.num_heads)
        hidden_BTD = hidden_BTD + self.dense(mixed_BTD)
        return hidden_BTD + self.down(functional.gelu(self.up(self.before_mlp(hidden_BTD))))


class Head(nn.Module):
    """The last norm, and scores of words."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(sizes.width)
        self.scores = nn.Linear(sizes.width, sizes.vocabulary, bias=False)

    def forward(self, hidden_BTD: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.scores(self.norm(hidden_BTD))
        return logits


class Gpt(nn.Module):
    """All of it; takes tokens [B, T] and returns logits [B, T, V]."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.layers = nn.Sequential(Embed(sizes), *(Block(sizes) for _ in range(sizes.num_layers)), Head(sizes))

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(tokens_BT)
        return logits


def make_gpt(sizes: Sizes) -> Gpt:
    """Return the model; the same for all contenders and on all ranks."""
    torch.manual_seed(1)
    return Gpt(sizes)


def attend(parts_BTC: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Return the output [B, T, C] of causal attention; `parts_BTC` holds queries, keys and values side by side."""
    query_BHTE, key_BHTE, value_BHTE = (
        part.unflatten(-1, (num_heads, -1)).transpose(1, 2) for part in parts_BTC.chunk(3, dim=-1)
    )
    mixed_BHTE = functional.scaled_dot_product_attention(query_BHTE, key_BHTE, value_BHTE, is_causal=True)
    return mixed_BHTE.transpose(1, 2).flatten(2)


def loss_of(logits_BTV: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of a word."""
    return functional.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())


def batch_of(sizes: Sizes, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens [B, T] of a step, and the tokens that follow: a count with gaps, which can be learnt."""
    generator = torch.Generator().manual_seed(number)
    starts = torch.randint(0, sizes.vocabulary, (sizes.batch, 1), generator=generator)
    tokens = (starts + 3 * torch.arange(sizes.length + 1)) % sizes.vocabulary
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def share_of(tensors: Sequence[torch.Tensor], rank: int, size: int) -> list[torch.Tensor]:
    """Return this replica's rows of a batch."""
    return [tensor.chunk(size)[rank] for tensor in tensors]


def optimizer_of(parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    """Return the optimizer of every contender."""
    return torch.optim.AdamW(parameters, lr=1e-3)
