"""Local and sharded states of FSDP models in distributed checkpoints of `torch.sagemaker`."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import CheckpointException, FileSystemReader
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy, StateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from clary.train.parallel.fsdp.checkpoint.asynchronous import async_save, maybe_finalize_async_calls
from clary.train.parallel.fsdp.checkpoint.loading import load
from clary.train.parallel.fsdp.checkpoint.local_state import SMStateDictType, init_optim_state, sm_state_dict_type
from clary.train.parallel.fsdp.checkpoint.saving import save
from clary.train.parallel.fsdp.session import init
from clary.train.parallel.fsdp.state import state

_WIDTH = 6
LOCAL = SMStateDictType.SM_LOCAL_STATE_DICT


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH)])
        self.head = nn.Linear(_WIDTH, 1)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, features):
        for layer in self.layers:
            features = torch.tanh(layer(features))
        return self.head(features)


def folder(name):
    """Return a folder that all ranks see, new for every function."""
    made = [tempfile.mkdtemp(prefix=f"clary-{name}-") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(made)
    return Path(made[0])


def made(degree, *, seed=0, use_orig_params=True, strategy=ShardingStrategy.FULL_SHARD):
    state.reset()
    init({"hybrid_shard_degree": degree})
    torch.manual_seed(seed)
    model = FSDP(
        Model(),
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        device_id=torch.device("cpu"),
        use_orig_params=use_orig_params,
        sharding_strategy=strategy,
    )
    return model, torch.optim.AdamW(model.parameters(), lr=0.05)


def train(model, optimizer, rank, steps):
    losses = []
    for step in steps:
        features = torch.randn(4, _WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))
        optimizer.zero_grad()  # before forward: after forward, FSDP's zero_grad misses units that stay whole
        loss = model(features).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def refused(call, kind, words):
    told = None
    try:
        call()
    except kind as error:
        told = str(error)
    assert told is not None, f"nothing was raised; expected {words!r}"
    assert words in told, told


def check_local_resume(degree, rank, **options):
    """Check that training after a load gives the same bits as training after the save."""
    at = folder("local")
    model, optimizer = made(degree, **options)
    train(model, optimizer, rank, [0, 1])
    with torch.no_grad():
        model(torch.ones(1, _WIDTH))  # leaves FSDP's outermost unit unsharded, with SHARD_GRAD_OP all units
    with sm_state_dict_type(model, LOCAL):
        saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 2}
        async_save(saved, checkpoint_id=at)
    expected = train(model, optimizer, rank, [2, 3])  # changes parameters in place while the thread writes
    assert maybe_finalize_async_calls(blocking=True)
    model, optimizer = made(degree, seed=1, **options)
    init_optim_state(optimizer, skip_empty_param=True)
    with sm_state_dict_type(model, LOCAL):
        found = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 0}
        load(found, checkpoint_id=at)
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
    assert found["step"] == 2
    assert train(model, optimizer, rank, [2, 3]) == expected
    return at


def test_local_states_resume_bit_for_bit(rank, size):
    check_local_resume(2, rank)
    check_local_resume(size, rank)


def test_local_states_of_flat_parameters(rank, size):
    check_local_resume(2, rank, use_orig_params=False)


def test_local_states_where_nothing_is_cut(rank, size):
    check_local_resume(1, rank)


def test_local_states_of_units_that_stay_whole_after_forward(rank, size):
    check_local_resume(0, rank, strategy=ShardingStrategy.SHARD_GRAD_OP)


def test_a_local_state_between_forward_and_backward_is_refused(rank, size):
    model, optimizer = made(0, strategy=ShardingStrategy.SHARD_GRAD_OP)
    train(model, optimizer, rank, [0])
    loss = model(torch.ones(1, _WIDTH)).sum()
    with sm_state_dict_type(model, LOCAL):
        refused(model.state_dict, RuntimeError, "after that")
        loss.backward()
        model.state_dict()
    state.reset()


def test_replicas_save_a_shard_once(rank, size):
    at = folder("once")
    model, _ = made(2)
    with sm_state_dict_type(model, LOCAL):
        save({"model": model.state_dict()}, checkpoint_id=at)
    held = FileSystemReader(at).read_metadata().state_dict_metadata
    num_elements = sum(one.size.numel() for one in held.values() if hasattr(one, "size"))
    assert num_elements == sum(one.numel() for one in Model().state_dict().values()), held
    state.reset()


def test_local_states_of_other_degrees_are_refused(rank, size):
    at = folder("degrees")
    model, _ = made(2)
    with sm_state_dict_type(model, LOCAL):
        saved = model.state_dict()
        save({"model": saved}, checkpoint_id=at)
    model, _ = made(size)
    with sm_state_dict_type(model, LOCAL):
        refused(lambda: load({"model": model.state_dict()}, checkpoint_id=at), CheckpointException, f"of{size}")
        refused(lambda: model.load_state_dict(saved), ValueError, "other degrees")
    state.reset()


def test_sharded_states_change_degrees(rank, size):
    at = folder("sharded")
    model, optimizer = made(2)
    train(model, optimizer, rank, [0])
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        save({"model": model.state_dict()}, checkpoint_id=str(at), coordinator_rank=1)
    whole = model.state_dict()
    for degree in (0, size):
        other, _ = made(degree, seed=2)
        with FSDP.state_dict_type(other, StateDictType.SHARDED_STATE_DICT):
            found = {"model": other.state_dict()}
            load(found, checkpoint_id=str(at))
            other.load_state_dict(found["model"])
        for name, value in other.state_dict().items():
            torch.testing.assert_close(value, whole[name], rtol=0, atol=0)
    state.reset()
