"""States of models cut over a tensor group: whole, local, loaded from rank 0, and of delayed parameters."""

import copy
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from tsm_tensor_models import families, two_families
from tsm_tensor_program import (
    assert_same_state,
    batches,
    begun,
    full_state,
    optimizer_of,
    train_alone,
    train_cut,
    wrapped,
)

from clary.train.parallel.fsdp.checkpoint.asynchronous import async_save, maybe_finalize_async_calls
from clary.train.parallel.fsdp.checkpoint.loading import load
from clary.train.parallel.fsdp.checkpoint.local_state import SMStateDictType, init_optim_state, sm_state_dict_type
from clary.train.parallel.fsdp.checkpoint.saving import save
from clary.train.parallel.fsdp.cuts import cuts_by_name
from clary.train.parallel.fsdp.delayed import DelayedParamIniter
from clary.train.parallel.fsdp.state import state
from clary.train.parallel.fsdp.training import transform

LOCAL = SMStateDictType.SM_LOCAL_STATE_DICT


def folder(name):
    """Return a folder that all ranks see, new for every function."""
    made = [tempfile.mkdtemp(prefix=f"clary-{name}-") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(made)
    return Path(made[0])


def refused(call, kind, words):
    told = None
    try:
        call()
    except kind as error:
        told = str(error)
    assert told is not None, f"nothing was raised; expected {words!r}"
    assert words in told, told


def made(make, seed=5, **options):
    torch.manual_seed(seed)
    model = wrapped(transform(make()), **options)
    return model, optimizer_of(model)


def test_a_full_state_is_that_of_the_model_in_one_piece(rank, size):
    tokens = batches(1)[0][0]
    for name, make in families().items():
        begun()
        model, optimizer = made(make)
        train_cut(model, optimizer, 1)
        cut_logits = model(tokens).logits
        alone = make()
        for is_rank0_only in (False, True):
            whole = full_state(model, rank0_only=is_rank0_only, offload_to_cpu=True)
            if is_rank0_only and rank:
                assert not whole, (name, list(whole))
                continue
            assert list(whole) == list(alone.state_dict()), name
            alone.load_state_dict(whole)
            torch.testing.assert_close(alone(tokens).logits, cut_logits, rtol=1e-5, atol=1e-5)
    state.reset()


def test_a_full_state_is_cut_when_it_is_loaded(rank, size):
    for make in two_families().values():
        begun()
        torch.manual_seed(9)
        whole = make().state_dict()
        for options in ({}, {"use_orig_params": False}):
            model, _ = made(make, **options)
            model.load_state_dict(whole)
            assert_same_state(full_state(model), whole, rtol=0, atol=0)
    state.reset()


def test_without_translation_states_are_slices(rank, size):
    begun()
    for make in two_families().values():
        model, _ = made(make)
        slices = full_state(model, translate_on_save=False)
        whole = full_state(model)
        cuts = cuts_by_name(model)
        for key, value in slices.items():
            expected = whole[key] if key not in cuts else cuts[key].of(whole[key], state.tp_rank, 2)
            torch.testing.assert_close(value, expected, rtol=0, atol=0)
        other, _ = made(make, seed=6)
        other.load_state_dict(slices)
        assert_same_state(full_state(other), whole, rtol=0, atol=0)
    state.reset()


def check_optimizer_states(rank, size, **options):
    for make in two_families().values():
        begun()
        torch.manual_seed(5)
        alone = make()
        alone_optimizer = optimizer_of(alone)
        train_alone(alone, size // 2, 2, optimizer=alone_optimizer)
        model, optimizer = made(make, **options)
        train_cut(model, optimizer, 2)
        configs = FullStateDictConfig(), FullOptimStateDictConfig(rank0_only=False)
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, *configs):
            whole, weights = FSDP.optim_state_dict(model, optimizer), model.state_dict()
        older = FSDP.full_optim_state_dict(model, optimizer, rank0_only=True)
        assert bool(older) == (rank == 0), older.keys()
        for key, parameter in alone.named_parameters():
            for name, value in alone_optimizer.state[parameter].items():
                for one in (whole, older) if older else (whole,):
                    torch.testing.assert_close(
                        one["state"][key][name], value, rtol=1e-4, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}"
                    )
        expected = train_cut(model, optimizer, 1)
        other, other_optimizer = made(make, seed=6, **options)
        with FSDP.state_dict_type(other, StateDictType.FULL_STATE_DICT, *configs):
            other.load_state_dict(weights)
            other_optimizer.load_state_dict(FSDP.optim_state_dict_to_load(other, other_optimizer, whole))
        assert train_cut(other, other_optimizer, 1) == expected
    state.reset()


def test_optimizer_states_are_whole_and_are_cut_again(rank, size):
    check_optimizer_states(rank, size)


def test_optimizer_states_of_flat_parameters(rank, size):
    check_optimizer_states(rank, size, use_orig_params=False)


def test_older_calls_for_states_in_shards_are_refused(rank, size):
    begun()
    model, optimizer = made(next(iter(two_families().values())))
    refused(lambda: FSDP.sharded_optim_state_dict(model, optimizer), ValueError, "sm_state_dict_type")
    refused(lambda: FSDP.scatter_full_optim_state_dict({}, model), ValueError, "optim_state_dict_to_load")
    state.reset()


def test_local_states_resume_bit_for_bit(rank, size):
    for hybrid in (0, 1):
        for make in two_families().values():
            begun(hybrid)
            at = folder("local")
            model, optimizer = made(make)
            train_cut(model, optimizer, 2)
            with sm_state_dict_type(model, LOCAL):
                async_save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint_id=at)
            expected = train_cut(model, optimizer, 2)
            assert maybe_finalize_async_calls(blocking=True)
            model, optimizer = made(make, seed=6)
            init_optim_state(optimizer, skip_empty_param=True)
            with sm_state_dict_type(model, LOCAL):
                found = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                load(found, checkpoint_id=at)
                model.load_state_dict(found["model"])
                optimizer.load_state_dict(found["optimizer"])
            assert train_cut(model, optimizer, 2) == expected
    state.reset()


def test_local_states_of_another_tensor_degree_are_refused(rank, size):
    at = folder("degrees")
    make = next(iter(two_families().values()))
    begun()
    model, optimizer = made(make)
    train_cut(model, optimizer, 1)
    with sm_state_dict_type(model, LOCAL):
        saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        save(saved, checkpoint_id=at)
    begun(tensor=1)
    model, optimizer = made(make)
    with sm_state_dict_type(model, LOCAL):
        refused(lambda: model.load_state_dict(saved["model"]), ValueError, "other degrees")
        refused(lambda: optimizer.load_state_dict(saved["optimizer"]), ValueError, "tp")
    state.reset()


def test_rank_0_gives_its_weights(rank, size):
    """Other ranks hold no values until FSDP broadcasts them, or hold different values."""
    for is_meta in (True, False):
        for make in (families()["llama"], families()["neox"]):  # `to_empty` unties weights on the ranks that call it
            begun()
            torch.manual_seed(rank)
            with torch.device("meta" if is_meta and rank else "cpu"):
                model = make()
            expected = [copy.deepcopy(model.state_dict())]
            dist.broadcast_object_list(expected)
            model = transform(model, load_state_dict_from_rank0=True)
            assert any(one.is_meta for one in model.parameters()) == (is_meta and rank >= 2)
            model = wrapped(
                model,
                sync_module_states=True,
                param_init_fn=lambda module: module.to_empty(device="cpu", recurse=False),
            )
            assert_same_state(full_state(model), expected[0], rtol=0, atol=0)
    state.reset()


def test_rank_0_must_have_weights_to_give(rank, size):
    begun()
    with torch.device("meta"):
        model = next(iter(two_families().values()))()
    if rank < 2:
        refused(lambda: transform(model, load_state_dict_from_rank0=True), ValueError, "load the model's weights")
    else:  # these ranks wait for the values until FSDP sends them, which is not reached
        transform(model, load_state_dict_from_rank0=True)
    dist.barrier()
    make = next(iter(two_families().values()))
    with torch.device("meta" if rank % 2 else "cpu"):
        model = make()
    refused(lambda: transform(model), ValueError, "set load_state_dict_from_rank0")
    state.reset()


def test_delayed_parameters_are_those_of_the_seed(rank, size):
    for name, make in two_families().items():
        begun()
        with torch.device("meta"):
            model = transform(make())
        initer = DelayedParamIniter(model)
        torch.manual_seed(3)
        with initer.validate_params_and_buffers_inited():
            model = wrapped(
                model,
                param_init_fn=initer.get_param_init_fn(),
                post_param_init_fn=initer.get_post_param_init_fn(),
            )
        whole = full_state(model)
        begun(tensor=1)
        with torch.device("meta"):
            model = transform(make())
        initer = DelayedParamIniter(model)
        torch.manual_seed(3)
        model = wrapped(
            model, param_init_fn=initer.get_param_init_fn(), post_param_init_fn=initer.get_post_param_init_fn()
        )
        assert_same_state(whole, full_state(model), rtol=0, atol=0)
        assert any(one.std() > 0 for one in whole.values()), name
    state.reset()
