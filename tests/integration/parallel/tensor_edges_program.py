"""Tensor-parallel layers: refused arguments, single attention layers, tensor groups with replicas."""

import itertools

import torch
import torch.distributed as dist
from tensor_parallel_program import HEAD, LAYER, H, N, S, assert_near, normal, parallel, raised, tensor_group
from torch.nn import functional
from whole_states import gather_state_dict

from clary.train.parallel import runtime
from clary.train.parallel.layout.mesh import Along
from clary.train.parallel.tensor import collectives
from clary.train.parallel.tensor.collectives import NotDivisibleError
from clary.train.parallel.tensor.embedding import DistributedEmbedding
from clary.train.parallel.tensor.flash_layers import FlashAttentionLayer
from clary.train.parallel.tensor.layernorm import FusedLayerNorm
from clary.train.parallel.tensor.linear import DistributedLinear
from clary.train.parallel.tensor.transformer import DistributedTransformerLayer


def test_sizes_that_do_not_divide_are_refused_by_name(rank, size):
    with parallel(size):
        for make, words in (
            (lambda: DistributedLinear(size * 4 + 1, 3), f"of shape (3, {size * 4 + 1})"),
            (lambda: DistributedTransformerLayer(**LAYER | {"num_attention_heads": 3}), "num_attention_heads is 3"),
            (lambda: DistributedEmbedding(4, 5), "is 5"),
        ):
            failure = raised(make)
            assert isinstance(failure, NotDivisibleError)
            assert words in str(failure), failure
            assert f"tensor_parallel_degree, which is {size}" in str(failure)


def test_wrong_arguments_are_refused_with_the_expected_ones(rank, size):
    with parallel(size):
        layer = DistributedTransformerLayer(**LAYER, causal_mask_size=4)
        for make, words in (
            (lambda: DistributedTransformerLayer(**LAYER, post_layernorm=False), "at least one must be true"),
            (lambda: DistributedTransformerLayer(**LAYER, activation="swish9"), "activation is 'swish9'"),
            (lambda: DistributedTransformerLayer(**LAYER, fused=1), "unknown arguments fused"),
            (lambda: layer((normal(N, S, H),)), "takes a tuple (hidden_states, attention_mask); got 1"),
            (lambda: layer((normal(N, S, H), None)), "5 positions; causal_mask_size is 4"),
            (lambda: DistributedEmbedding(4, H, padding_idx=4), "padding_idx is 4"),
            (lambda: DistributedEmbedding(4, H, _weight=torch.zeros(2, 2)), "expected (4, 16)"),
            (lambda: FlashAttentionLayer(scale_attn_by_layer_idx=True), "layer_idx must say"),
        ):
            failure = raised(make)
            assert isinstance(failure, TypeError | ValueError)
            assert words in str(failure), failure


def test_flash_attention_layer(rank, size):
    qkv = normal(2, S, 3, 3, HEAD, seed=1)
    query, key, value = (part.transpose(1, 2) for part in qkv.unbind(2))
    distance = torch.arange(S) - torch.arange(S)[:, None]
    is_later = distance > 0
    mask = torch.zeros(2, 1, 1, S)
    mask[1, ..., 1] = -1e4
    slopes = torch.tensor([2.0**-4, 2.0**-8, 2.0**-2])[:, None, None]  # one slope per head
    for keywords, divisor, alibi in (
        ({}, HEAD**0.5, 0),
        ({"scale_attention_scores": False}, 1, 0),
        ({"scale_attn_by_layer_idx": True, "layer_idx": 2}, 3 * HEAD**0.5, 0),
        ({"scale": 0.25}, 4, 0),
        ({"use_alibi": True}, HEAD**0.5, -slopes * distance.abs()),
    ):
        for causal, given in itertools.product((False, True), (None, mask, mask == 0)):
            layer = FlashAttentionLayer(attention_dropout_prob=0.0, attention_head_size=HEAD, **keywords)
            scores = query @ key.transpose(-1, -2) / divisor + alibi + (mask if given is not None else 0)
            if causal:
                scores = scores.masked_fill(is_later, -1e9)
            assert_near(layer(qkv, given, causal), scores.softmax(-1) @ value, f"{keywords}, causal {causal}")
    assert FusedLayerNorm(4, 1e-3).eps == 1e-3


def test_tensor_group_within_data_parallel_ranks(rank, size):
    """Each half of the ranks shards a layer; averaging over the halves gives the mean over the global batch."""
    with parallel(size // 2, prescaled_batch=False):
        groups = runtime.current().groups
        torch.manual_seed(3)
        module = DistributedLinear(H, 4)
        weight = gather_state_dict(module, tensor_group())["weight"].requires_grad_()
        batches = [normal(N, H, seed=number) for number in range(size)]
        dp_rank = groups.group_rank(Along.DP)
        module(batches[dp_rank]).square().mean().backward()
        gradient = collectives.gather_whole(module.weight.grad, tensor_group(), 1)
        dist.all_reduce(gradient, group=groups.process_group(Along.RDP))
        bias = module.bias.detach()
        (sum(functional.linear(batch, weight, bias).square().mean() for batch in batches) / size).backward()
        assert_near(gradient / groups.size(Along.RDP), weight.grad, "gradient over the global batch")
