"""Script for SMP v2 as in AWS's examples: FSDP by `hybrid_shard_degree`. Its model holds facts of every rank."""

import argparse
import json
import os

import torch
import torch.distributed as dist
import torch.nn.functional as functional
import torch.sagemaker as tsm
from smddp_digits import digits
from torch import nn
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.sagemaker.grad_norm import clip_grad_norm_

_MAX_NORM = 1.0


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)

    def forward(self, hidden):
        return hidden + self.down(functional.gelu(self.up(self.norm(hidden))))


class Net(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.features = nn.Linear(120, width)
        self.blocks = nn.ModuleList([Block(width), Block(width)])
        self.output = nn.Linear(width, 10)

    def forward(self, images):
        hidden = self.features(images.flatten(1))
        for block in self.blocks:
            hidden = block(hidden)
        return functional.log_softmax(self.output(hidden), dim=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    args, _ = parser.parse_known_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    tsm.init()
    rank, size = dist.get_rank(), dist.get_world_size()
    train, test = digits(2048, torch.Generator().manual_seed(2)), digits(512, torch.Generator().manual_seed(3))
    images, labels = (tensor[rank::size] for tensor in train.tensors)

    model = FSDP(
        tsm.transform(Net()),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    losses = []
    for _ in range(args.epochs):
        for begin in range(0, len(images), args.batch_size):
            batch = slice(begin, begin + args.batch_size)
            optimizer.zero_grad()
            loss = functional.nll_loss(model(images[batch]), labels[batch])
            loss.backward()
            clip_grad_norm_(model, _MAX_NORM)
            optimizer.step()
            losses.append(loss.item())
    with torch.no_grad():
        scores = model(test.tensors[0])
    correct = (scores.argmax(dim=1) == test.tensors[1]).sum().item()

    # On the CPU the state is in host memory already. Offloading it would crash: torch's FSDP frees memory that it did
    # not copy.
    config = FullStateDictConfig(rank0_only=True, offload_to_cpu=torch.cuda.is_available())
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
        whole = model.state_dict()
    folder = os.environ.get("SM_MODEL_DIR", "/opt/ml/model")
    if rank == 0:
        torch.save(whole, os.path.join(folder, "whole.pt"))
    groups = tsm.state.shard_process_group, tsm.state.rep_rank_process_group
    facts = {
        "rank": rank,
        "size": size,
        "local_rank": int(os.environ["LOCAL_RANK"]),
        "accuracy": correct / len(test),
        "scores": scores.double().sum().item(),
        "first": losses[0],
        "last": losses[-1],
        "degree": tsm.state.hybrid_shard_degree,
        "shards": dist.get_process_group_ranks(groups[0]),
        "replicas": dist.get_process_group_ranks(groups[1]),
        "local_numel": sum(parameter.numel() for parameter in model.parameters()),
        "whole": {name: list(value.shape) for name, value in whole.items()},
        "mp_parameters": os.environ.get("SM_HP_MP_PARAMETERS", ""),
    }
    with open(os.path.join(folder, f"rank-{rank}.json"), "w", encoding="utf-8") as file:
        json.dump(facts, file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
