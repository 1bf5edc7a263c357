"""Sequences cut over the ranks of a context group, compared with one process that has the whole sequences."""

import copy
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from clary.train.parallel.fsdp.context.batches import IGNORED_LABEL, next_labels, part_of_batch
from clary.train.parallel.fsdp.context.interception import COMMUNICATIONS, Context
from clary.train.parallel.fsdp.context.layout import positions_of
from clary.train.parallel.fsdp.context.spreading import spread_sequences
from clary.train.parallel.tensor.collectives import TensorGroup

_WIDTH, _HEADS, _KEY_HEADS, _CHANNELS, _VOCABULARY, _LENGTH, _STEPS = 16, 4, 2, 4, 30, 24, 3


class LlamaAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(_WIDTH, _HEADS * _CHANNELS, bias=False)
        self.k_proj = nn.Linear(_WIDTH, _KEY_HEADS * _CHANNELS, bias=False)
        self.v_proj = nn.Linear(_WIDTH, _KEY_HEADS * _CHANNELS, bias=False)
        self.o_proj = nn.Linear(_HEADS * _CHANNELS, _WIDTH, bias=False)

    def forward(self, hidden, cos, sin):
        query, key, value = (
            project(hidden).unflatten(-1, (-1, _CHANNELS)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = rotated(query, cos, sin), rotated(key, cos, sin)
        out = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))


def rotated(tensor, cos, sin):
    first, second = tensor.chunk(2, -1)
    return tensor * cos + torch.cat((-second, first), -1) * sin


class LlamaDecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(_WIDTH)
        self.self_attn = LlamaAttention()
        self.post_attention_layernorm = nn.RMSNorm(_WIDTH)
        self.mlp = nn.Sequential(nn.Linear(_WIDTH, 3 * _WIDTH), nn.SiLU(), nn.Linear(3 * _WIDTH, _WIDTH))

    def forward(self, hidden, cos, sin):
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), cos, sin)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class LlamaForCausalLM(nn.Module):
    def __init__(self, returns="dict"):
        super().__init__()
        self.embed_tokens = nn.Embedding(_VOCABULARY, _WIDTH)
        self.layers = nn.ModuleList([LlamaDecoderLayer(), LlamaDecoderLayer()])
        self.lm_head = nn.Linear(_WIDTH, _VOCABULARY, bias=False)
        self.returns = returns

    def forward(self, input_ids, attention_mask=None, position_ids=None, labels=None):
        assert attention_mask is None
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1]).unsqueeze(0)
        angles = position_ids.unsqueeze(-1) / 10.0 ** (torch.arange(_CHANNELS // 2) / 2)
        angles = torch.cat((angles, angles), -1).unsqueeze(1)
        hidden = self.embed_tokens(input_ids)
        for layer in self.layers:
            hidden = layer(hidden, angles.cos(), angles.sin())
        logits = self.lm_head(hidden)
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        if self.returns == "tuple":
            return (logits,) if loss is None else (loss, logits)
        return {"logits": logits} if loss is None else {"loss": loss, "logits": logits}


def groups_of(rank, size, degree):
    made = [dist.new_group(list(range(first, first + degree))) for first in range(0, size, degree)]
    return TensorGroup(made[rank // degree], rank % degree, degree)


def batches(num_data):
    """Return tokens and labels by step and data rank; some tokens have no label."""
    generator = torch.Generator().manual_seed(7)
    made = []
    for _ in range(_STEPS):
        step = []
        for _ in range(num_data):
            tokens = torch.randint(0, _VOCABULARY, (2, _LENGTH), generator=generator)
            labels = tokens.clone()
            labels[0, 5:14] = IGNORED_LABEL
            step.append((tokens, labels))
        made.append(step)
    return made


def close(found, expected, words):
    torch.testing.assert_close(found, expected, rtol=3e-5, atol=3e-5, msg=lambda text: f"{words}: {text}")


def train_alone(model, num_data):
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4), []
    for step in batches(num_data):
        optimizer.zero_grad()
        parts = torch.stack([model(tokens, labels=labels)["loss"] for tokens, labels in step])
        parts.mean().backward()
        optimizer.step()
        losses.append(parts.tolist())
    return losses


def check_fsdp(rank, size, degree, communication, **options):
    alone = LlamaForCausalLM()
    group = groups_of(rank, size, degree)
    model = spread_sequences(copy.deepcopy(alone), group, communication)
    model = FSDP(
        model,
        auto_wrap_policy=ModuleWrapPolicy({LlamaDecoderLayer}),
        device_id=torch.device("cpu"),
        use_orig_params=True,
        **options,
    )
    num_data = size // degree
    expected = train_alone(alone, num_data)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4)
    for at, step in enumerate(batches(num_data)):
        optimizer.zero_grad()
        tokens, labels = part_of_batch(step[rank // degree], group.rank, degree)
        loss = model(tokens, attention_mask=torch.ones_like(tokens), labels=labels)["loss"]
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, group=group.process_group)
        assert abs(mean.item() / degree - expected[at][rank // degree]) < 3e-5, (at, mean / degree, expected[at])
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig()):
        whole = model.state_dict()
    for name, value in alone.state_dict().items():
        close(whole[name], value, name)


def attend_alone(query, key, value, window):
    key, value = (one.repeat_interleave(query.shape[1] // key.shape[1], 1) for one in (key, value))
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    places = torch.arange(query.shape[2])
    distance = places.unsqueeze(1) - places
    is_hidden = (distance < 0) | (distance >= (window or query.shape[2]))
    return scores.masked_fill(is_hidden, -torch.inf).softmax(-1) @ value


def test_attention_over_parts_is_that_of_whole_sequences(rank, size):
    group = TensorGroup(dist.group.WORLD, rank, size)
    for dtype, window in ((torch.float64, None), (torch.float64, 3), (torch.float32, None), (torch.float32, 9)):
        torch.manual_seed(4)
        length = 4 * size
        query = torch.randn(2, _HEADS, length, _CHANNELS, dtype=dtype).requires_grad_()
        key, value = (torch.randn(2, _KEY_HEADS, length, _CHANNELS, dtype=dtype).requires_grad_() for _ in range(2))
        weights = torch.randn(query.shape, dtype=dtype)
        expected = attend_alone(query, key, value, window)
        (expected * weights).sum().backward()
        places = positions_of(rank, size, length // size)
        for communication in COMMUNICATIONS:
            own = [one.detach()[:, :, places].requires_grad_() for one in (query, key, value)]
            out = Context(group, communication).attend(*own, window=window)
            close(out, expected[:, :, places], f"{communication}, window {window}")
            (out * weights[:, :, places]).sum().backward()
            for name, part, whole in zip(("query", "key", "value"), own, (query, key, value), strict=True):
                words = f"gradient of {name}, {communication}, window {window}"
                close(part.grad, whole.grad[:, :, places], words)


def test_attention_without_torchs_kernels_gives_the_same_results(rank, size):
    from clary.train.parallel.fsdp.context import blocks

    kept = blocks._KERNEL_DTYPES, blocks._MAX_SCORES
    # small enough that queries are processed in several blocks
    blocks._KERNEL_DTYPES, blocks._MAX_SCORES = {}, 2 * _HEADS * 2 * 3
    try:
        test_attention_over_parts_is_that_of_whole_sequences(rank, size)
    finally:
        blocks._KERNEL_DTYPES, blocks._MAX_SCORES = kept


def test_bfloat16_attention_stays_within_the_tolerance_of_exact_attention(rank, size):
    group = TensorGroup(dist.group.WORLD, rank, size)
    torch.manual_seed(4)
    length = 8 * size
    whole = [torch.randn(2, _HEADS, length, 8) for _ in range(3)]
    exact = attend_alone(*whole, None)
    places = positions_of(rank, size, length // size)
    for communication in COMMUNICATIONS:
        own = [one[:, :, places].bfloat16().requires_grad_() for one in whole]
        out = Context(group, communication).attend(*own)
        out.float().sum().backward()
        assert out.dtype == own[0].grad.dtype == torch.bfloat16
        torch.testing.assert_close(out.float(), exact[:, :, places], rtol=0.03, atol=0.03)


def test_labels_of_the_next_token_cross_the_boundaries_of_parts(rank, size):
    group = TensorGroup(dist.group.WORLD, rank, size)
    labels = torch.arange(2 * 4 * size).view(2, -1)
    following = torch.cat((labels[:, 1:], torch.full((2, 1), IGNORED_LABEL)), 1)
    found = next_labels(part_of_batch(labels, rank, size), group)
    assert torch.equal(found, part_of_batch(following, rank, size)), (found, following)


def test_training_with_all_ranks_on_one_sequence(rank, size):
    for communication in COMMUNICATIONS:
        check_fsdp(rank, size, size, communication)


def test_training_with_groups_on_different_sequences(rank, size):
    if size > 2:
        for communication in COMMUNICATIONS:
            check_fsdp(rank, size, 2, communication)


def test_outputs_of_all_kinds_and_checkpointed_layers(rank, size):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        apply_activation_checkpointing,
        checkpoint_wrapper,
    )

    group = TensorGroup(dist.group.WORLD, rank, size)
    alone = LlamaForCausalLM("tuple")
    tokens, labels = batches(1)[0][0]
    expected = alone(tokens, labels=labels)
    expected[0].backward()
    own_tokens, own_labels = part_of_batch([tokens, labels], rank, size)
    for communication in COMMUNICATIONS:
        model = spread_sequences(copy.deepcopy(alone), group, communication)
        model.zero_grad()
        apply_activation_checkpointing(
            model,
            checkpoint_wrapper_fn=checkpoint_wrapper,
            check_fn=lambda module: isinstance(module, LlamaDecoderLayer),
        )
        loss, logits = model(own_tokens, labels=own_labels)
        loss.backward()
        close(logits, part_of_batch(expected[1], rank, size), "logits")
        for (name, whole), own in zip(alone.named_parameters(), model.parameters(), strict=True):
            dist.all_reduce(own.grad)
            close(own.grad / size, whole.grad, f"gradient of {name}")
        (only,) = model(input_ids=own_tokens)
        close(only, logits, "logits without labels")


def test_models_and_calls_that_cannot_be_spread_are_refused(rank, size):
    group = TensorGroup(dist.group.WORLD, rank, size)
    tokens = torch.zeros(1, 4, dtype=torch.int64)
    model = spread_sequences(LlamaForCausalLM(), group)

    class EagerAttention(LlamaAttention):
        def forward(self, hidden, cos, sin):
            return hidden

    eager = LlamaForCausalLM()
    eager.layers[0].self_attn = EagerAttention()
    spread_sequences(eager, group)
    for call, kind, words in (
        (lambda: spread_sequences(nn.Linear(2, 2), group), ValueError, "no module named ...Attention"),
        (lambda: spread_sequences(LlamaDecoderLayer(), group), ValueError, "no input_ids and no position_ids"),
        (lambda: spread_sequences(LlamaForCausalLM(), group, "a2a"), ValueError, "p2p, all_gather"),
        (lambda: model(tokens, attention_mask=tokens), ValueError, "needs no mask"),
        (lambda: model(tokens[:, :3]), ValueError, "must be even"),
        (lambda: eager(tokens), RuntimeError, "scaled_dot_product_attention"),
        (lambda: part_of_batch(tokens[:, :3], rank, size), ValueError, "no multiple"),
        (lambda: part_of_batch("tokens", rank, size), TypeError, "got str"),
    ):
        told = None
        try:
            call()
        except kind as error:
            told = str(error)
        assert told is not None, words
        assert words in told, told
