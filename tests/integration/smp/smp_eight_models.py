"""The models of `smp_eight_table`, their batches, and the results of training them in one process."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache

import smdistributed.modelparallel.torch as smp
import torch
from smp_models import SharedPerceptron, Winding, loss_of, make
from torch import nn
from torch.nn import functional

NUM_ROWS, NUM_STEPS = 16, 2


@dataclass(frozen=True)
class Sizes:
    """The sizes of a GPT-2."""

    layers: int
    heads: int
    hidden: int
    words: int
    positions: int = 16


SIZES = {"gpt": Sizes(4, 8, 32, 96), "lmhead": Sizes(4, 8, 32, 96), "gpt-2M": Sizes(4, 8, 192, 2048)}


class Attention(nn.Module):
    """Causal self-attention after a normalisation, with the names of smp.nn."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.num_heads = sizes.heads
        self.query, self.key, self.value, self.dense = (nn.Linear(sizes.hidden, sizes.hidden) for _ in range(4))
        self.pre_layernorm = nn.LayerNorm(sizes.hidden)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        normal = self.pre_layernorm(hidden)
        query, key, value = (
            one(normal).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for one in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        hides = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(hides, -1e9).softmax(-1) @ value
        return hidden + self.dense(mixed.transpose(1, 2).flatten(2))


class Output(nn.Module):
    """The part of a layer that follows attention."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.dense1, self.dense2 = nn.Linear(sizes.hidden, 4 * sizes.hidden), nn.Linear(4 * sizes.hidden, sizes.hidden)
        self.pre_layernorm = nn.LayerNorm(sizes.hidden)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.dense2(functional.gelu(self.dense1(self.pre_layernorm(hidden))))


class Layer(nn.Module):
    """One layer of a GPT-2."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention, self.output = Attention(sizes), Output(sizes)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.output(self.attention(hidden))


class Layers(nn.Module):
    """All layers, followed by a normalisation."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.seq_layers = nn.Sequential(*(Layer(sizes) for _ in range(sizes.layers)))
        self.layernorm = nn.LayerNorm(sizes.hidden)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.layernorm(self.seq_layers(hidden))


class Gpt(nn.Module):
    """A GPT-2, with the arguments and the names of parameters of smp.nn.DistributedTransformerLMHead."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.word_embedding = nn.Embedding(sizes.words, sizes.hidden)
        self.position_embedding = nn.Embedding(sizes.positions, sizes.hidden)
        self.transformer = Layers(sizes)
        self.lm_head = nn.Linear(sizes.hidden, sizes.words, bias=False)
        self.lm_head.weight = self.word_embedding.weight
        for embedding in (self.word_embedding, self.position_embedding):
            nn.init.normal_(embedding.weight, std=0.2)

    def forward(self, inputs: tuple[torch.Tensor | None, ...]) -> torch.Tensor:
        ids = inputs[0]
        assert ids is not None
        hidden = self.word_embedding(ids) + self.position_embedding(torch.arange(ids.shape[1]).unsqueeze(0))
        return self.lm_head(self.transformer(hidden))


def distributed_gpt(sizes: Sizes) -> nn.Module:
    """Return a GPT-2 of these sizes from smp.nn, with weights of its own."""
    return smp.nn.DistributedTransformerLMHead(
        num_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        attention_head_size=sizes.hidden // sizes.heads,
        hidden_size=sizes.hidden,
        intermediate_size=4 * sizes.hidden,
        vocab_size=sizes.words,
        num_positions=sizes.positions,
        attention_dropout_prob=0.0,
        hidden_dropout_prob=0.0,
        causal_mask_size=sizes.positions,
        pre_layernorm=True,
        post_layernorm=False,
        final_layernorm=True,
    )


def plain_model(name: str) -> nn.Module:
    """Return a model of torch's own layers, with the same weights on every rank and at every call."""
    if name in SIZES:
        torch.manual_seed(7)
        return Gpt(SIZES[name])
    return make({"shared": SharedPerceptron, "winding": Winding}[name])


def parallel_model(name: str, tensor_degree: int) -> nn.Module:
    """Return the model to give to DistributedModel."""
    if name == "lmhead" or (name == "gpt-2M" and tensor_degree > 1):
        return distributed_gpt(SIZES[name])
    with smp.tensor_parallelism() if tensor_degree > 1 else nullcontext():
        return plain_model(name)


def recomputed_part(model: nn.Module, name: str) -> nn.Module:
    """Return the part of a model that is checkpointed."""
    return model.get_submodule({"shared": "middle", "winding": "block"}.get(name, "transformer.seq_layers"))


def batch_of(name: str, number: int, *, goes_one_way: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the global batch of a step.

    Args:
        goes_one_way: all rows take the same path through a model whose path depends on its data.
    """
    generator = torch.Generator().manual_seed(number)
    if name in SIZES:
        ids = torch.randint(0, SIZES[name].words, (NUM_ROWS, 12), generator=generator)
        return ids, ids
    inputs, targets = (torch.randn(NUM_ROWS, width, generator=generator) for width in (8, 4))
    if goes_one_way:
        inputs[:, 0] = inputs[:, 0].abs() * (1 if number % 2 else -1)
    return inputs, targets


def loss_of_batch(
    name: str, model: Callable[..., torch.Tensor], inputs: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """Return the mean loss over the rows."""
    if name not in SIZES:
        return loss_of(model(inputs), targets)
    logits = model((inputs, None, None, None))
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten())


def new_optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer whose steps do not amplify rounding errors of gradients that ought to be 0."""
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=0.02, eps=1e-3, weight_decay=0.1)


@dataclass(frozen=True)
class Course:
    """The results of training: the loss of every step, and the model before and after."""

    losses: list[float]
    before: dict[str, torch.Tensor]
    after: dict[str, torch.Tensor]


@cache
def train_alone(name: str, optimizer_name: str, num_pieces: int, *, goes_one_way: bool, norm: float | None) -> Course:
    """Train in one process, on the global batch cut into `num_pieces` pieces.

    Args:
        norm: the norm to which gradients are clipped; None: no clipping.
    """
    model = plain_model(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    optimizer = new_optimizer(optimizer_name, model)
    losses = []
    for number in range(NUM_STEPS):
        inputs, targets = batch_of(name, number, goes_one_way=goes_one_way)
        optimizer.zero_grad()
        parts = [
            loss_of_batch(name, model, x, y)
            for x, y in zip(inputs.chunk(num_pieces), targets.chunk(num_pieces), strict=True)
        ]
        loss = torch.stack(parts).mean()
        loss.backward()
        if norm is not None:
            assert nn.utils.clip_grad_norm_(model.parameters(), norm) > norm, "nothing would be clipped"
        optimizer.step()
        losses.append(loss.item())
    return Course(losses, before, model.state_dict())
