"""Contenders of `bench_step` for two tensor ranks; imported by ranks only.

ours    layers of smp.nn, optimize=speed, the same batch on both ranks
hand    the same cut by hand, as arXiv 1909.08053 has it: columns, then rows, two all-reduces each way a block
bound   the layers cut by hand, and nothing reduced
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import clary.compat.smdistributed.modelparallel.torch as smp
from benchmarks.training.step_models import UP, Block, Gpt, Sizes, attend, batch_of, loss_of, make_gpt, optimizer_of
from benchmarks.training.step_pipeline import Step, train_step


def contenders(rank: int, size: int, sizes: Sizes) -> dict[str, Step]:
    """Return for each contender a function that takes one step and returns its loss."""
    return {
        "ours": _ours(sizes),
        "hand": _hand(sizes, rank, size, reduces=True),
        "bound": _hand(sizes, rank, size, reduces=False),
    }


def _ours(sizes: Sizes) -> Step:
    smp.init({"tensor_parallel_degree": 2, "ddp": True, "optimize": "speed", "prescaled_batch": True})
    model = smp.DistributedModel(_CutByClary(make_gpt(sizes), sizes))
    optimizer = smp.DistributedOptimizer(optimizer_of(model.parameters()))

    def step(number: int) -> torch.Tensor:
        optimizer.zero_grad()
        losses = train_step(model, *batch_of(sizes, number))
        optimizer.step()
        mean: torch.Tensor = losses.reduce_mean()
        return mean

    return step


class _CutByClary(nn.Module):
    def __init__(self, whole: Gpt, sizes: Sizes) -> None:
        super().__init__()
        embed, *blocks, head = whole.layers
        self.embed, self.head = embed, head
        self.transformer = smp.nn.DistributedTransformer(
            num_layers=sizes.num_layers,
            num_attention_heads=sizes.num_heads,
            attention_head_size=sizes.width // sizes.num_heads,
            hidden_size=sizes.width,
            intermediate_size=UP * sizes.width,
            attention_dropout_prob=0.0,
            hidden_dropout_prob=0.0,
            causal_mask_size=sizes.length,
            pre_layernorm=True,
            post_layernorm=False,
        )
        for layer, block in zip(self.transformer.seq_layers, blocks, strict=True):
            _copy_block(layer, block)

    def forward(self, tokens_BT: torch.Tensor) -> Any:
        return self.head(self.transformer((self.embed(tokens_BT), None))[0])


def _copy_block(layer: Any, block: nn.Module) -> None:
    """Give a layer of smp.nn this rank's slices of a whole block."""
    assert isinstance(block, Block)
    attention, output = layer.attention, layer.output
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    modules = [(attention.pre_layernorm, block.before_attention), (attention.dense, block.dense)]
    modules += [(output.pre_layernorm, block.before_mlp), (output.dense1, block.up), (output.dense2, block.down)]
    for own, whole in modules:
        pairs += [(own.weight, whole.weight), (own.bias, whole.bias)]
    for place, own in enumerate((attention.query, attention.key, attention.value)):
        pairs.append((own.weight, block.query_key_value.weight.chunk(3)[place]))
        pairs.append((own.bias, block.query_key_value.bias.chunk(3)[place]))
    with torch.no_grad():
        for parameter, value in pairs:
            piece: Any = getattr(parameter, "tensor_slice", None)
            parameter.copy_(value if piece is None else piece.of(value))


def _hand(sizes: Sizes, rank: int, size: int, *, reduces: bool) -> Step:
    embed, *blocks, head = make_gpt(sizes).layers
    reduce: Callable[[torch.Tensor], Any] = dist.all_reduce if reduces else _leave
    cut = [_CutBlock(block, rank, size, reduce) for block in blocks if isinstance(block, Block)]
    model = nn.Sequential(embed, *cut, head)
    optimizer = optimizer_of(model.parameters())

    def step(number: int) -> torch.Tensor:
        tokens, targets = batch_of(sizes, number)
        optimizer.zero_grad()
        loss = loss_of(model(tokens), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


class _CutBlock(nn.Module):
    """A block of which this rank has some heads and some of the channels between the last two products."""

    def __init__(self, whole: Block, rank: int, size: int, reduce: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = whole.before_attention, whole.before_mlp
        self.num_heads = whole.num_heads // size
        self.reduce = reduce

        def cut(tensor: torch.Tensor, dimension: int, parts: int = 1) -> nn.Parameter:
            pieces = [part.chunk(size, dimension)[rank] for part in tensor.detach().chunk(parts, dimension)]
            return nn.Parameter(torch.cat(pieces, dimension))

        self.qkv_weight = cut(whole.query_key_value.weight, 0, 3)
        self.qkv_bias = cut(whole.query_key_value.bias, 0, 3)
        self.dense_weight, self.dense_bias = cut(whole.dense.weight, 1), whole.dense.bias
        self.up_weight, self.up_bias = cut(whole.up.weight, 0), cut(whole.up.bias, 0)
        self.down_weight, self.down_bias = cut(whole.down.weight, 1), whole.down.bias

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        normal = _Copy.apply(self.before_attention(hidden), self.reduce)
        mixed = attend(functional.linear(normal, self.qkv_weight, self.qkv_bias), self.num_heads)
        partial = functional.linear(mixed, self.dense_weight)
        hidden = hidden + _Sum.apply(partial, self.reduce) + self.dense_bias
        normal = _Copy.apply(self.before_mlp(hidden), self.reduce)
        between = functional.gelu(functional.linear(normal, self.up_weight, self.up_bias))
        partial = functional.linear(between, self.down_weight)
        return hidden + _Sum.apply(partial, self.reduce) + self.down_bias


class _Copy(torch.autograd.Function):
    """Nothing forward, an all-reduce backward."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, reduce: Callable[[torch.Tensor], Any]) -> torch.Tensor:
        ctx.reduce = reduce
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        gradient = gradients[0].contiguous()  # ours alone: nobody else has this memory
        ctx.reduce(gradient)
        return gradient, None


class _Sum(torch.autograd.Function):
    """An all-reduce forward, in place, nothing backward."""

    @staticmethod
    def forward(ctx: Any, partial: torch.Tensor, reduce: Callable[[torch.Tensor], Any]) -> torch.Tensor:
        reduce(partial)
        ctx.mark_dirty(partial)
        return partial

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        return gradients[0], None


def _leave(_: torch.Tensor) -> None:
    """Take the place of a collective."""
