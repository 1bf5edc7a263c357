"""Training script of the SMDDP tests: collectives whose results every rank can check, and one DDP step.

    python smddp_sums.py --way none            the backend exists without an import, as in AWS's images
    python smddp_sums.py --way torch_smddp     the import of the developer guide

Each rank writes its results as a file of the model.
"""

import argparse
import json
import os
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--way", choices=["none", "torch_smddp"], default="none")
options = parser.parse_args()
if options.way == "torch_smddp":
    from smdistributed.dataparallel.torch.torch_smddp import torch
else:
    import torch

dist, DistributedDataParallel = torch.distributed, torch.nn.parallel.DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("smddp")
rank, size = dist.get_rank(), dist.get_world_size()
facts = {"rank": rank, "size": size, "backend": dist.get_backend()}
facts["imported"] = sorted(name for name in sys.modules if name.startswith("smdistributed.dataparallel"))
facts["environment"] = {
    name: os.environ.get(name)
    for name in ("SMDATAPARALLEL_LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK")
}

total = torch.arange(1000, dtype=torch.float32) * (rank + 1)
dist.all_reduce(total)
facts["all_reduce"] = bool(torch.equal(total, torch.arange(1000) * float(size * (size + 1) / 2)))
largest = torch.tensor([rank, -rank])
dist.all_reduce(largest, op=dist.ReduceOp.MAX)
facts["largest"] = largest.tolist()
gathered = [torch.zeros(2) for _ in range(size)]
dist.all_gather(gathered, torch.tensor([float(rank), 0.5]))
facts["all_gather"] = [part.tolist() for part in gathered]
word = torch.tensor([rank * 7])
dist.broadcast(word, src=size - 1)
facts["broadcast"] = word.item()
pairs = [dist.new_group([first, first + 1]) for first in range(0, size, 2)]
mine = torch.tensor([rank])
dist.all_reduce(mine, group=pairs[rank // 2])
facts["pair"] = mine.item()

torch.manual_seed(1)
model = DistributedDataParallel(torch.nn.Linear(64, 8))
generator = torch.Generator().manual_seed(2)
samples = torch.randn(size * 4, 64, generator=generator)
model(samples[rank::size]).square().mean().backward()
alone = torch.nn.Linear(64, 8)
alone.load_state_dict(model.module.state_dict())
alone(samples).square().mean().backward()
facts["gradient_error"] = (model.module.weight.grad - alone.weight.grad).abs().max().item()
facts["gradient"] = model.module.weight.grad.flatten().view(torch.int32).sum().item()  # the bits of the sum
dist.barrier()
with open(os.path.join(os.environ["SM_MODEL_DIR"], f"rank-{rank}.json"), "w") as file:
    json.dump(facts, file)
print(f"rank {rank} of {size} is done", flush=True)
dist.destroy_process_group()
