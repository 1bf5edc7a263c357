"""Replacements of transformers' modules, and translators of their states, from the tables of `architectures`.

Where: `replacement` calls `registrations`; `smp.nn.huggingface` exports the translators under the names that scripts
import.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache, partial
from operator import attrgetter
from typing import Any

from clary.train.parallel.tensor.huggingface.architectures import (
    ARCHITECTURES,
    HEAD,
    Architecture,
    Key,
    replaced_architectures,
)
from clary.train.parallel.tensor.huggingface.calls import (
    block_forward_hook,
    block_return_hook,
    encoder_forward_hook,
    encoder_return_hook,
    is_newer,
    model_forward_hook,
    model_return_hook,
)
from clary.train.parallel.tensor.huggingface.translation import StateDict
from clary.train.parallel.tensor.lm_head import DistributedTransformerLMHead
from clary.train.parallel.tensor.registry import Arguments, Registration, Translations
from clary.train.parallel.tensor.settings import ACTIVATIONS, NotSupportedError
from clary.train.parallel.tensor.transformer import DistributedTransformer, DistributedTransformerLayer

MODELS = {table.name: f"transformers.models.{table.name}.modeling_{table.name}" for table in replaced_architectures()}
_INNER_FACTOR = 4  # inner channels per hidden channel, if a configuration does not set them
_num_heads: dict[str, int] = {}  # by architecture, from the last replaced model; states lack this number


def registrations(name: str, modeling: Any) -> list[Registration]:
    """Return the replacements of classes in the transformers module `modeling`, of a model in `MODELS`."""
    table = ARCHITECTURES[name]
    if table.is_newer_only and not is_newer():
        return []
    if not table.block:
        return [_of_encoder(table, modeling)]
    if not table.model:
        return [_of_blocks(table, modeling)]
    whole = getattr(modeling, table.model)
    return [
        Registration(
            whole,
            DistributedTransformerLMHead,
            partial(_model_arguments, table),
            model_forward_hook(whole),
            model_return_hook(getattr(modeling, table.result)),
            arguments_of=_own_config,
            to_distributed=lambda state, config: _to_ours(table, state, config.num_attention_heads),
            translations=lambda config: _translations(table, config),
        ),
        _of_blocks(table, modeling),
    ]


def block_hooks(name: str) -> tuple[Any, Any, Any]:
    """Return the hooks of constructor, call and result for a registration of a model's blocks."""
    return _block_hooks(ARCHITECTURES[name], importlib.import_module(MODELS[name]))


@cache
def translators(name: str, *, of_blocks: bool = False) -> Translations:
    """Return two functions that convert a distributed model's state to transformers', and back.

    Both take the state, `max_seq_len` and, by keyword only, `num_attention_heads`, which defaults to that of the last
    replaced model. The number of heads matters if a transformers tensor is ordered by head; then an unknown number
    raises ValueError. `max_seq_len` adds the masks that states of older transformers contain, and has no effect on the
    conversion back.

    Args:
        of_blocks: whether the state is of a block, or of a transformers model in which only blocks are distributed.
    """
    table = ARCHITECTURES[name]

    def to_theirs(
        state_dict: StateDict, max_seq_len: int | None = None, *, num_attention_heads: int | None = None
    ) -> StateDict:
        """Convert the distributed model's state to transformers'."""
        translate = table.translation.layer_to_theirs if of_blocks else table.translation.to_theirs
        num_heads = num_attention_heads or _num_heads.get(name)
        theirs = translate(state_dict, num_heads=num_heads, max_seq_len=max_seq_len)
        if table.older_head is None or is_newer():
            return theirs
        return {key.replace(f"{HEAD}.", f"{table.older_head}."): value for key, value in theirs.items()}

    def to_ours(
        state_dict: StateDict, max_seq_len: int | None = None, *, num_attention_heads: int | None = None
    ) -> StateDict:
        """Convert transformers' state to the distributed model's."""
        num_heads = num_attention_heads or _num_heads.get(name)
        if of_blocks:
            return table.translation.layer_to_ours(state_dict, num_heads=num_heads)
        return _to_ours(table, state_dict, num_heads)

    return to_theirs, to_ours


def _translations(table: Architecture, config: Any, *, has_blocks_alone: bool = False) -> Translations:
    """Return the translators of one model; the same objects for equal models."""
    num_heads = config.num_attention_heads if table.is_by_head else None
    return _translators_of(table.name, num_heads, keeps_head=has_blocks_alone and table.older_head is not None)


@cache
def _translators_of(name: str, num_heads: int | None, *, keeps_head: bool) -> Translations:
    """Return the translators of models with `num_heads` heads.

    Args:
        keeps_head: whether the head stays transformers' own, under the name in the installed version.
    """
    to_theirs, to_ours = translators(name)
    if keeps_head:
        to_ours = partial(_translate_blocks, ARCHITECTURES[name])
    if num_heads is None:
        return to_theirs, to_ours
    return partial(to_theirs, num_attention_heads=num_heads), partial(to_ours, num_attention_heads=num_heads)


def _translate_blocks(
    table: Architecture, state_dict: StateDict, max_seq_len: int | None = None, *, num_attention_heads: int
) -> StateDict:
    return table.translation.to_ours(state_dict, num_heads=num_attention_heads)


def _to_ours(table: Architecture, state: StateDict, num_heads: int | None) -> StateDict:
    if table.older_head is not None:
        state = {key.replace(f"{table.older_head}.", f"{HEAD}."): value for key, value in state.items()}
    return table.translation.to_ours(state, num_heads=num_heads)


def _of_encoder(table: Architecture, modeling: Any) -> Registration:
    encoder = getattr(modeling, table.model)

    def to_distributed(state: StateDict, _: Any) -> StateDict:
        prefix = "encoder."  # prefix of names in tables; names in the encoder's own state lack it
        ours = table.translation.to_ours({f"{prefix}{key}": value for key, value in state.items()})
        return {key.removeprefix(prefix): value for key, value in ours.items()}

    return Registration(
        encoder,
        DistributedTransformer,
        partial(_encoder_arguments, table),
        encoder_forward_hook(encoder),
        encoder_return_hook(getattr(modeling, table.result)),
        arguments_of=_own_config,
        to_distributed=to_distributed,
        translations=lambda config: _translations(table, config),
    )


def _of_blocks(table: Architecture, modeling: Any) -> Registration:
    def arguments_of(block: Any) -> Arguments:
        config = attrgetter(table.config_of_block)(block)
        return (config, attrgetter(table.number_of_block)(block) if table.number_of_block else None), {}

    return Registration(
        getattr(modeling, table.block),
        DistributedTransformerLayer,
        *_block_hooks(table, modeling),
        arguments_of=arguments_of,
        to_distributed=lambda state, config: table.translation.layer_to_ours(
            state, num_heads=config.num_attention_heads
        ),
        translations=lambda config: _translations(table, config, has_blocks_alone=True),
    )


def _block_hooks(table: Architecture, modeling: Any) -> tuple[Any, Any, Any]:
    block = getattr(modeling, table.block)
    return (
        partial(_block_arguments, table),
        block_forward_hook(block, takes_positions=table.takes_positions),
        block_return_hook(block, is_tuple_unless_said=table.returns_tuple),
    )


def _own_config(module: Any) -> Arguments:
    return (module.config,), {}


def _model_arguments(table: Architecture, config: Any) -> Arguments:
    return (), {**_layer_keywords(table, config), **_read(table.model_keywords, config)}


def _block_arguments(table: Architecture, config: Any, layer_idx: int | None = None) -> Arguments:
    config.use_cache = False  # a model passes a cache to its blocks even in training; our layers ignore it
    keywords = {**_layer_keywords(table, config), "layer_idx": layer_idx or 0}
    if "attention_window" in keywords:
        keywords["attention_window"] = keywords["attention_window"][layer_idx or 0]
    return (), keywords


def _encoder_arguments(table: Architecture, config: Any) -> Arguments:
    kind = getattr(config, "position_embedding_type", None)
    if kind not in (None, "absolute"):
        raise NotSupportedError(f"its position_embedding_type is {kind!r}")
    keywords = _model_arguments(table, config)
    if config.is_decoder:
        config.use_cache = False  # a decoder passes a cache to its layers even in training; our layers ignore it
    return keywords


def _layer_keywords(table: Architecture, config: Any) -> dict[str, Any]:
    """Return the arguments of our layers.

    Raises: NotSupportedError if our layers lack a feature of the configuration.
    """
    if table.has_no_cross_attention and config.add_cross_attention:
        raise NotSupportedError("its cross-attention is not distributed: add_cross_attention is set")
    if table.is_by_head:
        _num_heads[table.name] = config.num_attention_heads
    found = _read(table.layer_keywords, config)
    if found["activation"] not in ACTIVATIONS:
        known = ", ".join(sorted(ACTIVATIONS))
        raise NotSupportedError(f"its activation is {found['activation']!r}; distributed layers have {known}")
    return {
        **found,
        "attention_head_size": found.get("attention_head_size") or found["hidden_size"] // found["num_attention_heads"],
        "intermediate_size": found["intermediate_size"] or _INNER_FACTOR * found["hidden_size"],
    }


def _read(keywords: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """Evaluate keywords; probabilities become floats, even if a configuration has an integer."""
    found: dict[str, Any] = {}
    for keyword, value in keywords.items():
        read: Callable[[Any], Any] = value.read if isinstance(value, Key) else value
        found[keyword] = read(config) if callable(read) else value
        if keyword.endswith("_prob"):
            found[keyword] = float(found[keyword])
    return found
