"""Models of transformers before 4.48 with sequences cut over ranks: classes of attention with SDPA and flash-attn.

flash-attn can be installed only with a GPU: a module of the same name replaces it and computes attention of whole
models.
"""

import inspect
import sys
import types
from importlib.machinery import ModuleSpec

import torch
import torch.distributed as dist
from torch.nn import functional

WINDOW = 5


def flash_attn_func(query, key, value, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1)):
    """Compute attention of tensors [B, S, H, D]; a query sees `window_size[0]` positions before its own."""
    assert causal
    assert not dropout_p
    places = torch.arange(query.shape[1])
    distance = places.unsqueeze(1) - places
    mask = (distance >= 0) & ((distance <= window_size[0]) | (window_size[0] < 0))
    query, key, value = (one.transpose(1, 2) for one in (query, key, value))
    out = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=softmax_scale, enable_gqa=True
    )
    return out.transpose(1, 2)


def _nothing_is_padded(*_args, **_kwargs):
    raise AssertionError("no test has padding")


def _stand_in_for_flash_attn():
    flash, padding = types.ModuleType("flash_attn"), types.ModuleType("flash_attn.bert_padding")
    flash.flash_attn_func, flash.flash_attn_varlen_func = flash_attn_func, _nothing_is_padded
    padding.index_first_axis = padding.pad_input = padding.unpad_input = _nothing_is_padded
    flash.bert_padding, flash.__spec__ = padding, ModuleSpec("flash_attn", None)
    sys.modules.update({"flash_attn": flash, "flash_attn.bert_padding": padding})
    from transformers import utils

    utils.is_flash_attn_2_available = lambda: True


_stand_in_for_flash_attn()

from transformers import (  # noqa: E402
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)
from tsm_context_huggingface_program import check  # noqa: E402

from clary.train.parallel.fsdp.context.spreading import spread_sequences  # noqa: E402
from clary.train.parallel.tensor.collectives import TensorGroup  # noqa: E402

_SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.2,
    "max_position_embeddings": 12,  # less than the 16 positions of the tests, so position tables have to grow
}


def made(kind, config, attention):
    config._attn_implementation = attention
    model = kind(config)
    found = {type(one).__name__ for one in model.modules() if type(one).__name__.startswith(kind.__name__[:5])}
    suffix = {"sdpa": "SdpaAttention", "flash_attention_2": "FlashAttention2"}[attention]
    assert any(one.endswith(suffix) for one in found), found
    return model


def test_llama_with_sdpa(rank, size):
    check(made(LlamaForCausalLM, LlamaConfig(**_SIZES, num_key_value_heads=2), "sdpa"), rank, size)


def test_llama_with_flash_attn(rank, size):
    check(made(LlamaForCausalLM, LlamaConfig(**_SIZES, num_key_value_heads=2), "flash_attention_2"), rank, size)


def test_llama_with_positions_scaled_by_the_length(rank, size):
    for attention in ("sdpa", "flash_attention_2"):
        config = LlamaConfig(**_SIZES, rope_theta=10.0, rope_scaling={"type": "dynamic", "factor": 2.0})
        check(made(LlamaForCausalLM, config, attention), rank, size)


def test_mistral_with_sdpa(rank, size):
    config = MistralConfig(**_SIZES, num_key_value_heads=2, sliding_window=None)
    check(made(MistralForCausalLM, config, "sdpa"), rank, size)


def test_mistral_with_flash_attn_and_a_window(rank, size):
    for window in (None, WINDOW, 12):  # 12 is more than one rank's part of the sequence, and less than the whole
        config = MistralConfig(**_SIZES, num_key_value_heads=2, sliding_window=window)
        check(made(MistralForCausalLM, config, "flash_attention_2"), rank, size)


def test_mixtral(rank, size):
    for attention, window in (("sdpa", None), ("flash_attention_2", None), ("flash_attention_2", WINDOW)):
        config = MixtralConfig(**_SIZES, num_key_value_heads=2, num_local_experts=4, sliding_window=window)
        check(made(MixtralForCausalLM, config, attention), rank, size)


def test_gpt_neox(rank, size):
    config = GPTNeoXConfig(**_SIZES, hidden_dropout=0.0, attention_dropout=0.0, rotary_pct=0.5)
    # transformers 4.37 reads the dtype of q_proj, which GPT-NeoX lacks, if hidden states are in float32.
    check(made(GPTNeoXForCausalLM, config, "flash_attention_2").double(), rank, size)


def test_gradient_checkpointing_with_flash_attn(rank, size):
    model = made(LlamaForCausalLM, LlamaConfig(**_SIZES), "flash_attention_2")
    model.gradient_checkpointing_enable()
    check(model.train(), rank, size)


def test_spreading_one_model_leaves_the_attention_of_another_unchanged(rank, size):
    config = LlamaConfig(**_SIZES)
    model, other = (made(LlamaForCausalLM, config, "flash_attention_2") for _ in range(2))
    tokens = torch.arange(12).unsqueeze(0)
    expected = other(tokens).logits
    spread_sequences(model, TensorGroup(dist.group.WORLD, rank, size))
    torch.testing.assert_close(other(tokens).logits, expected)
    assert "attention_mask" in inspect.signature(other.model.layers[0].self_attn.forward).parameters


def test_eager_attention_is_refused(rank, size):
    config = LlamaConfig(**_SIZES)
    config._attn_implementation = "eager"
    model = spread_sequences(LlamaForCausalLM(config), TensorGroup(dist.group.WORLD, rank, size))
    told = None
    try:
        model(torch.zeros(1, 8, dtype=torch.int64))
    except RuntimeError as error:
        told = str(error)
    assert told is not None
    assert "flash_attention_2" in told, told
