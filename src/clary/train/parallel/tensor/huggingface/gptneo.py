"""GPT-Neo."""

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
from clary.train.parallel.tensor.registry import Arguments, Registration, Translations
from clary.train.parallel.tensor.transformer import DistributedTransformerLayer

TRANSLATION = Translation(
    ours="transformer.seq_layers",
    theirs="transformer.h",
    layer=(
        *linear("attention.pre_layernorm", "ln_1"),
        *linear("attention.query", "attn.attention.q_proj"),
        *linear("attention.key", "attn.attention.k_proj"),
        *linear("attention.value", "attn.attention.v_proj"),
        *linear("attention.dense", "attn.attention.out_proj"),
        *linear("output.pre_layernorm", "ln_2"),
        *linear("output.dense1", "mlp.c_fc"),
        *linear("output.dense2", "mlp.c_proj"),
    ),
    model=(
        Rule(("word_embedding.weight",), "transformer.wte.weight"),
        Rule(("position_embedding.weight",), "transformer.wpe.weight"),
        *linear("transformer.layernorm", "transformer.ln_f"),
    ),
    mask="attn.attention",
)


def translate_state_dict_to_hf_gptneo(state_dict: StateDict, max_seq_len: int | None = None) -> StateDict:
    """Return transformers' state for that of a distributed GPT-Neo; `max_seq_len` adds the masks of older versions."""
    return TRANSLATION.to_theirs(state_dict, max_seq_len=max_seq_len)


def translate_hf_state_dict_to_smdistributed_gptneo(state_dict: StateDict, max_seq_len: int | None = None) -> StateDict:
    """Return the state of a distributed GPT-Neo for transformers'; `max_seq_len` has no effect."""
    return TRANSLATION.to_ours(state_dict)


def registrations(modeling: Any) -> list[Registration]:
    """Return what becomes of the classes of transformers' module."""
    return [
        Registration(
            modeling.GPTNeoForCausalLM,
            DistributedTransformerLMHead,
            _model_init_hook,
            model_forward_hook(modeling.GPTNeoForCausalLM),
            model_return_hook(modeling.CausalLMOutputWithPast),
            arguments_of=lambda model: ((model.config,), {}),
            to_distributed=lambda state, config: TRANSLATION.to_ours(state),
            translations=_translations,
        ),
        Registration(
            modeling.GPTNeoBlock,
            DistributedTransformerLayer,
            _block_init_hook,
            block_forward_hook(modeling.GPTNeoBlock),
            block_return_hook(modeling.GPTNeoBlock, is_tuple_unless_said=True),
            arguments_of=lambda block: ((block.attn.attention.config, block.attn.layer_id), {}),
            to_distributed=lambda state, config: TRANSLATION.layer_to_ours(state),
            translations=_translations,
        ),
    ]


def _translations(config: Any) -> Translations:
    return translate_state_dict_to_hf_gptneo, translate_hf_state_dict_to_smdistributed_gptneo


def _layer_keywords(config: Any) -> dict[str, Any]:
    return {
        "num_attention_heads": config.num_heads,
        "attention_head_size": config.hidden_size // config.num_heads,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size or 4 * config.hidden_size,
        "attention_dropout_prob": float(config.attention_dropout),
        "hidden_dropout_prob": float(config.resid_dropout),
        "activation": check_activation(config.activation_function),
        "layernorm_epsilon": config.layer_norm_epsilon,
        "initializer_range": config.initializer_range,
        "use_normal_initialization": True,
        "causal_mask_size": config.max_position_embeddings,
        "pre_layernorm": True,
        "post_layernorm": False,
        "use_qkv_bias": False,
        "scale_attention_scores": False,
    }


def _windows(config: Any) -> list[int | None]:
    return [config.window_size if kind == "local" else None for kind in config.attention_layers]


def _model_init_hook(config: Any) -> Arguments:
    return (), {
        **_layer_keywords(config),
        "num_layers": config.num_layers,
        "vocab_size": config.vocab_size,
        "num_positions": config.max_position_embeddings,
        "embedding_dropout_prob": float(config.embed_dropout),
        "final_layernorm": True,
        "tie_input_output_embedding": config.tie_word_embeddings,
        "attention_window": _windows(config),
    }


def _block_init_hook(config: Any, layer_id: int | None = None) -> Arguments:
    config.use_cache = False  # a model hands its blocks a cache even in training; ours keep none
    return (), {**_layer_keywords(config), "attention_window": _windows(config)[layer_id or 0]}
