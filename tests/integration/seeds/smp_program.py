"""Program with a deep, partitioned model; the listing defines the step; losses are compared with a run without SMP."""

# ruff: noqa: F821 - the listing defines the names
import json
import os

import torch
import torch.nn.functional as functional
from torch import nn

torch.set_num_threads(1)
loss_fn = functional.cross_entropy


def make_model():
    torch.manual_seed(7)
    layers = [layer for _ in range(8) for layer in (nn.Linear(16, 16), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(16, 4))


# LISTING
smp.init()
data = torch.randn(32, 16, generator=torch.Generator().manual_seed(8))
target = data[:, :4].argmax(dim=1)
whole = make_model()
expected = loss_fn(whole(data), target).item()
model = smp.DistributedModel(make_model())
losses = training_step(model, data, target)
facts = {
    "rank": smp.rank(),
    "size": smp.size(),
    "stages": smp.pp_size(),
    "stage": smp.pp_rank(),
    "host": os.environ["SM_CURRENT_HOST"],
    "loss": losses.reduce_mean().item(),
    "expected": expected,
    "num_parameters": sum(1 for _ in model.local_parameters()),
}
print("facts: " + json.dumps(facts), flush=True)
