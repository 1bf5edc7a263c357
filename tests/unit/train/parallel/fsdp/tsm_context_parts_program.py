"""The layout of sequences, and blocks of attention, in one process."""

from typing import NamedTuple

import torch

from clary.train.parallel.fsdp.context import blocks
from clary.train.parallel.fsdp.context.batches import part_of_batch
from clary.train.parallel.fsdp.context.blocks import block_backward, block_forward, merge
from clary.train.parallel.fsdp.context.layout import chunks_of, positions_of, visible, whole_order


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
    from torch import nn

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
