"""What a rank of a tensor group computes with its slices: the classes that parts of a layer get in place.

[Note: one copy] Matrices that are cut by columns stay `nn.Linear` with fewer rows of weights. That their input is used
apart on every rank is said once, where it enters attention or MLP, so backward sums its gradient once and not for each
matrix.
Shapes: any leading dimensions, the last one is channels.
Source: arXiv 1909.08053 section 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from clary.train.parallel.tensor.collectives import TensorGroup, copy, gather, reduce
from clary.train.parallel.tensor.randomness import dropout_replicated, own_randomness


class Grouped(nn.Module):
    """A part that knows its tensor group."""

    tensor_group: TensorGroup


class CutMlp(Grouped):
    """An MLP whose inner channels are cut: the last matrix sums what the ranks have."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the class's own forward on a hidden state that every rank uses for other channels."""
        args = _entered(args, kwargs, self.tensor_group)
        return super().forward(*args, **kwargs)


class CutAttention(Grouped):
    """Attention of this rank's heads."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the class's own forward for this rank's heads; dropout of scores differs on every rank."""
        args = _entered(args, kwargs, self.tensor_group)
        with self._randomness():
            return super().forward(*args, **kwargs)

    @contextmanager
    def _randomness(self) -> Iterator[None]:
        dropout = getattr(self, "attention_dropout", 0.0)
        probability = dropout.p if isinstance(dropout, nn.Dropout) else dropout
        if not self.training or not probability:
            yield
            return
        with own_randomness(self.tensor_group, next(self.parameters()).device):
            yield


class RowLinear(Grouped, nn.Linear):
    """A matrix whose input channels are cut; the bias is added to the sum."""

    def forward(self, channels: torch.Tensor) -> torch.Tensor:
        """Return all output channels, on every rank, for this rank's input channels."""
        total = reduce(functional.linear(channels, self.weight), self.tensor_group)
        return total if self.bias is None else total + self.bias


class VocabularyHead(Grouped, nn.Linear):
    """A head whose vocabulary is cut."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits of the whole vocabulary on every rank, each of which must use them alike."""
        own = functional.linear(copy(hidden, self.tensor_group), self.weight, self.bias)
        return gather(own, self.tensor_group, own.dim() - 1)


class VocabularyEmbedding(Grouped, nn.Embedding):
    """An embedding whose vocabulary is cut. `padding_idx` stays that of the whole."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of all tokens on every rank."""
        length = self.weight.shape[0]
        first = self.tensor_group.rank * length
        is_foreign = (tokens < first) | (tokens >= first + length)
        padding = None if self.padding_idx is None else self.padding_idx - first
        own = functional.embedding(
            (tokens - first).masked_fill(is_foreign, 0),
            self.weight,
            padding if padding is not None and 0 <= padding < length else None,
        )
        return reduce(own.masked_fill(is_foreign.unsqueeze(-1), 0.0), self.tensor_group)


class SharedDropout(Grouped, nn.Dropout):
    """Dropout of hidden states that all ranks of the group hold: they drop the same."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return hidden states after dropout."""
        return dropout_replicated(hidden, self.p if self.training else 0.0, self.tensor_group)


def _entered(args: tuple[Any, ...], kwargs: dict[str, Any], group: TensorGroup) -> tuple[Any, ...]:
    """Return the positional arguments with the hidden state marked as used apart; one given by name changes there."""
    if args:
        return (copy(args[0], group), *args[1:])
    name = "hidden_states" if "hidden_states" in kwargs else next(iter(kwargs))
    kwargs[name] = copy(kwargs[name], group)
    return args
