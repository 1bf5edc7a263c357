"""Script of sharded training on two GPUs; rank 0 writes the full state, all ranks read it. No mention of Clary."""

import functools
import os
import sys

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

torch.set_num_threads(1)
assert torch.cuda.is_available(), "this script needs a GPU"
dist.init_process_group("nccl")
rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
path = os.path.join(os.environ["SM_MODEL_DIR"], "model.pt")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(6, 12), nn.Linear(12, 6)

    def forward(self, value):
        return value + self.down(self.up(value).relu())


def sharded(seed, **more):
    torch.manual_seed(seed)
    return FullyShardedDataParallel(
        nn.Sequential(Block(), Block(), nn.Linear(6, 3)),
        auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
        sharding_strategy=ShardingStrategy.FULL_SHARD,
        backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
        device_id=torch.cuda.current_device(),
        sync_module_states=True,
        limit_all_gathers=True,
        **more,
    )


def whole_state(model):
    whole = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, whole):
        return model.state_dict()


def step(model, optimizer):
    inputs = torch.full((4, 6), 0.1 * (rank + 1), device="cuda")
    loss = model(inputs).float().square().mean()
    loss.backward()
    model.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size()


model = sharded(rank)  # ranks start with different values, which FSDP synchronises
first = whole_state(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
losses = [step(model, optimizer) for _ in range(3)]
state = whole_state(model)
whole_optimizer = FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True)
whole = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, whole, whole_optimizer):
    of_optimizer = FullyShardedDataParallel.optim_state_dict(model, optimizer)
if rank == 0:
    assert {name: value.device.type for name, value in state.items()} == dict.fromkeys(first, "cpu")
    assert state["0.up.weight"].shape == (12, 6)
    assert not torch.equal(first["0.up.weight"], state["0.up.weight"])
    assert of_optimizer["state"]["0.up.weight"]["exp_avg"].shape == (12, 6)
    torch.save({"model": state, "optimizer": of_optimizer}, path)
else:
    assert not state, "only rank 0 has the whole state"
dist.barrier()

saved = torch.load(path, map_location=f"cuda:{local_rank}", weights_only=False)
again = sharded(7)
with FullyShardedDataParallel.state_dict_type(again, StateDictType.FULL_STATE_DICT):
    again.load_state_dict(saved["model"])
resumed = torch.optim.AdamW(again.parameters(), lr=0.01)
with FullyShardedDataParallel.state_dict_type(again, StateDictType.FULL_STATE_DICT):
    resumed.load_state_dict(FullyShardedDataParallel.optim_state_dict_to_load(again, resumed, saved["optimizer"]))
found = whole_state(again)
for name, value in found.items():
    assert torch.equal(value, saved["model"][name]), name
assert step(model, optimizer) == step(again, resumed)
halves = sharded(3, mixed_precision=MixedPrecision(torch.bfloat16, torch.bfloat16, torch.bfloat16))
step(halves, torch.optim.SGD(halves.parameters(), lr=0.01))
if rank == 0:
    print(f"losses {losses}; the whole state was saved and loaded")
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # gloo's threads may abort the process at a normal exit
