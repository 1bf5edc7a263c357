"""What BERT and RoBERTa have in common: an encoder of layers that normalise behind each block."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from clary.train.parallel.caches import CACHES
from clary.train.parallel.tensor.huggingface.causal import by_name, check_activation, layer_mask, refuse
from clary.train.parallel.tensor.huggingface.translation import Translation, linear
from clary.train.parallel.tensor.registry import Arguments, NotSupportedError, Registration, Translations
from clary.train.parallel.tensor.transformer import DistributedTransformer

TRANSLATION = Translation(
    ours="encoder.seq_layers",
    theirs="encoder.layer",
    layer=(
        *linear("attention.query", "attention.self.query"),
        *linear("attention.key", "attention.self.key"),
        *linear("attention.value", "attention.self.value"),
        *linear("attention.dense", "attention.output.dense"),
        *linear("attention.layernorm", "attention.output.LayerNorm"),
        *linear("output.dense1", "intermediate.dense"),
        *linear("output.dense2", "output.dense"),
        *linear("output.layernorm", "output.LayerNorm"),
    ),
)


def encoder_registration(
    encoder_class: Any, modeling: Any, translations: Callable[[Any], Translations]
) -> Registration:
    """Return what becomes of an encoder."""
    signature = inspect.signature(encoder_class.forward)
    who = encoder_class.__name__

    def forward_hook(*args: Any, **kwargs: Any) -> Arguments:
        given = by_name(signature, args, kwargs)
        refuse(
            who,
            given,
            "encoder_hidden_states",
            *CACHES,
            "output_attentions",
            "output_hidden_states",
            "head_mask",
        )
        hidden = given["hidden_states"]
        return ((hidden, layer_mask(given.get("attention_mask"), hidden, who)),), {}

    def return_hook(output: Any) -> Any:
        return modeling.BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=output[0])

    return Registration(
        encoder_class,
        DistributedTransformer,
        _init_hook,
        forward_hook,
        return_hook,
        arguments_of=lambda encoder: ((encoder.config,), {}),
        to_distributed=lambda state, config: {
            key.removeprefix("encoder."): value
            for key, value in TRANSLATION.to_ours({f"encoder.{key}": value for key, value in state.items()}).items()
        },
        translations=translations,
    )


def _init_hook(config: Any) -> Arguments:
    if config.add_cross_attention:
        raise NotSupportedError("its cross-attention is not distributed: add_cross_attention is set")
    if getattr(config, "position_embedding_type", None) not in (None, "absolute"):
        raise NotSupportedError(f"its position_embedding_type is {config.position_embedding_type!r}")
    if config.is_decoder:
        config.use_cache = False  # a decoder hands its layers a cache even in training; ours keep none
    return (), {
        "num_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "attention_head_size": config.hidden_size // config.num_attention_heads,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "attention_dropout_prob": config.attention_probs_dropout_prob,
        "hidden_dropout_prob": config.hidden_dropout_prob,
        "activation": check_activation(config.hidden_act),
        "layernorm_epsilon": config.layer_norm_eps,
        "initializer_range": config.initializer_range,
        "use_normal_initialization": True,
        "causal_mask_size": config.max_position_embeddings if config.is_decoder else None,
    }
