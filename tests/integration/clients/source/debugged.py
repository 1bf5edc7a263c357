"""Script that trains a small model; it contains no debugger hook, so that Clary has to add one."""

import time

import torch

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
inputs = torch.randn(64, 8)
labels = inputs.sum(1, keepdim=True)
for step in range(4000):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), labels)
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(f"loss of step {step}: {loss.item()}", flush=True)
    time.sleep(0.03)
