"""The layout of sequences, and blocks of attention, in one process."""

from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from clary.train.parallel.fsdp.context import blocks, flash_calls
from clary.train.parallel.fsdp.context.batches import part_of_batch
from clary.train.parallel.fsdp.context.blocks import block_backward, block_forward, merge
from clary.train.parallel.fsdp.context.interception import Context, attend_for_transformers
from clary.train.parallel.fsdp.context.layout import chunks_of, positions_of, visible, whole_order
from clary.train.parallel.fsdp.context.ring import attend_in_ring
from clary.train.parallel.fsdp.context.spreading import spread_sequences
from clary.train.parallel.tensor.collectives import TensorGroup


def test_parts_equal_those_that_scripts_cut():
    """A script splits a sequence into 2 n chunks, and takes chunk `rank` and its mirror chunk from the end."""
    size, tokens = 4, torch.arange(48).view(2, 24)
    seen = []
    for rank in range(size):
        cut = tokens.view(2, 2 * size, 3)[:, [rank, 2 * size - rank - 1]].reshape(2, 6)
        part = part_of_batch((tokens, None), rank, size)
        assert torch.equal(part[0], cut)
        assert part[1] is None
        assert torch.equal(tokens[0, positions_of(rank, size, 6)], part[0][0])
        seen += part[0][0].tolist()
    assert sorted(seen) == list(range(24))
    assert part_of_batch({"tokens": tokens}, 0, 1)["tokens"] is tokens


class Batch(NamedTuple):
    tokens: torch.Tensor
    labels: torch.Tensor | None


def test_the_parts_of_a_named_tuple_are_a_named_tuple():
    tokens = torch.arange(16).view(2, 8)
    part = part_of_batch([Batch(tokens, None)], 1, 2)[0]
    assert type(part) is Batch
    assert torch.equal(part.tokens, part_of_batch(tokens, 1, 2))
    assert part.labels is None


def test_the_chunks_of_all_ranks_in_whole_order_are_the_sequence():
    for size in (1, 2, 3, 5):
        held = [chunk for rank in range(size) for chunk in chunks_of(rank, size)]
        assert [held[at] for at in whole_order(size)] == list(range(2 * size))


def test_a_position_sees_only_earlier_positions():
    size, length = 4, 6
    for rank in range(size):
        own = positions_of(rank, size, length)
        for source in range(size):
            others = positions_of(source, size, length)
            expected = own.unsqueeze(1) >= others
            seen = visible(rank, source, length)
            found = torch.zeros_like(expected)
            found[seen.first_query :, : seen.num_keys] = True
            if seen.is_causal:
                found &= torch.ones(length, length).tril().bool()
            assert torch.equal(found, expected), (rank, source)


def attend(query, key, value, scale):
    scores = query @ key.transpose(-1, -2) * scale
    return scores.softmax(-1) @ value


def test_blocks_are_merged_and_their_gradients_split():
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(2, 3, length, 8, generator=generator, dtype=torch.float64).requires_grad_()
        for length in (4, 10, 10)
    )
    weights = torch.randn(2, 3, 4, 8, generator=generator, dtype=torch.float64)
    expected = attend(query, key, value, 0.3)
    (expected * weights).sum().backward()
    for dtypes in ({}, {"cpu": (torch.float64,)}):
        kept, blocks._KERNEL_DTYPES = blocks._KERNEL_DTYPES, dtypes
        try:
            halves = [(key[:, :, :6], value[:, :, :6]), (key[:, :, 6:], value[:, :, 6:])]
            halves = [tuple(one.detach().contiguous() for one in half) for half in halves]
            plain = query.detach()
            parts = [block_forward(plain, *half, scale=0.3, is_causal=False) for half in halves]
            out, sums = merge(*parts)
            torch.testing.assert_close(out, expected.detach())
            gradients = [
                block_backward(weights, plain, *half, out, sums, scale=0.3, is_causal=False) for half in halves
            ]
        finally:
            blocks._KERNEL_DTYPES = kept
        torch.testing.assert_close(gradients[0][0] + gradients[1][0], query.grad)
        torch.testing.assert_close(torch.cat([one[1] for one in gradients], 2), key.grad)
        torch.testing.assert_close(torch.cat([one[2] for one in gradients], 2), value.grad)


def test_queries_without_a_visible_key_in_a_block_are_left_unchanged():
    query = torch.ones(1, 1, 2, 4, dtype=torch.float64)
    key = torch.randn(1, 1, 2, 4, dtype=torch.float64)
    how = {"scale": 1.0, "is_causal": False, "window": 2}
    near = block_forward(query, key, key, positions=(torch.tensor([5, 6]), torch.tensor([5, 6])), **how)
    far = block_forward(query, key, key, positions=(torch.tensor([5, 6]), torch.tensor([0, 1])), **how)
    assert far[1].isinf().all()
    for first, second in ((near, far), (far, near)):
        out, sums = merge(first, second)
        torch.testing.assert_close(out, near[0])
        torch.testing.assert_close(sums, near[1])
    assert not merge(far, far)[0].isnan().any()


def ring_and_torch_under_autocast(query, key, value, weights, window):
    """Return outputs and gradients of the ring and of torch's attention under bfloat16 autocast."""
    length = query.shape[2]
    distance = torch.arange(length).unsqueeze(1) - torch.arange(length)
    mask = (distance >= 0) & (distance < (window or length))
    ring = partial(attend_in_ring, group=TensorGroup(None, 0, 1), scale=0.3, window=window)
    whole = partial(functional.scaled_dot_product_attention, scale=0.3, attn_mask=mask)
    results = []
    for attended in (ring, whole):
        inputs = [one.clone().requires_grad_() for one in (query, key, value)]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = attended(*inputs)
            (out.float() * weights).sum().backward()
        assert out.dtype == torch.bfloat16
        results.append([out.detach().float(), *(one.grad for one in inputs)])
    return results


def test_the_ring_is_as_exact_under_autocast_as_the_attention_of_torch():
    """Checks torch's kernel, and with a window the scores that this package computes itself."""
    generator = torch.Generator().manual_seed(0)
    query, key, value, weights = (torch.randn(2, 3, 32, 16, generator=generator) * 2 for _ in range(4))
    distance = torch.arange(32).unsqueeze(1) - torch.arange(32)
    for window in (None, 9):
        inputs = [one.clone().requires_grad_() for one in (query, key, value)]
        scores = inputs[0] @ inputs[1].transpose(-1, -2) * 0.3
        hidden = (distance < 0) | (distance >= (window or 32))
        exact = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ inputs[2]
        (exact * weights).sum().backward()
        expected = [exact.detach(), *(one.grad for one in inputs)]
        ring, whole = (
            [float((one - other).norm() / other.norm()) for one, other in zip(found, expected, strict=True)]
            for found in ring_and_torch_under_autocast(query, key, value, weights, window)
        )
        assert all(one < 1.5 * other for one, other in zip(ring, whole, strict=True)), (window, ring, whole)


def test_gpu_kernels_accept_the_arguments_that_attention_passes():
    """Checks shapes and arguments only, because there is no GPU here."""
    kept, blocks._KERNEL_DTYPES = blocks._KERNEL_DTYPES, {"meta": (torch.bfloat16,)}
    try:
        query, key = (torch.empty(2, 4, length, 64, device="meta", dtype=torch.bfloat16) for length in (16, 32))
        out, sums = block_forward(query, key, key, scale=0.1, is_causal=False)
        assert (out.shape, out.dtype, sums.shape, sums.dtype) == (query.shape, torch.float32, (2, 4, 16), torch.float32)
        found = block_backward(out, query, key, key, out, sums, scale=0.1, is_causal=False)
        assert [one.shape for one in found] == [query.shape, key.shape, key.shape]
        narrow = query[..., :20]
        assert blocks._kernel(narrow, None) is None
        assert blocks._kernel(query, 5) is None
    finally:
        blocks._KERNEL_DTYPES = kept


class Attention(nn.Module):
    """Asks for attention as modules of transformers 4.48 and newer do."""

    def __init__(self, **configured):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(4, 4) for _ in range(3))
        self.config = SimpleNamespace(**configured)


class Model(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, input_ids=None, position_ids=None):
        return input_ids


def told(call):
    """Return the words of a ValueError, or the result of the call."""
    try:
        return call()
    except ValueError as error:
        return str(error)


def test_attention_of_transformers_that_parts_do_not_support_is_refused_in_the_call():
    module = Attention()
    vars(module)["_clary_context"] = Context(TensorGroup(None, 0, 1), "p2p")
    one = torch.randn(1, 2, 6, 4)
    known = {"position_ids": torch.arange(6), "num_items_in_batch": torch.tensor(3), "output_attentions": False}
    expected = functional.scaled_dot_product_attention(one, one, one, is_causal=True).transpose(1, 2)
    for given in ({}, known, {"softcap": None, "s_aux": None, "is_causal": True, "head_mask": None, "softmax": "x"}):
        torch.testing.assert_close(attend_for_transformers(module, one, one, one, **given)[0], expected)
    for given, words in (
        ({"softcap": 2.0}, "a softcap of scores (softcap = 2.0)"),
        ({"s_aux": one}, "attention sinks (s_aux)"),
        ({"is_causal": False}, "attention that is not causal"),
        ({"position_bias": one}, "a bias of scores (position_bias)"),
        ({"head_mask": one}, "a mask of heads (head_mask)"),
        ({"sinks": one}, "a tensor sinks"),
        ({"cu_seq_lens": {"q": [one]}}, "a tensor cu_seq_lens"),
    ):
        found = told(lambda given=given: attend_for_transformers(module, one, one, one, **given))
        assert isinstance(found, str), given
        assert f"Attention asked for {words}" in found, found
    module.is_causal = False
    assert "not causal" in told(lambda: attend_for_transformers(module, one, one, one))
    attend_for_transformers(module, one, one, one, is_causal=True)


def test_attention_that_parts_do_not_support_is_refused_before_training():
    def with_sinks():
        module = Attention()
        module.sinks = nn.Parameter(torch.zeros(2))
        return module

    def looking_ahead():
        module = Attention()
        module.is_causal = False
        return module

    group = TensorGroup(None, 0, 1)
    for attention, words in (
        (Attention(attn_logit_softcapping=50.0), "attn_logit_softcapping = 50.0"),
        (Attention(use_bidirectional_attention=True), "use_bidirectional_attention = True"),
        (Attention(layer_types=["full_attention", "chunked_attention"]), "layers of chunked_attention"),
        (Attention(attention_chunk_size=8), "attention_chunk_size = 8"),
        (with_sinks(), "attention sinks (sinks)"),
        (looking_ahead(), "is_causal = False"),
    ):
        before = type(attention)
        found = told(lambda attention=attention: spread_sequences(Model(attention), group))
        assert isinstance(found, str), words
        assert words in found, found
        assert type(attention) is before
    configured = {
        "attn_logit_softcapping": None,
        "use_bidirectional_attention": False,
        "layer_types": ["full_attention", "sliding_attention"],
        "attention_chunk_size": 8,
    }
    model = Model(Attention(**configured))
    assert told(lambda: spread_sequences(model, group)) is model


def test_calls_of_flash_attn_with_packed_sequences_or_a_softcap_are_refused():
    class Attending:
        def attend(self, query, key, value, **_):
            return value

    one = torch.randn(1, 4, 2, 4)
    given = {"query_states": one, "key_states": one, "value_states": one, "position_ids": torch.arange(4)}
    assert torch.equal(flash_calls._attend(Attending(), given), one)
    for more, words in (
        ({"softcap": 30.0}, "softcap = 30.0"),
        ({"is_causal": False}, "not causal"),
        ({"cu_seq_lens_q": torch.tensor([0, 2, 4])}, "cu_seq_lens_q"),
        ({"kwargs": {"s_aux": one, "cache_position": one}}, "for a tensor s_aux;"),
        ({"attention_mask": one}, "with a mask"),
    ):
        found = told(lambda more=more: flash_calls._attend(Attending(), {**given, **more}))
        assert isinstance(found, str), more
        assert words in found, found


def test_batches_are_cut_by_the_state():
    from clary.train.parallel.fsdp.context.setup import get_batch_for_cp_rank
    from clary.train.parallel.fsdp.state import state

    tokens = torch.arange(8).view(1, 8)
    assert get_batch_for_cp_rank(tokens) is tokens
    state.context_parallel_degree = 2
    try:
        assert get_batch_for_cp_rank((tokens, None))[0].tolist() == [[0, 1, 6, 7]]
    finally:
        state.reset()


def test_groups_of_transformer_engine_are_set():
    import torch.distributed as dist

    from clary.train.parallel.fsdp.context.setup import setup_transformer_engine_cp_groups

    class EngineAttention(nn.Module):
        def set_context_parallel_group(self, *given):
            self.given = given

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    stream = torch.cuda.Stream
    torch.cuda.Stream = lambda: "stream"
    try:
        model = nn.Sequential(EngineAttention(), nn.Sequential(EngineAttention()))
        setup_transformer_engine_cp_groups(model, [0], dist.group.WORLD)
        assert model[0].given == model[1][0].given == (dist.group.WORLD, [0], "stream")
        for ranks, words in (([1], "the group has [0]"), ([0], "no module named ...Attention")):
            try:
                setup_transformer_engine_cp_groups(nn.Linear(2, 2), ranks, dist.group.WORLD)
            except ValueError as error:
                assert words in str(error), error  # noqa: PT017 - no pytest here
            else:
                raise AssertionError(words)
    finally:
        torch.cuda.Stream = stream
        dist.destroy_process_group()
