"""Program that trains with the autocast of a listing if the hyperparameter `amp` is set."""

# ruff: noqa: F821 - the listing defines the names
import argparse
import json
import warnings

import torch
from torch import nn

warnings.simplefilter("ignore", FutureWarning)  # torch warns in favour of torch.amp

# LISTING
parser = argparse.ArgumentParser()
parser.add_argument("--amp", type=lambda text: text.lower() == "true", default=False)
arguments = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scaler = GradScaler(enabled=arguments.amp)
data = torch.randn(64, 16).cuda()
target = data.sum(dim=1, keepdim=True)
losses, dtypes = [], set()
for _ in range(20):
    optimizer.zero_grad()
    with autocast(enabled=arguments.amp):
        output = model(data)
        dtypes.add(str(output.dtype))
        loss = (output.float() - target).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    losses.append(loss.item())
print("facts: " + json.dumps({"amp": arguments.amp, "dtypes": sorted(dtypes), "losses": losses}), flush=True)
