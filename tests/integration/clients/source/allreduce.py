"""Training script of the client tests: one all-reduce over every rank, a metric, a model file of each host."""

import argparse
import json
import os

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--text", default="")
parser.add_argument("--learning-rate", "--learning_rate", type=float, default=0.0)
options, rest = parser.parse_known_args()

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
total = torch.ones(4) * (rank + 1)
dist.all_reduce(total)
print(f"rank {rank} of {size} sum: {total[0].item():.0f} text: {options.text!r} rest: {rest}", flush=True)
if rank == 0:
    print("loss: 0.5", flush=True)
    print("loss: 0.25", flush=True)
host = os.environ["SM_CURRENT_HOST"]
with open(os.path.join(os.environ["SM_MODEL_DIR"], f"rank-{rank}-{host}.json"), "w") as file:
    json.dump({"sum": total[0].item(), "size": size}, file)
dist.barrier()
dist.destroy_process_group()
