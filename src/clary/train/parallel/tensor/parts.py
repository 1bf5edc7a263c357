"""Parts of layers that compute with slices, in new modules (SMP v1) and in modules cut in place (SMP v2).

Where: layers of `smp.nn` contain them; `fsdp.layers.cutting` changes the classes of a model's modules to subclasses of
them.

[Note: one copy] In a model that is cut in place, matrices that are cut by columns stay `nn.Linear`, with fewer rows of
weights. Where their common input enters attention or MLP, one `copy` marks it as used differently on every rank, so
backward sums its gradient once instead of once per matrix.
Shapes: any leading dimensions, H whole channels, T ranks of the group; hidden states have the inside layout.
Source: arXiv 1909.08053 section 3.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from clary.train.parallel.tensor.layout import Layout
from clary.train.parallel.tensor.randomness import dropout_replicated, dropout_split, own_randomness


class Part(nn.Module):
    """A module with the layout of hidden states over its tensor group."""

    layout: Layout


class CutMlp(Part):
    """An MLP whose inner channels are cut: the last matrix sums the ranks' products."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the class's own forward on a hidden state that every rank uses differently."""
        args = _entered(args, kwargs, self.layout)
        return super().forward(*args, **kwargs)


class CutAttention(Part):
    """Attention of this rank's heads."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the class's own forward for this rank's heads; dropout of scores differs on every rank."""
        args = _entered(args, kwargs, self.layout)
        dropout = getattr(self, "attention_dropout", 0.0)
        is_random = self.training and (dropout.p if isinstance(dropout, nn.Dropout) else dropout)
        with own_randomness(self.layout.group, next(self.parameters()).device) if is_random else nullcontext():
            return super().forward(*args, **kwargs)


class RowProduct(Part):
    """A linear layer whose input channels are cut; the bias is added to the sum of the ranks' products."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def forward(self, columns: torch.Tensor) -> torch.Tensor:
        """Return hidden states [..., H] in the inside layout for this rank's columns [..., in/T]."""
        total = self.layout.add_up(functional.linear(columns, self.weight))
        return total if self.bias is None else total + self.bias


class VocabularyHead(Part, nn.Linear):
    """A head whose vocabulary is cut."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits of the whole vocabulary on every rank; all ranks must use them in the same way.

        Args:
            hidden: [..., H/T] if the layout is split, else [..., H]; the result is [..., vocabulary].
        """
        return self.layout.leave_split(functional.linear(self.layout.whole(hidden), self.weight, self.bias))


class VocabularyEmbedding(Part, nn.Embedding):
    """An embedding whose vocabulary is cut. `padding_idx` is an index in the whole vocabulary."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the embeddings [..., H] of all tokens on every rank."""
        length = self.weight.shape[0]
        first = self.layout.group.rank * length
        is_foreign = (tokens < first) | (tokens >= first + length)
        padding = None if self.padding_idx is None else self.padding_idx - first
        own = functional.embedding(
            (tokens - first).masked_fill(is_foreign, 0),
            self.weight,
            padding if padding is not None and 0 <= padding < length else None,
        )
        return self.layout.leave_partial(own.masked_fill(is_foreign.unsqueeze(-1), 0.0))


class HiddenDropout(Part, nn.Dropout):
    """Dropout of hidden states: ranks that hold equal values drop the same elements."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return hidden states after dropout, in the same shape."""
        return drop(hidden, self.p if self.training else 0.0, self.layout)


def drop(hidden: torch.Tensor, probability: float, layout: Layout) -> torch.Tensor:
    """Apply dropout to inside hidden states: one mask for all ranks if replicated, one per rank if split.

    Args:
        hidden: [..., H/T] if the layout is split, else [..., H].
        probability: probability of dropping an element; 0 outside of training.
    """
    return (dropout_split if layout.is_split else dropout_replicated)(hidden, probability, layout.group)


def _entered(args: tuple[Any, ...], kwargs: dict[str, Any], layout: Layout) -> tuple[Any, ...]:
    """Return positional arguments with the hidden state passed through `copy`; a keyword is changed in place."""
    if args:
        return (layout.whole(args[0]), *args[1:])
    name = "hidden_states" if "hidden_states" in kwargs else next(iter(kwargs))
    kwargs[name] = layout.whole(kwargs[name])
    return args
