"""Script of DeepSpeed's ZeRO stage 3, which shards the model during its construction; it does not mention Clary."""

import os
import sys

import deepspeed
import torch
from torch import nn

torch.set_num_threads(1)
assert torch.cuda.is_available(), "this script needs a GPU"
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
deepspeed.init_distributed(dist_backend="nccl")
config = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
    "zero_optimization": {"stage": 3, "overlap_comm": True, "stage3_param_persistence_threshold": 0},
}
torch.manual_seed(0)
with deepspeed.zero.Init(config_dict_or_path=config):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
assert model[0].weight.numel() == 0, "the weights of a module made in zero.Init are sharded"
assert model[0].weight.ds_numel == 8 * 16
engine, _, _, _ = deepspeed.initialize(model=model, config=config)


def whole():
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        return engine.module[0].weight.detach().clone()


before = whole()
inputs = torch.full((2, 8), 0.5 * (engine.global_rank + 1), device=engine.device, dtype=torch.bfloat16)
for _ in range(2):
    loss = engine(inputs).float().square().mean()
    engine.backward(loss)
    engine.step()
after = whole()
assert engine.device == torch.device("cuda", local_rank)
assert not torch.equal(before, after)
together = after.float().clone()
torch.distributed.all_reduce(together)
assert torch.equal(together, after.float() * torch.distributed.get_world_size()), "the ranks differ"
assert type(engine.basic_optimizer) is deepspeed.ops.adam.FusedAdam
for kind, word in ((deepspeed.ops.adam.FusedAdam, "adam_w_mode"), (deepspeed.ops.adam.DeepSpeedCPUAdam, "adamw_mode")):
    for is_decoupled, known in ((True, torch.optim.AdamW), (False, torch.optim.Adam)):
        ours, theirs = (nn.Parameter(torch.ones(3)) for _ in range(2))
        optimizers = kind([ours], 0.1, weight_decay=0.1, **{word: is_decoupled}), known([theirs], 0.1, weight_decay=0.1)
        for _ in range(3):
            for optimizer, weight in zip(optimizers, (ours, theirs), strict=True):
                weight.grad = torch.arange(3.0)
                optimizer.step()
        assert torch.equal(ours, theirs), (kind, is_decoupled)
engine.save_checkpoint(os.environ["SM_MODEL_DIR"], tag="last")
engine.load_checkpoint(os.environ["SM_MODEL_DIR"], tag="last")
assert torch.equal(whole(), after)
print(f"rank {engine.global_rank} of {engine.world_size}: loss {loss.item():.4f}")
torch.distributed.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # gloo's threads may abort the process at a normal exit
