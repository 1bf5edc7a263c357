"""A train.py as users write it for Horovod: digits, one shard per rank; results go to the model folder."""

import argparse
import csv
import gzip
import json
import os

import horovod.torch as hvd
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=32, help="of all ranks together")
parser.add_argument("--data", default=os.environ.get("SM_CHANNEL_DIGITS"))
parser.add_argument("--out", default=os.environ.get("SM_MODEL_DIR"))
parser.add_argument("--alone", action="store_true")
arguments = parser.parse_args()

torch.set_num_threads(1)
hvd.init()
with gzip.open(os.path.join(arguments.data, "mnist_5k.csv.gz"), "rt") as file:
    rows = [[float(text) for text in row] for number, row in enumerate(csv.reader(file)) if number % 5 == 0]
table = torch.tensor(rows)
images, labels = table[:, :-1] / 255, table[:, -1].long()
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
images, labels = images[order], labels[order]

torch.manual_seed(hvd.rank())
model = nn.Sequential(nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))
if hvd.rank() == 0:
    torch.manual_seed(1)
    for layer in (model[0], model[2]):
        layer.reset_parameters()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

losses = []
share = arguments.batch_size // hvd.size()
for _ in range(arguments.epochs):
    for first in range(0, len(labels) - arguments.batch_size + 1, arguments.batch_size):
        mine = slice(first + hvd.rank() * share, first + (hvd.rank() + 1) * share)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[mine]), labels[mine])
        loss.backward()
        optimizer.step()
        losses.append(hvd.allreduce(loss.detach(), name="loss").item())
weights = torch.cat([parameter.detach().reshape(1, -1) for parameter in model.parameters()], dim=1)
everybody = hvd.allgather(weights)
found = {
    "rank": hvd.rank(),
    "size": hvd.size(),
    "local_rank": hvd.local_rank(),
    "local_size": hvd.local_size(),
    "cross_rank": hvd.cross_rank(),
    "cross_size": hvd.cross_size(),
    "host": os.environ.get("SM_CURRENT_HOST", ""),
    "losses": losses,
    "accuracy": (model(images).argmax(1) == labels).float().mean().item(),
    "equal": bool((everybody == everybody[0]).all()),
    "horovod": hvd.__file__,
}
print("loss", losses[0], losses[-1], "accuracy", found["accuracy"], flush=True)
with open(os.path.join(arguments.out, f"rank-{hvd.rank()}.json"), "w", encoding="utf-8") as file:
    json.dump(found, file)
