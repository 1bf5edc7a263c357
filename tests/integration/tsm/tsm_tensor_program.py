"""`transform` with tensor_parallel_degree 2, compared with the whole model, on 2 and on 4 ranks."""

import copy

import torch
from torch import nn
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from tsm_tensor_models import VOCABULARY, families, first_layer, two_families

from clary.train.parallel.fsdp.cuts import cuts_by_name
from clary.train.parallel.fsdp.layers.classes import TransformerLayer, TransformerLMHead
from clary.train.parallel.fsdp.session import init
from clary.train.parallel.fsdp.state import state
from clary.train.parallel.fsdp.training import clip_grad_norm_, transform

_STEPS = 3
_MAX_NORM = 0.3  # below the norms that occur: every step clips
_CLOSE = 3e-5


def begun(hybrid=0, tensor=2):
    state.reset()
    init({"tensor_parallel_degree": tensor, "hybrid_shard_degree": hybrid})


def wrapped(model, layer=TransformerLayer, **options):
    options = {"use_orig_params": True, "device_id": torch.device("cpu"), **options}
    return FSDP(model, auto_wrap_policy=ModuleWrapPolicy({layer}), **options)


def batches(num_data):
    """Return tokens [steps, data rank, batch, sequence]."""
    return torch.randint(4, VOCABULARY - 1, (_STEPS, num_data, 2, 9), generator=torch.Generator().manual_seed(7))


def optimizer_of(model):
    # A large epsilon: elements whose gradient is only rounding must not step by the sign of the rounding.
    return torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)


def train_alone(model, num_data, steps=_STEPS, *, optimizer=None, norm_type=2.0):
    optimizer = optimizer or optimizer_of(model)
    told = []
    for tokens in batches(num_data)[:steps]:
        optimizer.zero_grad()
        losses = torch.stack([model(input_ids=part, labels=part).loss for part in tokens])
        losses.mean().backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), _MAX_NORM, norm_type)
        optimizer.step()
        told.append((losses.tolist(), norm.item()))
    return told


def train_cut(model, optimizer=None, steps=_STEPS, *, norm_type=2.0):
    optimizer = optimizer or optimizer_of(model)
    told = []
    for tokens in batches(state.world_size // state.tp_size)[:steps]:
        part = tokens[state.rank // state.tp_size]
        optimizer.zero_grad()
        loss = model(input_ids=part, labels=part).loss
        loss.backward()
        norm = clip_grad_norm_(model, _MAX_NORM, norm_type)
        optimizer.step()
        told.append((loss.item(), norm.item()))
    return told


def full_state(model, **options):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(**options)):
        return model.state_dict()


def assert_same_state(found, expected, **tolerances):
    tolerances = {"rtol": 1e-5, "atol": _CLOSE, **tolerances}
    assert list(found) == list(expected), (list(found), list(expected))
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, **tolerances, msg=lambda text, name=name: f"{name}: {text}")


def check_training(hybrid, size, norm_type=2.0, among=two_families, **options):
    for name, make in among().items():
        begun(hybrid)
        torch.manual_seed(5)
        alone = make()
        model = wrapped(transform(copy.deepcopy(alone)), **options)
        expected, found = train_alone(alone, size // 2, norm_type=norm_type), train_cut(model, norm_type=norm_type)
        for (losses, norm), (loss, own_norm) in zip(expected, found, strict=True):
            assert abs(losses[state.rank // 2] - loss) < _CLOSE, (name, expected, found)
            assert abs(norm - own_norm) < _CLOSE * max(norm, 1), (name, expected, found)
        assert_same_state(full_state(model), alone.state_dict())
    state.reset()


def test_losses_and_gradients_without_fsdp(rank, size):
    for name, make in families().items():
        begun()
        torch.manual_seed(5)
        alone = make()
        model = transform(copy.deepcopy(alone))
        tokens = batches(1)[0][0]
        expected, found = (one(input_ids=tokens, labels=tokens) for one in (alone, model))
        torch.testing.assert_close(found.logits, expected.logits, rtol=1e-5, atol=1e-5)
        expected.loss.backward()
        found.loss.backward()
        cuts = cuts_by_name(model)
        assert len(cuts) >= 9, (name, list(cuts))
        for key, parameter in model.named_parameters():
            gradient = alone.get_parameter(key).grad
            if key in cuts:
                gradient = cuts[key].of(gradient, state.tp_rank, 2)
            torch.testing.assert_close(
                parameter.grad, gradient, rtol=1e-4, atol=1e-6, msg=lambda text, key=key: f"{key}: {text}"
            )
        whole = sum(one.numel() for one in alone.parameters())
        most = 1.0 if name == "mixtral" else 0.75  # experts are not cut
        assert sum(one.numel() for one in model.parameters()) < most * whole, name
    state.reset()


def test_training_over_all_ranks(rank, size):
    check_training(0, size, among=families)


def test_training_with_nothing_sharded(rank, size):
    check_training(1, size)


def test_training_with_shards_of_every_degree(rank, size):
    check_training(size // 2, size)


def test_training_of_flat_parameters(rank, size):
    check_training(0, size, use_orig_params=False)
    check_training(1, size, use_orig_params=False)


def test_clipping_by_the_infinity_norm_matches_one_process(rank, size):
    check_training(0, size, norm_type=float("inf"))


def test_policies_name_either_class(rank, size):
    begun()
    for make in families().values():
        own = type(first_layer(make()))
        for layer in (own, TransformerLayer):
            model = transform(make())
            assert isinstance(model, TransformerLMHead)
            assert isinstance(model, type(make()))
            assert isinstance(first_layer(wrapped(model, layer)), FSDP)
    begun(tensor=1)
    assert isinstance(first_layer(transform(make())), TransformerLayer)
    state.reset()
