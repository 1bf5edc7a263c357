"""Tables of transformers' models: classes, configuration keys, names of projections and norms.

Where: `reader` replaces modules by the tables that name classes (SMP v1); `fsdp.layers.structure` finds matrices to cut
in place by the tables with `is_cut_in_place` (SMP v2).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from clary.train.parallel.tensor.huggingface.translation import Rule, Translation, linear
from clary.train.parallel.tensor.rotary import Rotary
from clary.train.parallel.tensor.settings import NotSupportedError

WORDS = "word_embedding"  # name of the token embedding in our layers
HEAD = "lm_head"  # name of the vocabulary head, in transformers 5 and in our layers
_QUERY_KEY_VALUE = ("attention.query", "attention.key", "attention.value")


@dataclass(frozen=True)
class Key:
    """A key of a model's configuration; `default` is its value in versions of transformers that lack it."""

    name: str
    default: Any = None

    def read(self, config: Any) -> Any:
        """Return the value of the key.

        Raises: AttributeError if the configuration lacks it and there is no default.
        """
        return getattr(config, self.name) if self.default is None else getattr(config, self.name, self.default)


@dataclass(frozen=True)
class Architecture:
    """One model of transformers.

    Args:
        name: name in its module's path, transformers.models.<name>.modeling_<name>.
        translation: the paths of its layers, and the mapping between its tensors and ours.
        model: the class that is replaced as a whole, a causal model or an encoder; empty if no whole class is replaced
            (SMP v1).
        result: the class of that model's results.
        block: the class of its layers, which are replaced one by one if the model is not; empty if they are not
            replaced.
        config_of_block: path, in a block, of the configuration that the constructor received.
        number_of_block: path, in a block, of the layer number that the constructor received.
        takes_positions: whether calls of blocks pass positions.
        returns_tuple: whether blocks without a return annotation return a tuple in every version.
        layer_keywords: arguments of our layers: a `Key`, a function of the configuration, or the value itself.
        model_keywords: further arguments of our model, in the same form.
        has_no_cross_attention: whether to refuse configurations with cross-attention.
        embedding: name of the token embedding, if the translation has no rule for it: SMP v1 cuts it in place, under
            its own name.
        older_head: the name of the head before transformers 5, if it differs.
        is_cut_in_place: whether layers of this structure are cut in place (SMP v2).
        is_newer_only: whether layers are replaced only if transformers is version 5 or newer, since names in a layer
            differ in older versions.
    """

    name: str
    translation: Translation
    model: str = ""
    result: str = ""
    block: str = ""
    config_of_block: str = ""
    number_of_block: str = ""
    takes_positions: bool = False
    returns_tuple: bool = False
    layer_keywords: Mapping[str, Any] = field(default_factory=dict)
    model_keywords: Mapping[str, Any] = field(default_factory=dict)
    has_no_cross_attention: bool = False
    embedding: str = ""
    older_head: str | None = None
    is_cut_in_place: bool = False
    is_newer_only: bool = False

    @property
    def is_by_head(self) -> bool:
        """Whether reading a state requires the number of heads."""
        return any(rule.is_by_head for rule in self.translation.layer)

    def modules_of(self, *ours: str) -> tuple[str, ...]:
        """Return the names, without paths, of transformers' modules that hold the weights of our modules."""
        wanted = {f"{one}.weight" for one in ours}
        rules = (*self.translation.layer, *self.translation.model)
        kept = (self.embedding,) if self.embedding and WORDS in ours else ()
        return (*(rule.theirs.split(".")[-2] for rule in rules if wanted & set(rule.ours)), *kept)


def _rotary_of_gptj(config: Any) -> Rotary:
    if config.rotary_dim is None:
        raise NotSupportedError("its rotary_dim is None; distributed layers rotate rotary_dim channels of every head")
    return Rotary(config.rotary_dim, is_interleaved=True)


def _rotary_of_gpt_neox(config: Any) -> Rotary:
    """Return the rotary embedding: from two separate keys in older versions, from `rope_parameters` in newer ones."""
    rope = getattr(config, "rope_parameters", None) or {}
    scaling = getattr(config, "rope_scaling", None) or {}
    kind = rope.get("rope_type") or scaling.get("rope_type") or scaling.get("type") or "default"
    if kind != "default":
        raise NotSupportedError(f"its rope_type is {kind!r}; distributed layers have 'default'")
    part = rope.get("partial_rotary_factor", 1.0) if rope else config.rotary_pct
    base = rope["rope_theta"] if rope else config.rotary_emb_base
    return Rotary(int(config.hidden_size // config.num_attention_heads * part), base=base)


def _rotary_of_llama(config: Any) -> Rotary:
    """Return the rotary embedding: from a separate key in older versions, from `rope_parameters` since 5."""
    rope = getattr(config, "rope_parameters", None) or {}
    scaling = getattr(config, "rope_scaling", None) or {}
    kind = rope.get("rope_type") or scaling.get("rope_type") or scaling.get("type") or "default"
    if kind != "default":
        raise NotSupportedError(f"its rope_type is {kind!r}; distributed layers have 'default'")
    if getattr(config, "pretraining_tp", 1) != 1:
        raise NotSupportedError(f"its pretraining_tp is {config.pretraining_tp}; distributed layers have 1")
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Rotary(size, base=rope.get("rope_theta") or getattr(config, "rope_theta", None) or Rotary.base)


def _shared_heads_of_llama(config: Any) -> int | None:
    """Return the number of heads of keys and values; transformers before 4.31, without `repeat_kv`, ignores the key."""
    modeling = sys.modules.get("transformers.models.llama.modeling_llama")
    if modeling is not None and not hasattr(modeling, "repeat_kv"):
        return None
    return getattr(config, "num_key_value_heads", None)


def _inner_of_opt(config: Any) -> int:
    """Return the number of inner channels; refuse models that normalise after the blocks (OPT-350M)."""
    if not (config.enable_bias and config.layer_norm_elementwise_affine and config.do_layer_norm_before):
        raise NotSupportedError(
            "its do_layer_norm_before, enable_bias or layer_norm_elementwise_affine is False; distributed layers "
            "of OPT normalise before, with weights, and have biases"
        )
    return int(config.ffn_dim)


def _windows_of_gpt_neo(config: Any) -> list[int | None]:
    return [config.window_size if kind == "local" else None for kind in config.attention_layers]


_LAYER = {
    "num_attention_heads": Key("num_attention_heads"),
    "hidden_size": Key("hidden_size"),
    "initializer_range": Key("initializer_range"),
    "use_normal_initialization": True,
}
_DECODER_LAYER = {
    **_LAYER,
    "causal_mask_size": Key("max_position_embeddings"),
    "layernorm_epsilon": Key("layer_norm_epsilon"),
    "activation": Key("activation_function"),
    "pre_layernorm": True,
    "post_layernorm": False,
}
_DECODER = {
    "num_layers": Key("num_hidden_layers"),
    "vocab_size": Key("vocab_size"),
    "num_positions": Key("max_position_embeddings"),
    "final_layernorm": True,
    "tie_input_output_embedding": Key("tie_word_embeddings"),
}
_OF_OPENAI = {  # keys that GPT-2 and GPT-J share; `n_inner` may be None
    "intermediate_size": Key("n_inner"),
    "attention_dropout_prob": Key("attn_pdrop"),
    "hidden_dropout_prob": Key("resid_pdrop"),
}
_WORDS = Rule(("word_embedding.weight",), "transformer.wte.weight")
_POSITIONS = Rule(("position_embedding.weight",), "transformer.wpe.weight")
_FINAL_NORM = linear("transformer.layernorm", "transformer.ln_f")

_BERT = Architecture(
    name="bert",
    model="BertEncoder",
    result="BaseModelOutputWithPastAndCrossAttentions",
    has_no_cross_attention=True,
    translation=Translation(
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
    ),
    layer_keywords={
        **_LAYER,
        "intermediate_size": Key("intermediate_size"),
        "attention_dropout_prob": Key("attention_probs_dropout_prob"),
        "hidden_dropout_prob": Key("hidden_dropout_prob"),
        "activation": Key("hidden_act"),
        "layernorm_epsilon": Key("layer_norm_eps"),
        "causal_mask_size": lambda config: config.max_position_embeddings if config.is_decoder else None,
    },
    model_keywords={"num_layers": Key("num_hidden_layers")},
)
_TABLES = (
    Architecture(
        name="gpt2",
        model="GPT2LMHeadModel",
        result="CausalLMOutputWithCrossAttentions",
        block="GPT2Block",
        config_of_block="attn.config",
        number_of_block="attn.layer_idx",
        has_no_cross_attention=True,
        translation=Translation(
            ours="transformer.seq_layers",
            theirs="transformer.h",
            layer=(
                *linear("attention.pre_layernorm", "ln_1"),
                *linear(_QUERY_KEY_VALUE, "attn.c_attn", transposed=True),
                *linear("attention.dense", "attn.c_proj", transposed=True),
                *linear("output.pre_layernorm", "ln_2"),
                *linear("output.dense1", "mlp.c_fc", transposed=True),
                *linear("output.dense2", "mlp.c_proj", transposed=True),
            ),
            model=(_WORDS, _POSITIONS, *_FINAL_NORM),
            mask="attn",
        ),
        layer_keywords={
            **_DECODER_LAYER,
            **_OF_OPENAI,
            "scale_attention_scores": Key("scale_attn_weights"),
            "scale_attn_by_layer_idx": Key("scale_attn_by_inverse_layer_idx"),
        },
        model_keywords={**_DECODER, "embedding_dropout_prob": Key("embd_pdrop")},
    ),
    Architecture(
        name="gptj",
        model="GPTJForCausalLM",
        result="CausalLMOutputWithPast",
        block="GPTJBlock",
        config_of_block="attn.config",
        number_of_block="attn.layer_idx",
        takes_positions=True,
        returns_tuple=True,
        translation=Translation(
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
            model=(_WORDS, *_FINAL_NORM),
            mask="attn",
        ),
        layer_keywords={
            **_DECODER_LAYER,
            **_OF_OPENAI,
            "use_qkv_bias": False,
            "use_attention_dense_bias": False,
            "rotary": _rotary_of_gptj,
            "parallel_residual": True,
            "shared_layernorm": True,
        },
        model_keywords={
            **_DECODER,
            "embedding_dropout_prob": Key("embd_pdrop"),
            "use_lm_head_bias": True,
            "use_positional_embedding": False,
        },
    ),
    Architecture(
        name="gpt_neo",
        model="GPTNeoForCausalLM",
        result="CausalLMOutputWithPast",
        block="GPTNeoBlock",
        config_of_block="attn.attention.config",
        number_of_block="attn.layer_id",
        returns_tuple=True,
        translation=Translation(
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
            model=(_WORDS, _POSITIONS, *_FINAL_NORM),
            mask="attn.attention",
        ),
        layer_keywords={
            **_DECODER_LAYER,
            "intermediate_size": Key("intermediate_size"),  # may be None
            "attention_dropout_prob": Key("attention_dropout"),
            "hidden_dropout_prob": Key("resid_dropout"),
            "use_qkv_bias": False,
            "scale_attention_scores": False,
            "attention_window": _windows_of_gpt_neo,
        },
        model_keywords={**_DECODER, "embedding_dropout_prob": Key("embed_dropout")},
    ),
    Architecture(
        name="gpt_neox",
        model="GPTNeoXForCausalLM",
        result="CausalLMOutputWithPast",
        block="GPTNeoXLayer",
        config_of_block="attention.config",
        number_of_block="attention.layer_idx",
        takes_positions=True,
        older_head="embed_out",
        is_cut_in_place=True,
        translation=Translation(
            ours="transformer.seq_layers",
            theirs="gpt_neox.layers",
            layer=(
                *linear("attention.pre_layernorm", "input_layernorm"),
                *linear(_QUERY_KEY_VALUE, "attention.query_key_value", by_head=True),
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
        ),
        layer_keywords={
            **_DECODER_LAYER,
            "intermediate_size": Key("intermediate_size"),
            "attention_dropout_prob": Key("attention_dropout", 0.0),  # transformers before 4.31 lacks this dropout
            "hidden_dropout_prob": Key("hidden_dropout", 0.0),
            "activation": Key("hidden_act"),
            "layernorm_epsilon": Key("layer_norm_eps"),
            "use_qkv_bias": Key("attention_bias", True),  # transformers before 4.36 lacks this key
            "use_attention_dense_bias": Key("attention_bias", True),
            "rotary": _rotary_of_gpt_neox,
            "parallel_residual": Key("use_parallel_residual"),
        },
        model_keywords={**_DECODER, "use_positional_embedding": False},
    ),
    _BERT,
    replace(_BERT, name="roberta", model="RobertaEncoder"),
    Architecture(
        name="opt",
        block="OPTDecoderLayer",
        config_of_block="self_attn.config",
        number_of_block="self_attn.layer_idx",
        translation=Translation(
            ours="layers",  # layers are replaced in place, so the modules around them keep their names
            theirs="layers",
            layer=(
                *linear("attention.pre_layernorm", "self_attn_layer_norm"),
                *linear("attention.query", "self_attn.q_proj"),
                *linear("attention.key", "self_attn.k_proj"),
                *linear("attention.value", "self_attn.v_proj"),
                *linear("attention.dense", "self_attn.out_proj"),
                *linear("output.pre_layernorm", "final_layer_norm"),
                *linear("output.dense1", "fc1"),
                *linear("output.dense2", "fc2"),
            ),
        ),
        layer_keywords={
            "num_attention_heads": Key("num_attention_heads"),
            "hidden_size": Key("hidden_size"),
            "initializer_range": Key("init_std"),
            "use_normal_initialization": True,
            "intermediate_size": _inner_of_opt,
            "attention_dropout_prob": Key("attention_dropout"),
            "hidden_dropout_prob": Key("dropout"),
            "activation": Key("activation_function"),
            "causal_mask_size": Key("max_position_embeddings"),
            "pre_layernorm": True,
            "post_layernorm": False,
        },
    ),
    Architecture(
        name="vit",
        block="ViTLayer",
        config_of_block="attention.config",
        is_newer_only=True,
        translation=Translation(
            ours="layers",
            theirs="layers",
            layer=(
                *linear("attention.pre_layernorm", "layernorm_before"),
                *linear("attention.query", "attention.q_proj"),
                *linear("attention.key", "attention.k_proj"),
                *linear("attention.value", "attention.v_proj"),
                *linear("attention.dense", "attention.o_proj"),
                *linear("output.pre_layernorm", "layernorm_after"),
                *linear("output.dense1", "mlp.fc1"),
                *linear("output.dense2", "mlp.fc2"),
            ),
        ),
        layer_keywords={
            **_LAYER,
            "intermediate_size": Key("intermediate_size"),
            "attention_dropout_prob": Key("attention_probs_dropout_prob"),
            "hidden_dropout_prob": Key("hidden_dropout_prob"),
            "activation": Key("hidden_act"),
            "layernorm_epsilon": Key("layer_norm_eps"),
            "use_qkv_bias": Key("qkv_bias"),
            "pre_layernorm": True,
            "post_layernorm": False,
        },
    ),
    Architecture(  # Mistral and Mixtral have the same structure, which SMP v2 cuts in place
        name="llama",
        block="LlamaDecoderLayer",
        config_of_block="self_attn.config",
        number_of_block="self_attn.layer_idx",
        takes_positions=True,
        embedding="embed_tokens",
        is_cut_in_place=True,
        translation=Translation(
            ours="layers",
            theirs="layers",
            layer=(
                *linear("attention.pre_layernorm", "input_layernorm"),
                *linear("attention.query", "self_attn.q_proj"),
                *linear("attention.key", "self_attn.k_proj"),
                *linear("attention.value", "self_attn.v_proj"),
                *linear("attention.dense", "self_attn.o_proj"),
                *linear("output.pre_layernorm", "post_attention_layernorm"),
                *linear("output.gate", "mlp.gate_proj"),
                *linear("output.dense1", "mlp.up_proj"),
                *linear("output.dense2", "mlp.down_proj"),
            ),
            computed=("self_attn.rotary_emb.inv_freq",),
        ),
        layer_keywords={
            **_LAYER,
            "attention_head_size": Key("head_dim", 0),  # transformers before 4.49 lacks this key
            "num_key_value_heads": _shared_heads_of_llama,
            "intermediate_size": Key("intermediate_size"),
            "attention_dropout_prob": Key("attention_dropout", 0.0),
            "hidden_dropout_prob": 0.0,
            "activation": Key("hidden_act"),
            "layernorm_epsilon": Key("rms_norm_eps"),
            "causal_mask_size": Key("max_position_embeddings"),
            "pre_layernorm": True,
            "post_layernorm": False,
            "use_qkv_bias": Key("attention_bias", False),
            "use_attention_dense_bias": Key("attention_bias", False),
            "use_output_bias": Key("mlp_bias", False),
            "use_rms_norm": True,
            "use_gate": True,
            "rotary": _rotary_of_llama,
        },
    ),
)
ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType({table.name: table for table in _TABLES})


def replaced_architectures() -> Iterator[Architecture]:
    """Yield the models that have distributed versions."""
    return (table for table in _TABLES if table.model or table.block)


def architectures_cut_in_place() -> Iterator[Architecture]:
    """Yield the models whose own layers are cut in place."""
    return (table for table in _TABLES if table.is_cut_in_place)
