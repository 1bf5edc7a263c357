"""transformers' models with sequences cut over ranks, compared with the same models on whole sequences."""

import copy

import torch
import torch.distributed as dist
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)
from tsm_context_program import close

from clary.train.parallel.fsdp.context.batches import part_of_batch
from clary.train.parallel.fsdp.context.interception import COMMUNICATIONS
from clary.train.parallel.fsdp.context.spreading import spread_sequences
from clary.train.parallel.tensor.collectives import TensorGroup

_VOCABULARY = 40
_SIZES = {
    "vocab_size": _VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.2,
}


def check(model, rank, size, communications=COMMUNICATIONS, **options):
    """Compare loss, logits and gradients of a model with those of its copies whose sequences are spread."""
    group = TensorGroup(dist.group.WORLD, rank, size)
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(0, _VOCABULARY, (2, 16), generator=generator)
    labels = tokens.clone()
    labels[0, :7] = -100
    # copied before the first forward pass: the model caches values for the length that it has seen
    copies = [copy.deepcopy(model) for _ in communications]
    expected = model(tokens, labels=labels, **options)
    model.zero_grad()
    expected.loss.backward()
    for communication, spread in zip(communications, copies, strict=True):
        spread_sequences(spread, group, communication)
        spread.zero_grad()
        own_tokens, own_labels = part_of_batch((tokens, labels), rank, size)
        found = spread(input_ids=own_tokens, attention_mask=None, labels=own_labels, **options)
        found.loss.backward()
        assert found[0] is found.loss
        close(found["logits"], part_of_batch(expected.logits, rank, size), f"logits, {communication}")
        mean = found.loss.detach().clone()
        dist.all_reduce(mean)
        close((mean / size).to(expected.loss), expected.loss.detach(), f"loss, {communication}")
        for (name, whole), own in zip(model.named_parameters(), spread.parameters(), strict=True):
            dist.all_reduce(own.grad)
            close(own.grad / size, whole.grad, f"gradient of {name}, {communication}")


def test_llama(rank, size):
    check(LlamaForCausalLM(LlamaConfig(**_SIZES, num_key_value_heads=2)), rank, size)


def test_llama_made_with_eager_attention(rank, size):
    """From transformers 4.48 on the name of the attention function is replaced, also that of eager attention."""
    config = LlamaConfig(**_SIZES, num_key_value_heads=2)
    config._attn_implementation = "eager"
    check(LlamaForCausalLM(config), rank, size)


def test_softcaps_and_attention_sinks_are_refused(rank, size):
    from transformers import Gemma2Config, Gemma2ForCausalLM, GptOssConfig, GptOssForCausalLM  # not in older versions

    heads = {**_SIZES, "num_key_value_heads": 2, "head_dim": 4}
    for model, words in (
        (Gemma2ForCausalLM(Gemma2Config(**heads)), "attn_logit_softcapping"),
        (GptOssForCausalLM(GptOssConfig(**heads, num_local_experts=4)), "attention sinks"),
    ):
        told = None
        try:
            spread_sequences(model, TensorGroup(dist.group.WORLD, rank, size))
        except ValueError as error:
            told = str(error)
        assert told is not None, words
        assert words in told, told


def test_llama_with_positions_scaled_by_the_length(rank, size):
    """All ranks use the frequencies of the whole sequence, whose length most ranks' positions do not reveal."""
    scaled = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10.0}
    config = LlamaConfig(**_SIZES, max_position_embeddings=8, rope_parameters=scaled)
    check(LlamaForCausalLM(config), rank, size)


def test_mistral_with_its_sliding_window(rank, size):
    for window in (None, 5):
        config = MistralConfig(**_SIZES, num_key_value_heads=2, sliding_window=window)
        check(MistralForCausalLM(config), rank, size)


def test_gpt_neox(rank, size):
    config = GPTNeoXConfig(**_SIZES, hidden_dropout=0.0, attention_dropout=0.0)
    check(GPTNeoXForCausalLM(config), rank, size)


def test_mixtral(rank, size):
    config = MixtralConfig(**_SIZES, num_key_value_heads=2, num_local_experts=4, sliding_window=None)
    check(MixtralForCausalLM(config), rank, size)


def test_num_items_in_batch_divides_the_sum_of_losses(rank, size):
    model = LlamaForCausalLM(LlamaConfig(**_SIZES))
    tokens = torch.randint(0, _VOCABULARY, (2, 16), generator=torch.Generator().manual_seed(7))
    expected = model(tokens, labels=tokens, num_items_in_batch=5).loss.detach()
    spread_sequences(model, TensorGroup(dist.group.WORLD, rank, size))
    own = part_of_batch(tokens, rank, size)
    total = model(own, labels=own, num_items_in_batch=5).loss.detach()
    dist.all_reduce(total)
    close(total, expected, "sum of the ranks' losses")


def test_gradient_checkpointing(rank, size):
    model = LlamaForCausalLM(LlamaConfig(**_SIZES, num_key_value_heads=4))
    model.gradient_checkpointing_enable()
    model.train()
    check(model, rank, size)


def test_attention_dropout_needs_gathering(rank, size):
    model = LlamaForCausalLM(LlamaConfig(**_SIZES, num_key_value_heads=4, attention_dropout=0.5)).train()
    group = TensorGroup(dist.group.WORLD, rank, size)
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    gathered = spread_sequences(copy.deepcopy(model), group, "all_gather")
    assert not torch.equal(gathered(tokens).logits, gathered(tokens).logits)
    told = None
    try:
        spread_sequences(model, group, "p2p")(tokens)
    except NotImplementedError as error:
        told = str(error)
    assert told is not None
    assert "all_gather" in told, told


def test_spreading_a_model_does_not_change_the_configuration_of_another_model(rank, size):
    config = LlamaConfig(**_SIZES)
    model, other = LlamaForCausalLM(config), LlamaForCausalLM(config)
    spread_sequences(model, TensorGroup(dist.group.WORLD, rank, size))
    told = None
    try:
        other(torch.zeros(1, 8, dtype=torch.int64))
    except RuntimeError as error:
        told = str(error)
    assert told is not None
    assert "a configuration of its own" in told, told
