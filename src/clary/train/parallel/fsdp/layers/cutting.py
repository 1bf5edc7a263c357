"""In-place cutting of a model's layers over a tensor group; the model keeps its forward functions.

Where: `transform` calls it. All checks precede the first change.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from clary.train.parallel.fsdp.cuts import Cut, cuts_by_name
from clary.train.parallel.fsdp.layers.classes import TransformerLayer, TransformerLMHead, become
from clary.train.parallel.fsdp.layers.structure import Layer, Structure, find_structure, num_heads, why_not
from clary.train.parallel.fsdp.layers.weights import Place, cut_weights
from clary.train.parallel.fsdp.logs import get_logger
from clary.train.parallel.tensor.collectives import TensorGroup
from clary.train.parallel.tensor.layout import Layout
from clary.train.parallel.tensor.parts import (
    CutAttention,
    CutMlp,
    HiddenDropout,
    Part,
    RowProduct,
    VocabularyEmbedding,
    VocabularyHead,
)

# Sizes that attention modules store in transformers before 4.48; later versions derive them from tensors.
_SIZES = ("num_heads", "num_attention_heads", "num_key_value_heads", "hidden_size")


def name_classes(model: nn.Module) -> None:
    """Make supported layers also instances of `TransformerLayer`, and their model one of `TransformerLMHead`."""
    layers = find_structure(model).layers
    for layer in layers:
        become(layer.module, TransformerLayer)
    if layers:
        become(model, TransformerLMHead)


def cut_layers(model: nn.Module, group: TensorGroup, *, from_rank0: bool, is_first_group: bool) -> None:
    """Cut attention, MLPs, embedding and head of a model. Every rank of the group calls it.

    A vocabulary that the group does not divide stays whole, as do unknown parts outside of layers.

    Args:
        from_rank0: whether the ranks of the first group get slices of rank 0's weights; else each rank cuts its own
            weights.
        is_first_group: whether this group is the first.

    State after failure: unchanged if the model is not supported, undefined if a rank is lost.
    Raises:
        ValueError: the model has no supported layer, or is cut already; a layer has unknown parts or numbers of heads,
            or a `pretraining_tp` other than 1; a parameter to cut is tied to a parameter that stays whole; rank 0 has
            no values to send; or ranks of a group differ in whether their parameters have values.
        NotDivisibleError: the size of the group does not divide the number of heads or channels.
    """
    structure = find_structure(model)
    _check(model, structure, group)
    layout = Layout(group, is_split=False, is_prescaled=True)  # ranks of a group have the same batch and hidden states
    places = list(_places(structure, group))
    cut_weights(model, places, group, from_rank0=from_rank0, is_first_group=is_first_group)
    for layer in structure.layers:
        attention, shape = layer.attention
        _give(attention, CutAttention, layout)
        _give(getattr(attention, shape.row), RowProduct, layout)
        for name in _SIZES:
            if isinstance(vars(attention).get(name), int):
                setattr(attention, name, vars(attention)[name] // group.size)
        if layer.mlp is not None:
            mlp, shape = layer.mlp
            _give(mlp, CutMlp, layout)
            _give(getattr(mlp, shape.row), RowProduct, layout)
    cut = {id(place.module) for place in places}
    if structure.embedding is not None and id(structure.embedding) in cut:
        _give(structure.embedding, VocabularyEmbedding, layout)
        structure.embedding.num_embeddings //= group.size
    if structure.head is not None and id(structure.head) in cut:
        _give(structure.head, VocabularyHead, layout)
    _share_dropout(model, layout)
    for place in places:
        if isinstance(place.module, nn.Linear):
            place.module.out_features, place.module.in_features = place.module.weight.shape


def _check(model: nn.Module, structure: Structure, group: TensorGroup) -> None:
    if cuts_by_name(model):
        raise ValueError("transform: the model is cut already; call transform once per model")
    if not structure.layers:
        raise ValueError(
            f"transform: {type(model).__name__} has no layer that tensor_parallel_degree can cut; it cuts models "
            "built like Llama, Mistral, Mixtral and GPT-NeoX. Set the degree to 1 for this model"
        )
    for layer in structure.layers:
        reason = why_not(layer)
        if reason is not None:
            raise ValueError(f"transform: cannot cut {reason}. With tensor_parallel_degree 1 no layer is cut")
        queries, keys = num_heads(layer.attention[0])
        group.divide(queries, f"the number of heads in {layer.name}")
        group.divide(keys, f"the number of heads of keys and values in {layer.name}")
        if layer.mlp is not None:
            mlp, shape = layer.mlp
            group.divide(getattr(mlp, shape.row).in_features, f"the number of inner channels in {layer.name}")


def _places(structure: Structure, group: TensorGroup) -> Iterator[Place]:
    for layer in structure.layers:
        yield from _block_places(layer)
    vocabulary = [one for one in (structure.embedding, structure.head) if one is not None]
    lengths = {one.weight.shape[0] for one in vocabulary}
    if any(length % group.size for length in lengths):
        get_logger().warning(
            "the vocabulary has %s tokens, no multiple of tensor_parallel_degree %d: embedding and head stay whole on "
            "every rank",
            " and ".join(map(str, sorted(lengths))),
            group.size,
        )
        return
    for one in vocabulary:
        for name, parameter in one._parameters.items():
            if parameter is not None:
                yield Place(one, name, Cut("tp", 0, (parameter.shape[0],)))


def _block_places(layer: Layer) -> Iterator[Place]:
    for block, shape in filter(None, (layer.attention, layer.mlp)):
        for name in shape.columns:
            linear = getattr(block, name)
            for own, parameter in linear._parameters.items():
                if parameter is not None:
                    yield Place(linear, own, Cut("tp", 0, (parameter.shape[0],)))
        row = getattr(block, shape.row)
        yield Place(row, "weight", Cut("tp", 1, (row.weight.shape[1],)))


def _give(module: nn.Module, role: type[Part], layout: Layout) -> None:
    become(module, role)
    module.layout = layout


def _share_dropout(model: nn.Module, layout: Layout) -> None:
    for module in model.modules():
        if isinstance(module, CutAttention):
            continue
        for child in module.children():
            if isinstance(child, nn.Dropout):
                _give(child, HiddenDropout, layout)
