"""Attention in all layouts compared with a plain formula; cuts and their joins; refusals."""

import logging
import math
from types import SimpleNamespace

import torch
from torch import nn
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

from clary.train.parallel.fsdp.checkpoint.slices import Slice, merge
from clary.train.parallel.fsdp.cuts import Cut, cut_of, cuts_by_name, mark
from clary.train.parallel.fsdp.layers import cutting
from clary.train.parallel.fsdp.layers.classes import TransformerLayer, become
from clary.train.parallel.fsdp.layers.llama_attention import LlamaFlashAttention
from clary.train.parallel.fsdp.layers.structure import Structure, find_structure, num_heads, why_not
from clary.train.parallel.fsdp.logs import get_logger
from clary.train.parallel.tensor.collectives import TensorGroup
from clary.train.parallel.tensor.flash import alibi_bias, alibi_slopes
from clary.train.parallel.tensor.flash_layers import FlashGroupedQueryAttention, FlashSelfAttention

_ROWS, _HEADS, _POSITIONS, _CHANNELS = 2, 4, 5, 8


def written_out(query, key, value, *, causal, scale=None, bias=None):
    """Return attention [b, h, s, d] computed by its definition."""
    scores = query @ key.transpose(-1, -2) * (scale or 1 / math.sqrt(query.shape[-1]))
    if bias is not None:
        scores = scores + bias
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -math.inf)
    return scores.softmax(-1) @ value


def heads(number, count=_HEADS):
    return [torch.randn(_ROWS, count, _POSITIONS, _CHANNELS) for _ in range(number)]


def refused(call, kind, words):
    told = None
    try:
        call()
    except kind as error:
        told = str(error)
    assert told is not None, f"nothing was raised; expected {words!r}"
    assert words in told, told


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_self_attention_in_all_layouts():
    query, key, value = heads(3)
    attention = FlashSelfAttention()
    for causal in (False, True):
        expected = written_out(query, key, value, causal=causal)
        close(attention((query, key, value), causal=causal), expected)
        moved = tuple(one.transpose(1, 2) for one in (query, key, value))
        close(attention(moved, causal=causal, layout="b s h d"), expected)
        close(attention(torch.stack(moved, 2), causal=causal, layout="b s 3 h d"), expected)
        close(attention(torch.stack(moved, 2), causal=causal, layout="b s h d"), expected)
        close(attention(torch.stack((query, key, value)), causal=causal), expected)
    assert attention((query, key, value), cast_dtype=torch.bfloat16).dtype == torch.bfloat16


def test_scale_and_distances():
    query, key, value = heads(3)
    close(FlashSelfAttention(scale=0.2)((query, key, value)), written_out(query, key, value, causal=False, scale=0.2))
    bias = alibi_bias(alibi_slopes(_HEADS, 8.0), _POSITIONS, _POSITIONS)
    expected = written_out(query, key, value, causal=True, bias=bias)
    close(FlashSelfAttention(use_alibi=True)((query, key, value), causal=True), expected)
    with_mask = FlashSelfAttention(triton_flash_attention=True, use_alibi=True)
    close(with_mask((query, key, value), attn_mask=bias.unsqueeze(0), causal=True), expected)


def test_grouped_queries():
    (query,), (key, value) = heads(1), heads(2, count=2)
    expected = written_out(query, key.repeat_interleave(2, 1), value.repeat_interleave(2, 1), causal=True)
    attention = FlashGroupedQueryAttention()
    moved = [one.transpose(1, 2) for one in (query, key, value)]
    close(attention(moved[0], tuple(moved[1:]), causal=True), expected)
    close(attention(moved[0], torch.stack(moved[1:], 2), causal=True, layout="b s 2 h d"), expected)
    close(attention(query, (key, value), causal=True, layout="b h s d"), expected)


def test_packed_heads_in_four_dimensions():
    query, key, value = heads(3)
    expected = written_out(query, key, value, causal=True)
    attention = FlashSelfAttention()
    close(attention(torch.cat((query, key, value), 1), causal=True), expected)
    moved = torch.cat([one.transpose(1, 2) for one in (query, key, value)], 2)
    close(attention(moved, causal=True, layout="b s h d"), expected)
    grouped = FlashGroupedQueryAttention()
    close(grouped(query.transpose(1, 2), moved[:, :, _HEADS:], causal=True), expected)
    key, value = heads(2, count=2)
    expected = written_out(query, key.repeat_interleave(2, 1), value.repeat_interleave(2, 1), causal=True)
    close(grouped(query, torch.cat((key, value), 1), causal=True, layout="b h s d"), expected)
    refused(lambda: attention(query), ValueError, "has 4 heads; expected a multiple of 3")
    refused(lambda: attention(query, layout="b 3 h s d"), ValueError, "does not pack 3")


def test_grouped_queries_with_masks():
    (query,), (key, value) = heads(1), heads(2, count=2)
    repeated = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
    attention = FlashGroupedQueryAttention()

    def found(mask, *, causal=True):
        return attention(query, (key, value), attn_mask=mask, causal=causal, layout="b h s d")

    close(found(None), written_out(query, *repeated, causal=True))
    visible = torch.ones(_ROWS, _POSITIONS, dtype=torch.int64)
    visible[1, 3:] = 0
    hidden = torch.zeros(_ROWS, 1, 1, _POSITIONS).masked_fill(visible[:, None, None, :] == 0, -math.inf)
    expected = written_out(query, *repeated, causal=True, bias=hidden)
    for mask in (visible, visible.bool(), visible.bool()[:, None, None, :], hidden):
        close(found(mask), expected)
    added = torch.randn(_POSITIONS, _POSITIONS)
    for mask in (added, added[None, None], added.expand(_ROWS, 1, -1, -1)):
        close(found(mask, causal=False), written_out(query, *repeated, causal=False, bias=added))
    half = attention(query, (key, value), attn_mask=hidden.half(), causal=True, layout="b h s d")
    close(half, expected)
    lowest = hidden.clamp(min=torch.finfo(torch.float32).min)
    low = attention(query, (key, value), attn_mask=lowest, causal=True, cast_dtype=torch.bfloat16, layout="b h s d")
    torch.testing.assert_close(low.float(), expected, rtol=0.1, atol=0.1)


def test_masks_that_do_not_fit_are_refused():
    query, key, value = heads(3)
    attention = FlashGroupedQueryAttention()
    for mask in (
        torch.zeros(_POSITIONS, _POSITIONS, dtype=torch.int64),
        torch.zeros(_ROWS, _POSITIONS),
        torch.zeros(_ROWS, 1, _POSITIONS, _POSITIONS + 1),
        torch.zeros(1, _ROWS, 1, _POSITIONS, _POSITIONS),
    ):
        refused(
            lambda mask=mask: attention(query, (key, value), attn_mask=mask, layout="b h s d"),
            ValueError,
            f"attn_mask has shape {tuple(mask.shape)}",
        )
    square = [torch.randn(3, 4, 3, 8) for _ in range(3)]
    mask = torch.ones(3, 3, dtype=torch.bool)
    refused(
        lambda: attention(square[0], square[1:], attn_mask=mask, layout="b h s d"),
        ValueError,
        "give it four dimensions",
    )


def test_attention_refuses_invalid_arguments():
    three = heads(3)
    refused(lambda: FlashSelfAttention()(three, layout="b h s"), ValueError, "layout is 'b h s'")
    refused(lambda: FlashSelfAttention()(three[:2]), ValueError, "expected 3 tensors")
    refused(lambda: FlashSelfAttention()(torch.randn(3, 2, 3, 4, 8)), ValueError, "say it in the layout")
    refused(lambda: FlashSelfAttention()(three, attn_mask=torch.zeros(1)), ValueError, "triton_flash_attention=True")
    odd = heads(2, count=3)
    refused(lambda: FlashGroupedQueryAttention()(three[0], odd, layout="b h s d"), ValueError, "not a multiple of 3")


def test_llama_attention_with_its_own_positions_and_those_of_the_model():
    config = SimpleNamespace(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, attention_bias=False, rope_theta=100.0
    )
    attention = LlamaFlashAttention(config)
    hidden = torch.randn(_ROWS, _POSITIONS, 32)
    angles = torch.arange(_POSITIONS)[:, None] / 100.0 ** (torch.arange(0, 8, 2) / 8)
    angles = torch.cat((angles, angles), -1).expand(_ROWS, -1, -1)
    own = attention(hidden, position_ids=torch.arange(_POSITIONS).unsqueeze(0))
    given = attention(hidden, position_embeddings=(angles.cos(), angles.sin()))
    assert [len(own), len(given)] == [3, 2]
    close(own[0], given[0])
    mask = torch.full((_POSITIONS, _POSITIONS), -1e9).triu(1)[None, None]
    close(attention(hidden, attention_mask=mask)[0], own[0])
    padding = torch.ones(_ROWS, _POSITIONS, dtype=torch.int64)
    close(attention(hidden, attention_mask=padding)[0], own[0])
    padding[:, -1] = 0  # hides no key from the positions before it
    close(attention(hidden, attention_mask=padding)[0][:, :-1], own[0][:, :-1])
    later = attention(torch.cat((hidden[:, :-1], torch.zeros(_ROWS, 1, 32)), 1))[0]
    close(later[:, :-1], own[0][:, :-1])
    for name in ("past_key_value", "past_key_values", "cache"):
        refused(lambda name=name: attention(hidden, **{name: object()}), ValueError, "use_cache=False")
    config.rope_scaling = {"type": "linear"}
    refused(lambda: attention(hidden), ValueError, "rope_scaling")


def test_slices_are_joined_again():
    for shape, cut in (((6, 3), Cut("tp", 0, (6,))), ((2, 12), Cut("tp", 1, (4, 8))), ((4, 2, 3), Cut("ep", 0, (4,)))):
        whole = torch.randn(shape)
        slices = [cut.of(whole, rank, 2) for rank in range(2)]
        assert [one.shape for one in slices] == [cut.slice_shape(whole.shape, 2)] * 2
        assert cut.whole_shape(slices[0].shape) == whole.shape
        assert torch.equal(cut.join(slices), whole)
    fused = Cut("tp", 0, (2, 4)).of(torch.arange(6), 1, 2)
    assert fused.tolist() == [1, 4, 5]
    refused(lambda: Cut("tp", 0, (6,)).of(torch.zeros(5), 0, 2), ValueError, "6 long in the model")
    refused(lambda: Cut("tp", 0, (6,)).of(torch.zeros(6), 0, 4), ValueError, "4 equal slices")


def test_cuts_are_found_under_clean_names():
    model = nn.Sequential(nn.Linear(2, 2), nn.Module())
    model[1]._checkpoint_wrapped_module = nn.Linear(2, 2)
    cut = Cut("tp", 0, (4,))
    mark(model[1]._checkpoint_wrapped_module, "weight", cut)
    mark(model[0], "bias", Cut("ep", 0, ()))
    assert cuts_by_name(model) == {"1.weight": cut}
    assert cut_of(model[0], "weight") is None


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(4, 4) for _ in range(4))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn = Attention()


def test_the_structure_of_a_model_is_found_and_obstacles_are_named():
    model = nn.ModuleList([Layer()])
    (layer,) = find_structure(model).layers
    assert (layer.name, layer.mlp, why_not(layer)) == ("0", None, None)
    refused(lambda: num_heads(layer.attention[0]), ValueError, "neither num_heads nor a config")
    layer.attention[0].num_heads = 4
    assert num_heads(layer.attention[0]) == (4, 4)
    layer.attention[0].q_norm = nn.LayerNorm(1)
    assert "q_norm.weight" in why_not(layer)
    assert not find_structure(nn.Linear(2, 2)).layers


def test_undivided_vocabularies_are_logged_with_their_sizes():
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    get_logger().addHandler(handler)
    try:
        structure = Structure((), nn.Embedding(5, 4), nn.Linear(4, 7))
        assert not list(cutting._places(structure, TensorGroup(None, 0, 2)))
    finally:
        get_logger().removeHandler(handler)
    assert len(lines) == 1, lines
    assert lines[0].startswith("the vocabulary has 5 and 7 tokens, no multiple of tensor_parallel_degree 2:"), lines


def test_a_transformed_layer_has_both_classes_and_keeps_its_name():
    layer = Layer()
    become(layer, TransformerLayer)
    become(layer, TransformerLayer)
    assert isinstance(layer, TransformerLayer)
    assert isinstance(layer, Layer)
    assert (type(layer).__name__, type(layer).__module__) == (Layer.__name__, Layer.__module__)
    other = Layer()
    become(other, TransformerLayer)
    assert type(other) is type(layer)


def saved_slices(whole, cut, degree, num_shards):
    """Return slices with the metadata of their folders, and the content of each slice by offsets of chunks."""
    sources, data = [], []
    for number in range(degree):
        own = cut.of(whole, number, degree)
        chunks, held, at = [], {}, 0
        for part in own.chunk(num_shards):
            offsets = torch.Size((at, *[0] * (own.dim() - 1)))
            chunks.append(ChunkStorageMetadata(offsets, part.shape))
            held[offsets], at = part, at + len(part)
        tensor = TensorStorageMetadata(TensorProperties(), own.shape, chunks)
        sources.append((Slice("tp", number, degree, {"weight": cut}), Metadata({"key": tensor}, {"key": ("weight",)})))
        data.append(held)
    return sources, data


def test_slices_are_assembled_from_those_of_any_degree():
    for dim, parts in ((0, (12,)), (1, (12,)), (0, (12, 24)), (1, (24, 12, 12))):
        cut = Cut("tp", dim, parts)
        shape = [7, 7]
        shape[dim] = sum(parts)
        whole = torch.arange(math.prod(shape)).view(shape)
        for degree, wanted, num_shards in ((1, 2, 3), (2, 1, 1), (2, 4, 3), (4, 3, 2), (3, 4, 5), (12, 1, 2)):
            sources, data = saved_slices(whole, cut, degree, num_shards)
            for number in range(wanted):
                merged, places = merge(sources, Slice("tp", number, wanted, {"weight": cut}))
                tensor = merged.state_dict_metadata["key"]
                found = torch.full(tensor.size, -1)
                for chunk in tensor.chunks:
                    place = places["key", chunk.offsets]
                    held = data[place.source][place.index.offset]
                    to = tuple(slice(at, at + size) for at, size in zip(chunk.offsets, chunk.sizes, strict=True))
                    of = tuple(slice(at, at + size) for at, size in zip(place.offsets, chunk.sizes, strict=True))
                    assert (found[to] == -1).all()
                    found[to] = held[of]
                assert torch.equal(found, cut.of(whole, number, wanted)), (dim, parts, degree, wanted)


def test_an_impossible_change_of_degree_is_refused():
    cut = Cut("tp", 0, (12,))
    sources, _ = saved_slices(torch.zeros(12), cut, 2, 1)
    short = TensorStorageMetadata(TensorProperties(), torch.Size([3]), [])
    sources[1][1].state_dict_metadata["key"] = short
    refused(lambda: merge(sources, Slice("tp", 0, 4, {"weight": cut})), ValueError, "slice tp2-1")
    listed = Slice("ep", 0, 4, {"weight": Cut("ep", 0, ())})
    refused(lambda: merge(sources, listed), ValueError, "FULL_STATE_DICT")
