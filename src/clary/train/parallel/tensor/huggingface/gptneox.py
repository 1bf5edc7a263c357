"""GPT-NeoX."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from clary.train.parallel.tensor.huggingface.causal import (
    block_forward_hook,
    block_return_hook,
    check_activation,
    is_newer,
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
    theirs="gpt_neox.layers",
    layer=(
        *linear("attention.pre_layernorm", "input_layernorm"),
        *linear(("attention.query", "attention.key", "attention.value"), "attention.query_key_value", by_head=True),
        *linear("attention.dense", "attention.dense"),
        *linear("output.pre_layernorm", "post_attention_layernorm"),
        *linear("output.dense1", "mlp.dense_h_to_4h"),
        *linear("output.dense2", "mlp.dense_4h_to_h"),
    ),
    model=(
        Rule(("word_embedding.weight",), "gpt_neox.embed_in.weight"),
        *linear("transformer.layernorm", "gpt_neox.final_layer_norm"),
    ),
    mask="attention",
    computed=("attention.rotary_emb.inv_freq",),
)

_num_heads: int | None = None  # of the model that was made distributed last: a state does not say


def translate_state_dict_to_hf_gptneox(
    state_dict: StateDict, max_seq_len: int | None = None, *, num_attention_heads: int | None = None
) -> StateDict:
    """Return transformers' state for that of a distributed GPT-NeoX.

    Args:
        max_seq_len: adds the masks of older versions of transformers.
        num_attention_heads: that of the model that was made distributed last, unless given.

    Raises: ValueError if nothing says the number of heads.
    """
    theirs = TRANSLATION.to_theirs(state_dict, num_heads=num_attention_heads or _num_heads, max_seq_len=max_seq_len)
    return {_name_of_head(key): value for key, value in theirs.items()}


def translate_hf_state_dict_to_smdistributed_gptneox(
    state_dict: StateDict, max_seq_len: int | None = None, *, num_attention_heads: int | None = None
) -> StateDict:
    """Return the state of a distributed GPT-NeoX for transformers'; the number of heads is found as on the way back.

    Raises: ValueError if nothing says the number of heads.
    """
    return TRANSLATION.to_ours(_with_head(state_dict), num_heads=num_attention_heads or _num_heads)


def _translate_blocks(state_dict: StateDict, max_seq_len: int | None = None, *, num_attention_heads: int) -> StateDict:
    """Return the state of a GPT-NeoX whose blocks alone are distributed for transformers'."""
    return TRANSLATION.to_ours(state_dict, num_heads=num_attention_heads)


def registrations(modeling: Any) -> list[Registration]:
    """Return what becomes of the classes of transformers' module."""
    return [
        Registration(
            modeling.GPTNeoXForCausalLM,
            DistributedTransformerLMHead,
            _model_init_hook,
            model_forward_hook(modeling.GPTNeoXForCausalLM),
            model_return_hook(modeling.CausalLMOutputWithPast),
            arguments_of=lambda model: ((model.config,), {}),
            to_distributed=lambda state, config: TRANSLATION.to_ours(
                _with_head(state), num_heads=config.num_attention_heads
            ),
            translations=_translations,
        ),
        Registration(
            modeling.GPTNeoXLayer,
            DistributedTransformerLayer,
            _block_init_hook,
            block_forward_hook(modeling.GPTNeoXLayer, takes_positions=True),
            block_return_hook(modeling.GPTNeoXLayer),
            arguments_of=lambda block: ((block.attention.config, block.attention.layer_idx), {}),
            to_distributed=lambda state, config: TRANSLATION.layer_to_ours(state, num_heads=config.num_attention_heads),
            translations=lambda config: _translations_of(config.num_attention_heads, has_blocks_alone=True),
        ),
    ]


def _translations(config: Any) -> Translations:
    return _translations_of(config.num_attention_heads)


@cache
def _translations_of(num_heads: int, *, has_blocks_alone: bool = False) -> Translations:
    to_ours = _translate_blocks if has_blocks_alone else translate_hf_state_dict_to_smdistributed_gptneox
    return (
        partial(translate_state_dict_to_hf_gptneox, num_attention_heads=num_heads),
        partial(to_ours, num_attention_heads=num_heads),
    )


def _with_head(state: StateDict) -> StateDict:
    """Return a state whose head has the name that transformers 5 and ours give it; before, it was embed_out."""
    return {key.replace("embed_out.", "lm_head."): value for key, value in state.items()}


def _name_of_head(key: str) -> str:
    """Return a key under the name that the program's transformers gives the head, if it is of the head."""
    return key if is_newer() else key.replace("lm_head.", "embed_out.")


def _layer_keywords(config: Any) -> dict[str, Any]:
    global _num_heads
    _num_heads = config.num_attention_heads
    head_size = config.hidden_size // config.num_attention_heads
    part, base = _rotation(config)
    has_biases = getattr(config, "attention_bias", True)  # versions before 4.36 have no such choice
    return {
        "num_attention_heads": config.num_attention_heads,
        "attention_head_size": head_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "attention_dropout_prob": getattr(config, "attention_dropout", 0.0),  # versions before 4.31 drop nothing
        "hidden_dropout_prob": getattr(config, "hidden_dropout", 0.0),
        "activation": check_activation(config.hidden_act),
        "layernorm_epsilon": config.layer_norm_eps,
        "initializer_range": config.initializer_range,
        "use_normal_initialization": True,
        "causal_mask_size": config.max_position_embeddings,
        "pre_layernorm": True,
        "post_layernorm": False,
        "use_qkv_bias": has_biases,
        "use_attention_dense_bias": has_biases,
        "rotary": Rotary(int(head_size * part), base=base),
        "parallel_residual": config.use_parallel_residual,
    }


def _rotation(config: Any) -> tuple[float, float]:
    """Return which part of a head is turned, and the base of the angles; older versions have them as two keys."""
    rope = getattr(config, "rope_parameters", None) or {}
    scaling = getattr(config, "rope_scaling", None) or {}
    kind = rope.get("rope_type") or scaling.get("rope_type") or scaling.get("type") or "default"
    if kind != "default":
        raise NotSupportedError(f"its rope_type is {kind!r}; distributed layers have 'default'")
    if rope:
        return rope.get("partial_rotary_factor", 1.0), rope["rope_theta"]
    return config.rotary_pct, config.rotary_emb_base


def _model_init_hook(config: Any) -> Arguments:
    return (), {
        **_layer_keywords(config),
        "num_layers": config.num_hidden_layers,
        "vocab_size": config.vocab_size,
        "num_positions": config.max_position_embeddings,
        "final_layernorm": True,
        "tie_input_output_embedding": config.tie_word_embeddings,
        "use_positional_embedding": False,
    }


def _block_init_hook(config: Any, layer_idx: int | None = None) -> Arguments:
    config.use_cache = False  # a model hands its blocks a cache even in training; ours keep none
    return (), _layer_keywords(config)
