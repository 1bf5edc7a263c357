"""Program whose ranks have different initial models and data; the listing wraps the model, which must end up equal."""

import json
import os

import torch
import torch.distributed
from torch import nn

torch.set_num_threads(1)
if os.environ.get("SEED_JOINS_ITSELF"):
    torch.distributed.init_process_group("smddp")
rank = int(os.environ.get("RANK", 0))
torch.manual_seed(rank)  # models differ until the wrapper synchronises them
model = nn.Linear(4, 2)
# LISTING
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().sum().backward()  # random numbers that differ by rank
    optimizer.step()
weight = model.module.weight.detach()
all_weights = [torch.empty_like(weight) for _ in range(torch.distributed.get_world_size())]
torch.distributed.all_gather(all_weights, weight)
facts = {
    "rank": torch.distributed.get_rank(),
    "world_size": torch.distributed.get_world_size(),
    "backend": torch.distributed.get_backend(),
    "wrapped_by": [f"{one.__module__}.{one.__name__}" for one in type(model).__mro__[:-2]],
    "is_one_model": all(torch.equal(weight, other) for other in all_weights),
}
torch.distributed.barrier()
print("facts: " + json.dumps(facts), flush=True)
torch.distributed.destroy_process_group()
