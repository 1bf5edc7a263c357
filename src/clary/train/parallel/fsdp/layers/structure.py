"""Search for the parts of a model that can be cut over a tensor group, by the model's structure.

Where: `cutting` calls it before it changes a model. It recognises models built like Llama, Mistral, Mixtral and
GPT-NeoX by the names and types of their parts, in any version of transformers and in models of the same structure.

[Note: heads] Rows of the weights of queries, keys and values are ordered by head (in GPT-NeoX with query, key and value
of a head in succession), so equal slices of the rows are whole heads if the group's size divides the numbers of heads.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from clary.train.parallel.tensor.huggingface.architectures import HEAD, WORDS, architectures_cut_in_place


@dataclass(frozen=True)
class Block:
    """Attention or an MLP: matrices that are cut by columns, followed by a matrix that is cut by rows.

    Args:
        columns: names of the matrices whose output channels are cut.
        row: name of the matrix whose input channels are cut.
    """

    columns: tuple[str, ...]
    row: str

    def describes(self, module: nn.Module) -> bool:
        """Return whether a module has these matrices."""
        return all(isinstance(getattr(module, name, None), nn.Linear) for name in (*self.columns, self.row))


_TABLES = tuple(architectures_cut_in_place())
ATTENTIONS = tuple(
    Block(one.modules_of("attention.query", "attention.key", "attention.value"), *one.modules_of("attention.dense"))
    for one in _TABLES
)
MLPS = tuple(Block(one.modules_of("output.gate", "output.dense1"), *one.modules_of("output.dense2")) for one in _TABLES)
_EMBEDDINGS = {name for one in _TABLES for name in one.modules_of(WORDS)}
_HEADS = {HEAD, *(one.older_head for one in _TABLES)}


@dataclass(frozen=True)
class Layer:
    """A decoder layer.

    Args:
        mlp: None if the layer has no MLP of a known structure; a mixture of experts, for example, stays whole.
    """

    name: str
    module: nn.Module
    attention: tuple[nn.Module, Block]
    mlp: tuple[nn.Module, Block] | None


@dataclass(frozen=True)
class Structure:
    """The parts of a model.

    Args:
        embedding: token embedding; None if the model has none of a known name.
        head: vocabulary head; None if the model has none of a known name.
    """

    layers: tuple[Layer, ...]
    embedding: nn.Embedding | None
    head: nn.Linear | None


def find_structure(model: nn.Module) -> Structure:
    """Return the parts of a model; its layers are empty if no module has a known structure."""
    layers = []
    for name, module in model.named_modules():
        attention = _child(module, ATTENTIONS)
        if attention is not None:
            layers.append(Layer(name, module, attention, _child(module, MLPS)))
    embedding = head = None
    for name, module in model.named_modules():
        last = name.rpartition(".")[2]
        if last in _EMBEDDINGS and isinstance(module, nn.Embedding):
            embedding = module
        elif last in _HEADS and isinstance(module, nn.Linear):
            head = module
    return Structure(tuple(layers), embedding, head)


def num_heads(attention: nn.Module) -> tuple[int, int]:
    """Return the numbers of heads of queries, and of keys and values, in an attention module.

    Raises: ValueError if neither the module nor its `config` has them.
    """
    heads = _number(attention, "num_heads", "num_attention_heads")
    if heads is None:
        raise ValueError(
            f"transform: {type(attention).__name__} has neither num_heads nor a config with "
            "num_attention_heads, so the division of its matrices into heads is not known"
        )
    return heads, _number(attention, "num_key_value_heads") or heads


def why_not(layer: Layer) -> str | None:
    """Return the reason why a layer cannot be cut with any degree, or None."""
    for block, shape in filter(None, (layer.attention, layer.mlp)):
        known = {*shape.columns, shape.row}
        other = [name for name, _ in block.named_parameters() if name.partition(".")[0] not in known]
        if other:
            return f"{layer.name}: {type(block).__name__} has a parameter {other[0]} that is not known"
        config = getattr(block, "config", None)
        if getattr(config, "pretraining_tp", 1) != 1:
            return f"{layer.name}: config.pretraining_tp is {config.pretraining_tp}; set it to 1"  # type: ignore[union-attr]
    return None


def _child(module: nn.Module, shapes: tuple[Block, ...]) -> tuple[nn.Module, Block] | None:
    for child in module.children():
        for shape in shapes:
            if shape.describes(child):
                return child, shape
    return None


def _number(attention: nn.Module, *names: str) -> int | None:
    for source in (attention, getattr(attention, "config", None)):
        for name in names:
            found = getattr(source, name, None)
            if isinstance(found, int):
                return found
    return None
