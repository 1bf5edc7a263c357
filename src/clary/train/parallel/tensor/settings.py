"""Common settings of transformer layers, read from the arguments of constructors."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from clary.train.parallel.tensor.flash import ALIBI_BIAS_MAX
from clary.train.parallel.tensor.rotary import Rotary

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": functional.gelu,
    "relu": functional.relu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    "gelu_fast": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
}
# Script arguments without effect on layers: torch chooses kernels, which compute scores in float32 or wider; a language
# model always cuts its embeddings. `distribute_embedding` affects only modules that a DistributedEmbedding may replace.
WITHOUT_EFFECT = frozenset(
    {
        "attention_in_fp32",
        "distribute_embedding",
        "flash_attention",
        "fused_bias_gelu",
        "fused_dropout",
        "fused_softmax",
        "query_key_layer_scaling",
        "triton_flash_attention",
        "zero_init",
    }
)
_LOG = logging.getLogger("clary.smp")
_told: set[str] = set()
# Settings on distances within one sequence, which do not apply to cross-attention.
ABOUT_POSITIONS = ("attention_window", "rotary", "use_alibi")


class NotSupportedError(ValueError):
    """The distributed version of a module lacks a feature; the module is not replaced."""


@dataclass(frozen=True)
class LayerSettings:
    """Further keyword arguments of layers; a layer ignores settings that do not apply to it.

    Args:
        use_alibi: whether scores decrease with the distance (ALiBi).
        alibi_bias_max: the least slope of all heads is 2^-alibi_bias_max.
        fp32_residual_addition: whether residuals are added in float32.
        use_qkv_bias: whether queries, keys and values have biases.
        use_attention_dense_bias: whether the projection after attention has a bias.
        use_output_bias: whether the linear layers of the output layer have biases.
        use_rms_norm: whether layers normalise by the root mean square, without mean and bias.
        use_gate: whether the output layer multiplies by the activation of a second projection of its input.
        num_key_value_heads: number of heads of keys and values, each shared by neighbouring query heads; None for as
            many as query heads.
        scale_attention_scores: whether scores are divided by the square root of the head size.
        scale_attn_by_layer_idx: whether scores are also divided by `layer_idx + 1`.
        layer_idx: number of the layer, from 0.
        attention_window: number of positions that a query sees, its own and earlier positions; None for all.
        rotary: the rotary embedding of queries and keys; None for none.
        parallel_residual: whether attention and output layer both read the layer's input, and both results are added to
            it.
        shared_layernorm: whether, with parallel_residual, both share one pre-layernorm.
        final_layernorm: whether a transformer normalises its output even without `post_layernorm`.
        adds_residual: whether attention and output layer add their input to their output.
    """

    use_alibi: bool = False
    alibi_bias_max: float = ALIBI_BIAS_MAX
    fp32_residual_addition: bool = False
    use_qkv_bias: bool = True
    use_attention_dense_bias: bool = True
    use_output_bias: bool = True
    use_rms_norm: bool = False
    use_gate: bool = False
    num_key_value_heads: int | None = None
    scale_attention_scores: bool = True
    scale_attn_by_layer_idx: bool = False
    layer_idx: int = 0
    attention_window: int | None = None
    rotary: Rotary | None = None
    parallel_residual: bool = False
    shared_layernorm: bool = False
    final_layernorm: bool = False
    adds_residual: bool = field(default=True)

    def __post_init__(self) -> None:
        if self.shared_layernorm and not self.parallel_residual:
            raise ValueError(
                "shared_layernorm needs parallel_residual: otherwise the output layer runs after attention, "
                "and their inputs differ"
            )


def read_settings(more: dict[str, Any], who: str) -> LayerSettings:
    """Parse keywords into settings; log keywords without effect, once per program.

    Keywords that begin with an underscore tune the original implementation and are ignored, as are configuration keys
    that begin with an underscore.

    Raises: TypeError naming an unknown keyword.
    """
    names = {one.name for one in fields(LayerSettings)}
    ignored = {name for name in more if name in WITHOUT_EFFECT or name.startswith("_")}
    if new := sorted(ignored - _told):
        _told.update(new)
        _LOG.warning("%s: keywords without effect here: %s", who, ", ".join(new))
    unknown = sorted(set(more) - names - ignored)
    if unknown:
        raise TypeError(
            f"{who} got unknown arguments {', '.join(unknown)}; besides the documented ones it takes "
            f"{', '.join(sorted(names | WITHOUT_EFFECT))}"
        )
    return LayerSettings(**{name: value for name, value in more.items() if name in names})


def find_activation(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the activation function of a name.

    Raises: ValueError for an unknown name.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"activation is {name!r}; expected one of {', '.join(sorted(ACTIVATIONS))}")
    return ACTIVATIONS[name]


def check_layernorms(*, pre_layernorm: bool, post_layernorm: bool) -> None:
    """Check that a layer has a normalisation.

    Raises: ValueError if it has none.
    """
    if not (pre_layernorm or post_layernorm):
        raise ValueError("pre_layernorm and post_layernorm are both false; at least one must be true")
