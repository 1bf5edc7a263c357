"""Tensor-parallel layers compared with the same unsharded layers. Functions `test_...(rank, size)`; see `torch_ranks`.

The reference uses torch's functions on the gathered weights. Every comparison checks outputs and the gradients of
inputs and of every parameter, as [Note: mean] of `layout` defines them.
"""

import copy as copying
import itertools
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from whole_states import gather_state_dict

from clary.train.parallel import runtime
from clary.train.parallel.configuration import read_configuration
from clary.train.parallel.layout.mesh import Along
from clary.train.parallel.tensor import collectives
from clary.train.parallel.tensor.attention import DistributedAttentionLayer
from clary.train.parallel.tensor.collectives import TensorGroup
from clary.train.parallel.tensor.embedding import DistributedEmbedding
from clary.train.parallel.tensor.linear import DistributedLinear
from clary.train.parallel.tensor.lm_head import DistributedTransformerLMHead
from clary.train.parallel.tensor.output import DistributedTransformerOutputLayer
from clary.train.parallel.tensor.randomness import dropout_replicated, dropout_split
from clary.train.parallel.tensor.rotary import Rotary
from clary.train.parallel.tensor.slices import cut_state_dict, slice_of, slices_of
from clary.train.parallel.tensor.transformer import DistributedTransformer, DistributedTransformerLayer

N, S, P, H, HEADS, HEAD, INNER, WORDS = 3, 5, 4, 16, 4, 6, 24, 20
SIZES = {
    "num_attention_heads": HEADS,
    "attention_head_size": HEAD,  # differs from hidden_size / num_attention_heads
    "hidden_size": H,
    "attention_dropout_prob": 0.0,
    "hidden_dropout_prob": 0.0,
}
LAYER = SIZES | {"intermediate_size": INNER}


@contextmanager
def parallel(size, **keys):
    runtime.initialize(read_configuration({"tensor_parallel_degree": size, "ddp": True, **keys}))
    try:
        yield
    finally:
        runtime.reset()


def layouts():
    """Return all four layouts on two ranks; on more ranks, the two that differ most."""
    every = [
        {"optimize": optimize, "prescaled_batch": prescaled}
        for optimize, prescaled in itertools.product(("memory", "speed"), (False, True))
    ]
    return every if dist.get_world_size() == 2 else [every[0], every[-1]]


def tensor_group():
    groups = runtime.current().groups
    return TensorGroup(groups.process_group(Along.TP), groups.group_rank(Along.TP), groups.size(Along.TP))


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def shake(module):
    """Give every parameter random values, so that no gradient is zero by symmetry; replicas stay equal."""
    group, whole = tensor_group(), gather_state_dict(module, tensor_group())
    state = {key: value + 0.3 * normal(*value.shape, seed=place) for place, (key, value) in enumerate(whole.items())}
    for key in state:
        if key.endswith("lm_head.weight") and "word_embedding.weight" in state and module.is_tied:
            state[key] = state["word_embedding.weight"]
    module.load_state_dict(cut_state_dict(module, state))
    return gather_state_dict(module, group)


def compare(module, reference, make_inputs, *, prescaled, call=None):
    """Check `module` on this rank's inputs against `reference(state, *inputs)` on those of all ranks.

    make_inputs: maps a seed to inputs; floating-point tensors get gradients, None stays None.
    """
    group = tensor_group()
    state = {key: value.clone().requires_grad_() for key, value in shake(module).items()}
    if getattr(module, "is_tied", False):
        state["lm_head.weight"] = state["word_embedding.weight"]
    seeds = [7] if prescaled else [7 + rank for rank in range(group.size)]
    own = 0 if prescaled else group.rank
    everything = [
        [value.requires_grad_() if value is not None and value.is_floating_point() else value for value in made]
        for made in map(make_inputs, seeds)
    ]
    losses = []
    for place, inputs in enumerate(everything):
        output = reference(state, *inputs)
        losses.append((output * normal(*output.shape, seed=50 + place)).sum())
        if place == own:
            expected = output
    (sum(losses) / len(losses)).backward()
    inputs = [
        value.detach().clone().requires_grad_(value.requires_grad) if value is not None else None
        for value in everything[own]
    ]
    output = call(module, *inputs) if call else module(*inputs)
    (output * normal(*output.shape, seed=50 + own)).sum().backward()
    assert_near(output, expected, "output")
    for place, (got, wanted) in enumerate(zip(inputs, everything[own], strict=True)):
        if got is not None and got.requires_grad:
            assert_near(got.grad, wanted.grad * len(losses), f"gradient of input {place}")
    check_gradients(module, {key: value.grad for key, value in state.items()})


def check_gradients(module, expected):
    group, seen = tensor_group(), set()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        piece = slice_of(parameter)
        gradient = parameter.grad
        if piece is None:
            every = collectives.gather_whole(gradient.unsqueeze(0), group)
            assert torch.equal(every[0], every[-1]), f"replicas of {name} have other gradients"
        else:
            gradient = collectives.gather_whole(gradient, group, piece.dimension)
        assert_near(gradient, expected[name], f"gradient of {name}")
        seen.add(name)
    assert seen


def assert_near(got, wanted, what):
    assert got.shape == wanted.shape, f"{what}: {tuple(got.shape)}, expected {tuple(wanted.shape)}"
    worst = (got - wanted).abs().max().item()
    assert torch.allclose(got, wanted, rtol=1e-4, atol=3e-5), f"{what}: off by {worst}, of {wanted.abs().max().item()}"


def raised(call):
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller looks at it
        return error
    raise AssertionError("nothing was raised")


# The references: unsharded versions of the layers.


def plain_linear(state, prefix, hidden):
    return functional.linear(hidden, state[f"{prefix}weight"], state.get(f"{prefix}bias"))


def plain_norm(state, prefix, hidden):
    if f"{prefix}weight" not in state:
        return hidden
    return functional.layer_norm(hidden, hidden.shape[-1:], state[f"{prefix}weight"], state[f"{prefix}bias"], 1e-5)


def plain_attention(state, prefix, hidden, keys_of, mask, *, causal, rotary=None, window=None, adds=True):
    normed = plain_norm(state, f"{prefix}pre_layernorm.", hidden)
    keys_of = normed if keys_of is None else keys_of
    query, key, value = (
        plain_linear(state, f"{prefix}{name}.", source).unflatten(-1, (HEADS, HEAD)).transpose(1, 2)
        for name, source in (("query", normed), ("key", keys_of), ("value", keys_of))
    )
    if rotary is not None:
        query, key = plain_rotary(query, rotary), plain_rotary(key, rotary)
    scores = query @ key.transpose(-1, -2) / HEAD**0.5
    if mask is not None:
        scores = scores + mask
    places = torch.arange(scores.shape[-1])
    if causal:
        scores = scores.masked_fill(places > torch.arange(scores.shape[-2])[:, None], float("-inf"))
    if window:
        scores = scores.masked_fill(places <= torch.arange(scores.shape[-2])[:, None] - window, float("-inf"))
    heads = scores.softmax(-1) @ value
    output = plain_linear(state, f"{prefix}dense.", heads.transpose(1, 2).flatten(2))
    return plain_norm(state, f"{prefix}layernorm.", output + hidden) if adds else output


def plain_rotary(heads, rotary):
    """Rotate by complex numbers, unlike the layer."""
    turned, rest = heads[..., : rotary.num_channels], heads[..., rotary.num_channels :]
    half = rotary.num_channels // 2
    pairs = turned.unflatten(-1, (half, 2)) if rotary.is_interleaved else torch.stack(turned.chunk(2, -1), -1)
    angles = torch.arange(heads.shape[2])[:, None] * rotary.base ** (-torch.arange(half) / half)
    spun = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angles), angles))
    spun = spun.flatten(-2) if rotary.is_interleaved else torch.cat(spun.unbind(-1), -1)
    return torch.cat((spun, rest), -1)


def plain_output(state, prefix, hidden, *, adds=True):
    normed = plain_norm(state, f"{prefix}pre_layernorm.", hidden)
    inner = functional.gelu(plain_linear(state, f"{prefix}dense1.", normed))
    output = plain_linear(state, f"{prefix}dense2.", inner)
    return plain_norm(state, f"{prefix}layernorm.", output + hidden) if adds else output


def plain_layer(state, prefix, hidden, mask, *, causal, **more):
    hidden = plain_attention(state, f"{prefix}attention.", hidden, None, mask, causal=causal, **more)
    return plain_output(state, f"{prefix}output.", hidden)


def hidden_and_mask(seed):
    mask = torch.zeros(N, 1, 1, S)
    mask[1, ..., -2 + seed % 2 :] = -10000.0
    return [normal(N, S, H, seed=seed), mask.requires_grad_(False)]


def only_hidden_gets_gradients(seed):
    hidden, mask = hidden_and_mask(seed)
    return [hidden, mask.int()]  # an integer mask, so that `compare` requires no gradient of it


def call_layer(module, hidden, mask, *rest):
    output = module((hidden, mask.float(), *rest))
    assert output[1] is not None
    return output[0]


# The tests.


def test_collectives_between_tensor_ranks_and_their_gradients(rank, size):
    with parallel(size):
        group = tensor_group()
        whole = normal(size * 2, 3, size * 4, seed=3)
        upstream = normal(size * 2, 3, size * 4, seed=4)

        def gradient_of(step, tensor, weights):
            leaf = tensor.clone().requires_grad_()
            out = step(leaf)
            assert out.shape == weights.shape, (out.shape, weights.shape)
            (out * weights).sum().backward()
            return out.detach(), leaf.grad

        def part(tensor, dimension, place=rank):
            return tensor.chunk(size, dimension)[place]

        mine = whole * (rank + 1)
        total = sum(range(1, size + 1))
        out, grad = gradient_of(lambda x: collectives.copy(x, group), whole, upstream * (rank + 1))
        assert torch.equal(out, whole)
        assert torch.allclose(grad, upstream * total)
        out, grad = gradient_of(lambda x: collectives.reduce(x, group), mine, upstream)
        assert torch.allclose(out, whole * total)
        assert torch.equal(grad, upstream)
        for dimension in (0, 2, -1):
            own = part(whole, dimension)
            out, grad = gradient_of(lambda x, d=dimension: collectives.scatter(x, group, d), whole, own)
            assert torch.equal(out, own)
            assert torch.equal(grad, whole)
            out, grad = gradient_of(lambda x, d=dimension: collectives.gather(x, group, d), own, upstream)
            assert torch.equal(out, whole)
            assert torch.equal(grad, part(upstream, dimension))
            out, grad = gradient_of(
                lambda x, d=dimension: collectives.all_gather(x, group, d), own, upstream * (rank + 1)
            )
            assert torch.equal(out, whole)
            assert torch.allclose(grad, part(upstream, dimension) * total)
            out, grad = gradient_of(
                lambda x, d=dimension: collectives.reduce_scatter(x, group, d), mine, part(upstream, dimension)
            )
            assert torch.allclose(out, own * total)
            assert torch.equal(grad, upstream)
        out, grad = gradient_of(
            lambda x: collectives.exchange(x, group, cut=-1, join=0), part(whole, 0), part(upstream, -1)
        )
        assert torch.equal(out, part(whole, -1))
        assert torch.equal(grad, part(upstream, 0))
        flags = torch.arange(4) % 2 == rank % 2
        assert collectives.gather_whole(flags, group).shape == (4 * size,)
        assert collectives.gather_whole(flags, group).dtype == torch.bool


def test_linear(rank, size):
    for keys in layouts():
        with parallel(size, **keys):
            for bias in (True, False):
                module = DistributedLinear(H, 7, bias=bias)
                assert module.weight.shape == (7, H // size)
                compare(
                    module,
                    lambda state, hidden: plain_linear(state, "", hidden),
                    lambda seed: [normal(N, S, H, seed=seed)],
                    prescaled=keys["prescaled_batch"],
                )


def test_embedding(rank, size):
    for keys in layouts():
        with parallel(size, **keys):
            compare(
                DistributedEmbedding(WORDS, H, padding_idx=2),
                lambda state, ids: functional.embedding(ids, state["weight"], padding_idx=2),
                lambda seed: [torch.arange(N * S).reshape(N, S) * seed % WORDS],
                prescaled=keys["prescaled_batch"],
            )


def test_embedding_renormalises_unsharded_rows(rank, size):
    with parallel(size, prescaled_batch=True):
        for norm_type in (1.0, 2.0, float("inf")):
            module = DistributedEmbedding(WORDS, H, max_norm=0.1, norm_type=norm_type)
            plain = torch.nn.Embedding(WORDS, H, max_norm=0.1, norm_type=norm_type)
            plain.load_state_dict(gather_state_dict(module, tensor_group()))
            ids = torch.tensor([[1, 5, 5], [7, 0, 1]])
            assert_near(module(ids), plain(ids), f"norm {norm_type}")
            assert_near(gather_state_dict(module, tensor_group())["weight"], plain.weight, f"rows, norm {norm_type}")


def test_attention(rank, size):
    for keys in layouts():
        with parallel(size, **keys):
            for (pre, post), causal in itertools.product(((True, False), (False, True), (True, True)), (None, 8)):
                module = DistributedAttentionLayer(
                    **SIZES, causal_mask_size=causal, pre_layernorm=pre, post_layernorm=post
                )
                compare(
                    module,
                    lambda state, hidden, mask, causal=causal: plain_attention(
                        state, "", hidden, None, mask, causal=causal
                    ),
                    only_hidden_gets_gradients,
                    prescaled=keys["prescaled_batch"],
                    call=lambda module, hidden, mask: module((hidden, mask.float())),
                )


def test_cross_attention(rank, size):
    for keys in layouts():
        with parallel(size, **keys):
            compare(
                DistributedAttentionLayer(**SIZES, cross_attention=True, pre_layernorm=True),
                lambda state, hidden, cross: plain_attention(state, "", hidden, cross, None, causal=None),
                lambda seed: [normal(N, S, H, seed=seed), normal(N, P, H, seed=seed + 100)],
                prescaled=keys["prescaled_batch"],
                call=lambda module, hidden, cross: module((hidden, cross, None)),
            )


def test_output_layer(rank, size):
    for keys in layouts():
        with parallel(size, **keys):
            for pre, post in ((True, False), (False, True)):
                compare(
                    DistributedTransformerOutputLayer(H, INNER, 0.0, pre_layernorm=pre, post_layernorm=post),
                    lambda state, hidden: plain_output(state, "", hidden),
                    lambda seed: [normal(N, S, H, seed=seed)],
                    prescaled=keys["prescaled_batch"],
                )


def test_layer(rank, size):
    for keys in layouts():
        with parallel(size, **keys):
            for (pre, post), causal in itertools.product(((True, False), (False, True)), (None, 8)):
                compare(
                    DistributedTransformerLayer(
                        **LAYER, causal_mask_size=causal, pre_layernorm=pre, post_layernorm=post
                    ),
                    lambda state, hidden, mask, causal=causal: plain_layer(state, "", hidden, mask, causal=causal),
                    only_hidden_gets_gradients,
                    prescaled=keys["prescaled_batch"],
                    call=call_layer,
                )


def test_layer_with_cross_attention(rank, size):
    def reference(state, hidden, cross):
        hidden = plain_attention(state, "attention.", hidden, None, None, causal=8)
        hidden = plain_attention(state, "cross_attention.", hidden, cross, None, causal=None)
        return plain_output(state, "output.", hidden)

    for keys in layouts():
        with parallel(size, **keys):
            compare(
                DistributedTransformerLayer(**LAYER, causal_mask_size=8, add_cross_attention=True, pre_layernorm=True),
                reference,
                lambda seed: [normal(N, S, H, seed=seed), normal(N, P, H, seed=seed + 100)],
                prescaled=keys["prescaled_batch"],
                call=lambda module, hidden, cross: module((hidden, cross, None, None))[0],
            )


def test_options_about_positions_apply_only_to_self_attention(rank, size):
    """Rotary embedding, windows and ALiBi depend on distances in one sequence; cross-attention has a second one."""
    rotary, window = Rotary(4, base=100.0), 2
    distance = (torch.arange(S) - torch.arange(S)[:, None]).abs()
    bias = -distance * 2.0 ** (-4.0 * torch.arange(1, HEADS + 1) / HEADS)[:, None, None]

    def reference(state, hidden, cross):
        hidden = plain_attention(state, "attention.", hidden, None, bias, causal=8, rotary=rotary, window=window)
        hidden = plain_attention(state, "cross_attention.", hidden, cross, None, causal=None)
        return plain_output(state, "output.", hidden)

    more = {"rotary": rotary, "attention_window": window, "use_alibi": True, "alibi_bias_max": 4}
    for keys in layouts():
        with parallel(size, **keys):
            compare(
                DistributedTransformerLayer(
                    **LAYER, causal_mask_size=8, add_cross_attention=True, pre_layernorm=True, **more
                ),
                reference,
                lambda seed: [normal(N, S, H, seed=seed), normal(N, P, H, seed=seed + 100)],
                prescaled=keys["prescaled_batch"],
                call=lambda module, hidden, cross: module((hidden, cross, None, None))[0],
            )
            for name, value in more.items():
                if name != "alibi_bias_max":
                    failure = raised(lambda n=name, v=value: DistributedAttentionLayer(cross_attention=True, **{n: v}))
                    assert isinstance(failure, ValueError)
                    assert f"cross-attention takes no {name}" in str(failure)


def test_layer_with_parallel_residual_and_rotary_positions(rank, size):
    def reference(state, hidden, *, rotary, is_shared):
        first = plain_norm(state, "pre_layernorm.", hidden) if is_shared else hidden
        return (
            hidden
            + plain_attention(state, "attention.", first, None, None, causal=8, rotary=rotary, adds=False)
            + plain_output(state, "output.", first, adds=False)
        )

    for keys in layouts():
        with parallel(size, **keys):
            for is_shared in (True, False):
                rotary = Rotary(4, base=100.0, is_interleaved=is_shared)
                module = DistributedTransformerLayer(
                    **LAYER,
                    causal_mask_size=8,
                    pre_layernorm=True,
                    post_layernorm=False,
                    parallel_residual=True,
                    shared_layernorm=is_shared,
                    rotary=rotary,
                )
                compare(
                    module,
                    lambda state, hidden, r=rotary, s=is_shared: reference(state, hidden, rotary=r, is_shared=s),
                    lambda seed: [normal(N, S, H, seed=seed)],
                    prescaled=keys["prescaled_batch"],
                    call=lambda module, hidden: module((hidden, None))[0],
                )


def test_layer_with_a_window(rank, size):
    for keys in layouts():
        with parallel(size, **keys):
            compare(
                DistributedTransformerLayer(**LAYER, causal_mask_size=8, attention_window=2),
                lambda state, hidden, mask: plain_layer(state, "", hidden, mask, causal=8, window=2),
                lambda seed: [normal(N, S, H, seed=seed), torch.zeros(N, 1, 1, S).int()],
                prescaled=keys["prescaled_batch"],
                call=call_layer,
            )


def test_layer_with_alibi(rank, size):
    distance = (torch.arange(S) - torch.arange(S)[:, None]).abs()
    bias = -distance * 2.0 ** (-4.0 * torch.arange(1, HEADS + 1) / HEADS)[:, None, None]
    for keys in layouts():
        with parallel(size, **keys):
            compare(
                DistributedTransformerLayer(**LAYER, causal_mask_size=8, use_alibi=True, alibi_bias_max=4),
                lambda state, hidden, mask: plain_layer(state, "", hidden, mask + bias, causal=8),
                only_hidden_gets_gradients,
                prescaled=keys["prescaled_batch"],
                call=call_layer,
            )


def test_a_stack_uses_the_number_of_collectives_of_its_layout(rank, size):
    """Each further layer adds a fixed list of collectives, forward and backward."""
    sent = []

    def counted(name, function):
        def call(*args, **keywords):
            sent.append(name)
            return function(*args, **keywords)

        return call

    kinds = ("all_reduce", "all_gather_single", "reduce_scatter_single", "all_to_all_single", "broadcast")
    own = {kind: getattr(dist, kind) for kind in kinds}
    expected = {  # per layer: two blocks, forward and backward; the statistics of two layer norms if they are split
        "speed": {"all_reduce": 4},
        # gathered before each block, again for its backward pass, and after each block's backward pass
        "memory": {"all_gather_single": 2 + 2 + 2 + 2, "reduce_scatter_single": 2 + 2, "all_reduce": 2},
    }
    for keys in layouts():
        with parallel(size, **keys):
            counts = []
            for num_layers in (1, 2):
                module = DistributedTransformer(num_layers, **LAYER, pre_layernorm=True, post_layernorm=False)
                sent.clear()
                try:
                    for kind in kinds:
                        setattr(dist, kind, counted(kind, own[kind]))
                    hidden = normal(N, S, H, seed=rank).requires_grad_()
                    module((hidden, None))[0].sum().backward()
                finally:
                    for kind in kinds:
                        setattr(dist, kind, own[kind])
                counts.append({kind: sent.count(kind) for kind in kinds})
            more = {kind: counts[1][kind] - counts[0][kind] for kind in kinds if counts[1][kind] != counts[0][kind]}
            assert more == expected[keys["optimize"]], (keys, more)


def test_transformer_normalises_both_ends_with_both_layernorms(rank, size):
    def reference(state, hidden, mask):
        hidden = plain_norm(state, "input_layernorm.", hidden)
        for number in range(2):
            hidden = plain_layer(state, f"seq_layers.{number}.", hidden, mask, causal=None)
        return plain_norm(state, "layernorm.", hidden)

    for keys in layouts():
        with parallel(size, **keys):
            for pre, post in ((True, True), (False, True)):
                compare(
                    DistributedTransformer(num_layers=2, **LAYER, pre_layernorm=pre, post_layernorm=post),
                    reference,
                    only_hidden_gets_gradients,
                    prescaled=keys["prescaled_batch"],
                    call=call_layer,
                )


def lm_inputs(seed):
    ids = torch.arange(N * S).reshape(N, S) * seed % WORDS
    mask = torch.zeros(N, S, dtype=torch.long)
    mask[1, -1] = 1
    return [ids, mask, ids % 2, (torch.arange(S) + seed % 2).expand(N, S)]


def test_language_model(rank, size):
    def reference(state, ids, mask, types, positions):
        hidden = sum(
            functional.embedding(given, state[f"{name}_embedding.weight"])
            for name, given in (("word", ids), ("position", positions), ("token_type", types))
        )
        scores = mask[:, None, None, :] * -1e9
        for number in range(2):
            hidden = plain_layer(state, f"transformer.seq_layers.{number}.", hidden, scores, causal=8)
        hidden = plain_norm(state, "transformer.layernorm.", hidden)
        return plain_linear(state, "lm_head.", hidden)

    for keys in layouts():
        with parallel(size, **keys):
            for is_tied in (True, False):
                module = DistributedTransformerLMHead(
                    num_layers=2,
                    **LAYER,
                    vocab_size=WORDS,
                    num_positions=8,
                    num_token_types=2,
                    causal_mask_size=8,
                    pre_layernorm=True,
                    post_layernorm=False,
                    final_layernorm=True,
                    tie_input_output_embedding=is_tied,
                    use_lm_head_bias=not is_tied,
                )
                compare(
                    module,
                    reference,
                    lm_inputs,
                    prescaled=keys["prescaled_batch"],
                    call=lambda module, *inputs: module((*inputs, None)),
                )


def test_language_model_with_cross_attention(rank, size):
    def reference(state, ids, cross, cross_mask):
        hidden = functional.embedding(ids, state["word_embedding.weight"])
        hidden = hidden + functional.embedding(torch.arange(S), state["position_embedding.weight"])
        prefix = "transformer.seq_layers.0."
        hidden = plain_attention(state, f"{prefix}attention.", hidden, None, None, causal=8)
        scores = cross_mask[:, None, None, :] * -1e9
        hidden = plain_attention(state, f"{prefix}cross_attention.", hidden, cross, scores, causal=None)
        return plain_linear(state, "lm_head.", plain_output(state, f"{prefix}output.", hidden))

    def make_inputs(seed):
        mask = torch.zeros(N, P, dtype=torch.long)
        mask[seed % N, 0] = 1
        return [lm_inputs(seed)[0], normal(N, P, H, seed=seed), mask]

    for keys in layouts():
        with parallel(size, **keys):
            compare(
                DistributedTransformerLMHead(
                    num_layers=1,
                    **LAYER,
                    vocab_size=WORDS,
                    num_positions=8,
                    causal_mask_size=8,
                    add_cross_attention=True,
                ),
                reference,
                make_inputs,
                prescaled=keys["prescaled_batch"],
                call=lambda module, ids, cross, mask: module((ids, None, None, None, cross, mask, None)),
            )


def test_language_model_returns_the_loss_of_the_next_token(rank, size):
    with parallel(size, prescaled_batch=True):
        module = DistributedTransformerLMHead(
            num_layers=1, **LAYER, vocab_size=WORDS, num_positions=8, causal_mask_size=8
        )
        ids = lm_inputs(7)[0]
        labels = ids.clone()
        labels[0, 2] = -100
        loss, logits = module((ids, None, None, None, labels))
        wanted = [
            -logits[row, place].log_softmax(-1)[labels[row, place + 1]]
            for row in range(N)
            for place in range(S - 1)
            if labels[row, place + 1] != -100
        ]
        assert_near(loss, sum(wanted) / len(wanted), "loss")
        without = DistributedTransformerLMHead(num_layers=1, **LAYER, vocab_size=WORDS, add_lm_head=False)
        assert without((ids, None, None, None)).shape == (N, S, H)


def test_layers_start_with_the_weights_of_the_unsharded_layer(rank, size):
    with parallel(size):
        torch.manual_seed(11)
        cut = DistributedLinear(H, 7)
        torch.manual_seed(11)
        plain = torch.nn.Linear(H, 7)
        whole = gather_state_dict(cut, tensor_group())
        assert torch.equal(whole["weight"], plain.weight)
        assert torch.equal(whole["bias"], plain.bias)
        torch.manual_seed(11)
        layer = DistributedTransformerLayer(**LAYER, use_normal_initialization=True, initializer_range=0.5)
        whole = gather_state_dict(layer, tensor_group())
    assert abs(whole["attention.query.weight"].std().item() - 0.5) < 0.05
    assert torch.equal(whole["output.dense1.bias"], torch.zeros(INNER))
    torch.manual_seed(11)
    assert torch.equal(whole["attention.query.weight"], torch.nn.init.normal_(torch.empty(HEADS * HEAD, H), std=0.5))


def test_dropout_is_equal_on_replicas_and_differs_on_slices(rank, size):
    for seed in (0, rank):  # programs use one seed, or a seed per rank
        with parallel(size):
            group = tensor_group()
            torch.manual_seed(seed)
            replicated = dropout_replicated(torch.ones(1000), 0.4, group)
            every = collectives.gather_whole(replicated.unsqueeze(0), group)
            assert (every == every[0]).all()
            assert 0.5 < (replicated != 0).float().mean() < 0.7
            assert abs(replicated.max().item() - 1 / 0.6) < 1e-5
            split = dropout_split(torch.ones(1000), 0.4, group)
            every = collectives.gather_whole(split.unsqueeze(0), group)
            assert not (every[0] == every[1]).all()
            before = torch.get_rng_state()
            dropout_split(torch.ones(4), 0.0, group)
            assert torch.equal(before, torch.get_rng_state())


def test_checkpointing_draws_the_same_masks_again(rank, size):
    for keys in layouts():
        with parallel(size, **keys):
            module = DistributedTransformerLayer(
                **LAYER | {"attention_dropout_prob": 0.3, "hidden_dropout_prob": 0.3}, causal_mask_size=8
            )
            gradients = []
            for again in (False, True):
                torch.manual_seed(5 + rank)
                hidden = normal(N, S, H, seed=rank * (not keys["prescaled_batch"])).requires_grad_()
                inputs = (hidden, None)
                module.zero_grad()
                output = checkpoint(module, inputs, use_reentrant=False) if again else module(inputs)
                output[0].square().sum().backward()
                gradients.append([hidden.grad, *(parameter.grad for parameter in module.parameters())])
            for once, twice in zip(*gradients, strict=True):
                assert torch.equal(once, twice)
            if keys["prescaled_batch"]:
                every = collectives.gather_whole(output[0].unsqueeze(0), tensor_group())
                assert torch.equal(every[0], every[-1])
                module.eval()
                assert torch.equal(module((hidden, None))[0], module((hidden, None))[0])


def test_attributes_mark_the_parameters_that_are_slices(rank, size):
    with parallel(size, optimize="speed"):
        module = DistributedTransformerLayer(**LAYER)
        assert all(one.is_distributed for one in module.modules() if hasattr(one, "layout"))
        pieces = slices_of(module)
        assert {(key, piece.dimension) for key, piece in pieces.items() if "attention" in key} == {
            *((f"attention.{name}.{kind}", 0) for name in ("query", "key", "value") for kind in ("weight", "bias")),
            ("attention.dense.weight", 1),
        }
        assert {(piece.rank, piece.size) for piece in pieces.values()} == {(rank, size)}
        assert slices_of(copying.deepcopy(module)) == pieces
        assert slices_of(module.double()) == pieces
    with parallel(size, optimize="memory"):
        assert set(slices_of(DistributedTransformerLayer(**LAYER))) == set(dict(module.named_parameters()))
        with torch.device("meta"):
            late = DistributedTransformerLMHead(num_layers=1, **LAYER, vocab_size=WORDS)
        pieces = slices_of(late)
        late.to_empty(device="cpu")
        for one in late.modules():
            if hasattr(one, "reset_parameters"):
                one.reset_parameters()
        assert slices_of(late) == pieces
        assert late.lm_head.weight is late.word_embedding.weight
        assert late((torch.zeros(2, 3, dtype=torch.long), None, None, None)).isfinite().all()


def test_half_precision_parameters(rank, size):
    with parallel(size, fp16_params=True):
        module = DistributedTransformerLayer(**LAYER, causal_mask_size=8, pre_layernorm=True, post_layernorm=False)
        assert {parameter.dtype for parameter in module.parameters()} == {torch.float16}
        hidden = normal(N, S, H).half()
        assert module((hidden, None))[0].dtype == torch.float16
        hidden = hidden / hidden.abs().max() * 60000
        for is_added_in_float32 in (True, False):
            big = DistributedTransformerLayer(**LAYER, pre_layernorm=True, fp32_residual_addition=is_added_in_float32)
            torch.nn.init.constant_(big.attention.dense.bias, 30000)  # 65504 is the largest half-precision number
            output = big((hidden, None))[0]
            assert output.dtype == torch.float16
            assert output.isfinite().all() == is_added_in_float32
            stack = DistributedTransformer(
                num_layers=1,
                **LAYER,
                pre_layernorm=True,
                post_layernorm=False,
                parallel_residual=True,
                final_layernorm=True,
                fp32_residual_addition=is_added_in_float32,
            )
            torch.nn.init.constant_(stack.seq_layers[0].attention.dense.bias, 30000)
            output = stack((hidden, None))[0]
            assert output.dtype == torch.float16
            assert output.isfinite().all() == is_added_in_float32


def test_autocast(rank, size):
    for keys in layouts():
        with parallel(size, **keys):
            module = DistributedTransformerLayer(**LAYER, causal_mask_size=8)
            hidden = normal(N, S, H).requires_grad_()
            wanted = module((hidden, None))[0]
            with torch.autocast("cpu", dtype=torch.bfloat16):
                output = module((hidden, None))[0]
            output.float().sum().backward()
            assert (output - wanted).abs().max() < 0.1
            assert all(parameter.grad is not None for parameter in module.parameters())
