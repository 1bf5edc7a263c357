"""GPT-J."""

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
from clary.train.parallel.tensor.rotary import Rotary
from clary.train.parallel.tensor.transformer import DistributedTransformerLayer

TRANSLATION = Translation(
    ours="transformer.seq_layers",
    theirs="transformer.h",
    layer=(
        *linear("pre_layernorm", "ln_1"),
        *linear("attention.query", "attn.q_proj"),
        *linear("attention.key", "attn.k_proj"),
        *linear("attention.value", "attn.v_proj"),
        *linear("attention.dense", "attn.out_proj"),
        *linear("output.dense1", "mlp.fc_in"),
        *linear("output.dense2", "mlp.fc_out"),
    ),
    model=(
        Rule(("word_embedding.weight",), "transformer.wte.weight"),
        *linear("transformer.layernorm", "transformer.ln_f"),
    ),
    mask="attn",
)


def translate_state_dict_to_hf_gptj(state_dict: StateDict, max_seq_len: int | None = None) -> StateDict:
    """Return transformers' state for that of a distributed GPT-J; `max_seq_len` adds the masks of older versions."""
    return TRANSLATION.to_theirs(state_dict, max_seq_len=max_seq_len)


def translate_hf_gptj_state_dict_to_smdistributed_gptj(
    state_dict: StateDict, max_seq_len: int | None = None
) -> StateDict:
    """Return the state of a distributed GPT-J for transformers'; `max_seq_len` has no effect."""
    return TRANSLATION.to_ours(state_dict)


def registrations(modeling: Any) -> list[Registration]:
    """Return what becomes of the classes of transformers' module."""
    return [
        Registration(
            modeling.GPTJForCausalLM,
            DistributedTransformerLMHead,
            _model_init_hook,
            model_forward_hook(modeling.GPTJForCausalLM),
            model_return_hook(modeling.CausalLMOutputWithPast),
            arguments_of=lambda model: ((model.config,), {}),
            to_distributed=lambda state, config: TRANSLATION.to_ours(state),
            translations=_translations,
        ),
        Registration(
            modeling.GPTJBlock,
            DistributedTransformerLayer,
            _block_init_hook,
            block_forward_hook(modeling.GPTJBlock, takes_positions=True),
            block_return_hook(modeling.GPTJBlock, is_tuple_unless_said=True),
            arguments_of=lambda block: ((block.attn.config, block.attn.layer_idx), {}),
            to_distributed=lambda state, config: TRANSLATION.layer_to_ours(state),
            translations=_translations,
        ),
    ]


def _translations(config: Any) -> Translations:
    return translate_state_dict_to_hf_gptj, translate_hf_gptj_state_dict_to_smdistributed_gptj


def _layer_keywords(config: Any) -> dict[str, Any]:
    if config.rotary_dim is None:
        raise NotSupportedError("its rotary_dim is None; distributed layers turn a part of every head")
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
        "use_qkv_bias": False,
        "use_attention_dense_bias": False,
        "rotary": Rotary(config.rotary_dim, is_interleaved=True),
        "parallel_residual": True,
        "shared_layernorm": True,
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
        "use_lm_head_bias": True,
        "use_positional_embedding": False,
    }


def _block_init_hook(config: Any, layer_idx: int | None = None) -> Arguments:
    config.use_cache = False  # a model hands its blocks a cache even in training; ours keep none
    return (), _layer_keywords(config)
