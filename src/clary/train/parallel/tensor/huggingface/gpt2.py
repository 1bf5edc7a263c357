"""GPT-2."""

from __future__ import annotations

from typing import Any

from clary.train.parallel.tensor.huggingface.causal import (
    block_forward_hook,
    block_return_hook,
    check_activation,
    model_forward_hook,
    model_return_hook,
)
from clary.train.parallel.tensor.huggingface.translation import Rule, StateDict, Translation, linear
from clary.train.parallel.tensor.lm_head import DistributedTransformerLMHead
from clary.train.parallel.tensor.registry import Arguments, NotSupportedError, Registration, Translations
from clary.train.parallel.tensor.transformer import DistributedTransformerLayer

TRANSLATION = Translation(
    ours="transformer.seq_layers",
    theirs="transformer.h",
    layer=(
        *linear("attention.pre_layernorm", "ln_1"),
        *linear(("attention.query", "attention.key", "attention.value"), "attn.c_attn", transposed=True),
        *linear("attention.dense", "attn.c_proj", transposed=True),
        *linear("output.pre_layernorm", "ln_2"),
        *linear("output.dense1", "mlp.c_fc", transposed=True),
        *linear("output.dense2", "mlp.c_proj", transposed=True),
    ),
    model=(
        Rule(("word_embedding.weight",), "transformer.wte.weight"),
        Rule(("position_embedding.weight",), "transformer.wpe.weight"),
        *linear("transformer.layernorm", "transformer.ln_f"),
    ),
    mask="attn",
)


def translate_state_dict_to_hf_gpt2(state_dict: StateDict, max_seq_len: int | None = None) -> StateDict:
    """Return transformers' state for that of a distributed GPT-2; `max_seq_len` adds the masks of older versions."""
    return TRANSLATION.to_theirs(state_dict, max_seq_len=max_seq_len)


def translate_hf_state_dict_to_smdistributed_gpt2(state_dict: StateDict, max_seq_len: int | None = None) -> StateDict:
    """Return the state of a distributed GPT-2 for transformers'; `max_seq_len` has no effect."""
    return TRANSLATION.to_ours(state_dict)


translate_hf_state_dict_to_smdistributed = translate_hf_state_dict_to_smdistributed_gpt2  # its older name


def translate_hf_block_state_dict_to_smdistributed(state_dict: StateDict, max_seq_len: int | None = None) -> StateDict:
    """Return the state of a distributed layer for that of a GPT2Block, or of a model with such layers for a GPT-2's.

    `max_seq_len` has no effect.
    """
    return TRANSLATION.layer_to_ours(state_dict)


def translate_layer_state_dict_to_hf_gpt2_block(state_dict: StateDict, max_seq_len: int | None = None) -> StateDict:
    """Return the way back from `translate_hf_block_state_dict_to_smdistributed`; `max_seq_len` adds older masks."""
    return TRANSLATION.layer_to_theirs(state_dict, max_seq_len=max_seq_len)


def get_hf_gpt2_transformer_layer_hooks() -> tuple[Any, Any, Any]:
    """Return the hooks of constructor, call and result under which a GPT2Block is registered."""
    from transformers.models.gpt2 import modeling_gpt2

    return _block_init_hook, block_forward_hook(modeling_gpt2.GPT2Block), block_return_hook(modeling_gpt2.GPT2Block)


def registrations(modeling: Any) -> list[Registration]:
    """Return what becomes of the classes of transformers' module."""
    return [
        Registration(
            modeling.GPT2LMHeadModel,
            DistributedTransformerLMHead,
            _model_init_hook,
            model_forward_hook(modeling.GPT2LMHeadModel),
            model_return_hook(modeling.CausalLMOutputWithCrossAttentions),
            arguments_of=lambda model: ((model.config,), {}),
            to_distributed=lambda state, config: TRANSLATION.to_ours(state),
            translations=_translations,
        ),
        Registration(
            modeling.GPT2Block,
            DistributedTransformerLayer,
            _block_init_hook,
            block_forward_hook(modeling.GPT2Block),
            block_return_hook(modeling.GPT2Block),
            arguments_of=lambda block: ((block.attn.config, block.attn.layer_idx), {}),
            to_distributed=lambda state, config: TRANSLATION.layer_to_ours(state),
            translations=_translations,
        ),
    ]


def _translations(config: Any) -> Translations:
    return translate_state_dict_to_hf_gpt2, translate_hf_state_dict_to_smdistributed_gpt2


def _layer_keywords(config: Any) -> dict[str, Any]:
    if config.add_cross_attention:
        raise NotSupportedError("its cross-attention is not distributed: add_cross_attention is set")
    return {
        "num_attention_heads": config.num_attention_heads,
        "attention_head_size": config.hidden_size // config.num_attention_heads,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.n_inner or 4 * config.hidden_size,
        "attention_dropout_prob": config.attn_pdrop,
        "hidden_dropout_prob": config.resid_pdrop,
        "activation": check_activation(config.activation_function),
        "layernorm_epsilon": config.layer_norm_epsilon,
        "initializer_range": config.initializer_range,
        "use_normal_initialization": True,
        "causal_mask_size": config.max_position_embeddings,
        "pre_layernorm": True,
        "post_layernorm": False,
        "scale_attention_scores": config.scale_attn_weights,
        "scale_attn_by_layer_idx": config.scale_attn_by_inverse_layer_idx,
    }


def _model_init_hook(config: Any) -> Arguments:
    return (), {
        **_layer_keywords(config),
        "num_layers": config.num_hidden_layers,
        "vocab_size": config.vocab_size,
        "num_positions": config.max_position_embeddings,
        "embedding_dropout_prob": config.embd_pdrop,
        "final_layernorm": True,
        "tie_input_output_embedding": config.tie_word_embeddings,
    }


def _block_init_hook(config: Any, layer_idx: int | None = None) -> Arguments:
    config.use_cache = False  # a model hands its blocks a cache even in training; ours keep none
    return (), {**_layer_keywords(config), "layer_idx": layer_idx or 0}
