"""Modules of a model replaced by distributed ones. Functions `test_...(rank, size)`; see `torch_ranks`."""

from contextlib import contextmanager

import torch
from torch import nn
from whole_states import gather_state_dict

from clary.train.parallel import runtime
from clary.train.parallel.configuration import read_configuration
from clary.train.parallel.layout.mesh import Along
from clary.train.parallel.memory.delayed import delay_param_initialization, materialize
from clary.train.parallel.tensor.collectives import TensorGroup
from clary.train.parallel.tensor.embedding import DistributedEmbedding
from clary.train.parallel.tensor.linear import DistributedLinear
from clary.train.parallel.tensor.registry import (
    set_tensor_parallelism,
    tensor_parallelism,
    tp_register,
    tp_register_with_module,
    unregister,
)
from clary.train.parallel.tensor.replacement import replace_modules
from clary.train.parallel.tensor.slices import slices_of
from clary.train.parallel.tensor.transformer import DistributedTransformerLayer


@contextmanager
def parallel(size, **keys):
    runtime.initialize(
        read_configuration({"tensor_parallel_degree": size, "ddp": True, "prescaled_batch": True, **keys})
    )
    try:
        yield
    finally:
        runtime.reset()


def whole(module):
    groups = runtime.current().groups
    group = TensorGroup(groups.process_group(Along.TP), groups.group_rank(Along.TP), groups.size(Along.TP))
    return gather_state_dict(module, group)


class Tied(nn.Module):
    """An embedding whose weight is that of the head."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.hidden = nn.Linear(4, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        return self.head(self.hidden(self.embedding(ids)))


def test_linear_and_embedding_are_replaced_and_keep_their_weights_if_asked(rank, size):
    with parallel(size):
        torch.manual_seed(2)
        layers = [nn.Embedding(8, 4, padding_idx=1), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4, bias=False)]
        model = nn.Sequential(*layers)
        ids = torch.tensor([[0, 1, 7]])
        wanted, state = model(ids), {key: value.clone() for key, value in model.state_dict().items()}
        set_tensor_parallelism(model)
        set_tensor_parallelism(model[3], enabled=False)
        done = replace_modules(model, carries_weights=True)
        assert done.root is model
        assert [str(one) for one in done.changes] == [
            "0 (Embedding): replaced by DistributedEmbedding",
            "1 (Linear): replaced by DistributedLinear",
        ]
        assert isinstance(model[0], DistributedEmbedding)
        assert isinstance(model[1], DistributedLinear)
        assert type(model[3]) is nn.Linear
        assert torch.allclose(model(ids), wanted, atol=1e-6)
        assert all(torch.equal(value, state[key]) for key, value in whole(model).items())
        assert model[0].weight.shape == (8, 4 // size)


def test_weights_are_new_by_default(rank, size):
    with parallel(size):
        with tensor_parallelism():
            model = nn.Sequential(nn.Linear(4, 4))
        before = model[0].weight.clone()
        replace_modules(model)
        assert not torch.equal(whole(model)["0.weight"], before)


def test_embeddings_are_kept_on_request(rank, size):
    with parallel(size):
        with tensor_parallelism(distribute_embedding=False):
            model = nn.Sequential(nn.Embedding(8, 4))
        assert [one.reason for one in replace_modules(model).changes] == ["distribute_embedding is false"]


def test_shared_weights_and_odd_sizes_are_kept_with_a_reason(rank, size):
    with parallel(size):
        with tensor_parallelism():
            model = Tied()
            model.odd = nn.Linear(size + 1, 2)
        done = replace_modules(model)
        assert [str(one) for one in done.changes] == [
            "embedding (Embedding): kept, it shares a weight with head",
            "hidden (Linear): replaced by DistributedLinear",
            "head (Linear): kept, it shares a weight with embedding",
            f"odd (Linear): kept, dimension 1 of a weight of shape (2, {size + 1}) is {size + 1}, no multiple of "
            f"tensor_parallel_degree, which is {size}: choose another size, or leave tensor parallelism off here",
        ]
        assert model(torch.zeros(1, 2, dtype=torch.long)).shape == (1, 2, 8)


def test_a_module_that_is_used_twice_is_kept(rank, size):
    with parallel(size):
        layer = nn.Linear(4, 4)
        model = nn.ModuleDict({"first": nn.Sequential(layer), "second": nn.Sequential(layer)})
        set_tensor_parallelism(model)
        assert {one.reason for one in replace_modules(model).changes} == {
            "it shares a weight with second.0",
            "it shares a weight with first.0",
        }


def test_the_outermost_registered_module_is_replaced_with_its_hooks(rank, size):
    with parallel(size):

        def init_hook(width, heads=4, *, inner=8):
            return (heads, width // heads), {"hidden_size": width, "intermediate_size": inner}

        def forward_hook(hidden, mask=None, scale=1.0):
            return ((hidden * scale, mask),), {}

        @tp_register(DistributedTransformerLayer, init_hook, forward_hook, lambda output: {"hidden": output[0]})
        class Block(nn.Module):
            """A block defined by a program."""

            def __init__(self, width, heads=4, *, inner=8):
                super().__init__()
                self.inside = nn.Linear(width, inner)

            def forward(self, hidden, mask=None, scale=1.0):
                return {"hidden": self.inside(hidden)}

        keywords = {"activation": "relu", "num_attention_heads": 2 * size, "attention_in_fp32": True, "unknown": 1}
        with tensor_parallelism(**keywords):
            model = nn.Sequential(Block(8, inner=12), Block(8, 3))
        model.eval()
        done = replace_modules(model)
        made = model[0]
        assert [one.name for one in done.changes] == ["0", "1"]
        assert isinstance(made, DistributedTransformerLayer)
        assert not made.training
        assert made.attention.num_heads == 2
        assert made.output.activation is nn.functional.relu
        assert made.output.dense1.weight.shape == (12 // size, 8)
        hidden = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(1))
        output = made(hidden, scale=2.0)
        assert set(output) == {"hidden"}
        assert torch.equal(output["hidden"], made(2 * hidden)["hidden"])
        unregister(Block)


def test_the_model_itself_may_be_replaced(rank, size):
    with parallel(size):
        model = nn.Linear(4, 4)
        set_tensor_parallelism(model)
        done = replace_modules(model)
        assert isinstance(done.root, DistributedLinear)
        assert str(done.changes[0]) == "the model (Linear): replaced by DistributedLinear"


def test_modules_created_before_their_class_was_registered_are_kept(rank, size):
    with parallel(size):

        class Late(nn.Linear):
            """Registered after its instances were created."""

        model = nn.Sequential(Late(4, 4))

        class Bare(nn.Module):
            """Has no weights, so that its replacement is not frozen."""

        tp_register_with_module(Bare, DistributedLinear, lambda: ((4, 4), {}))
        bare = nn.Sequential(Bare())
        set_tensor_parallelism(bare)
        replace_modules(bare)
        assert all(parameter.requires_grad for parameter in bare.parameters())
        unregister(Bare)
        tp_register_with_module(Late, DistributedLinear, lambda *args: None)
        model.append(Late(4, 4))
        set_tensor_parallelism(model)
        first, second = replace_modules(model).changes
        assert "made before its class was registered" in first.reason
        assert second.reason == "its init_hook gave nothing"
        unregister(Late)


def test_device_dtype_and_frozen_weights_are_kept(rank, size):
    with parallel(size):
        model = nn.Sequential(nn.Linear(4, 4).double(), nn.Linear(4, 4, device="meta")).requires_grad_(False)
        set_tensor_parallelism(model)
        replace_modules(model, carries_weights=True)
        assert model[0].weight.dtype == torch.float64
        assert not model[0].weight.requires_grad
        assert model[1].weight.is_meta
        assert model[1].weight.tensor_slice.dimension == 1


def test_delayed_parameters_have_the_initial_values_of_immediate_ones(rank, size):
    def make():
        torch.manual_seed(3 + rank)
        return nn.Sequential(
            DistributedTransformerLayer(2 * size, 4, 8, 8 * size),
            DistributedLinear(4, 3),
            DistributedEmbedding(5, 4),
        )

    for optimize in ("memory", "speed"):
        with parallel(size, optimize=optimize):
            at_once = make()
            with delay_param_initialization():
                late = make()
            assert all(parameter.is_meta for parameter in late.parameters())
            assert slices_of(late) == slices_of(at_once)
            materialize(late)
            for one, other in zip(at_once.parameters(), late.parameters(), strict=True):
                assert torch.equal(one, other)
            assert slices_of(late) == slices_of(at_once)
            with delay_param_initialization(), tensor_parallelism():
                model = nn.Sequential(nn.Linear(4, 4))
            replace_modules(model)
            assert model[0].weight.is_meta
            materialize(model)
            assert isinstance(model[0], DistributedLinear)
            assert 0 < model[0].weight.abs().max() <= 0.5
            assert whole(model)["0.bias"].isfinite().all()


def test_no_module_is_replaced_unless_tensor_parallelism_is_enabled(rank, size):
    with parallel(size):
        model = nn.Sequential(nn.Linear(4, 4))
        assert replace_modules(model).changes == []
        set_tensor_parallelism(model, enabled=False)
        assert replace_modules(model).changes == []


def test_keywords_without_effect_are_reported(rank, size):
    with parallel(size):
        with tensor_parallelism(fused_softmax=True, distribute_embedding=True, bias=False, fused_sofmax=True):
            model = nn.Sequential(nn.Linear(4, 4), nn.Embedding(4, 4))
        done = replace_modules(model)
        assert model[0].bias is None
        assert done.without_effect == ["fused_softmax"]
        assert done.unknown == ["fused_sofmax"]
        assert str(done).splitlines() == [
            "Tensor parallelism:",
            "  0 (Linear): replaced by DistributedLinear",
            "  1 (Embedding): replaced by DistributedEmbedding",
            "Replaced modules start with new weights: load a state into the DistributedModel for others.",
            "Keywords without effect here: fused_softmax.",
            "Keywords that no class put in takes: fused_sofmax: misspelt, or of no use?",
        ]
