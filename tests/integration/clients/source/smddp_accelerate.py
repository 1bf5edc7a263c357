"""Training script of the SMDDP tests: a loop with accelerate as in its documentation; it names no backend."""

import json
import os

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
accelerator = Accelerator()
torch.manual_seed(accelerator.process_index)  # models of the ranks differ until DDP broadcasts one
inputs = torch.randn(256, 16, generator=torch.Generator().manual_seed(1))
loader = DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=8, shuffle=True)
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for _ in range(4):
    for batch, labels in loader:
        loss = torch.nn.functional.mse_loss(model(batch), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
weights = accelerator.gather(accelerator.unwrap_model(model).weight.detach())
facts = {
    "state": str(accelerator.distributed_type),
    "backend": torch.distributed.get_backend(),
    "processes": accelerator.num_processes,
    "device": str(accelerator.device),
    "loss": accelerator.reduce(loss.detach(), "mean").item(),
    "equal": bool((weights == weights[0]).all()),
    "wrapper": type(model).__name__,
}
with open(os.path.join(os.environ["SM_MODEL_DIR"], f"rank-{accelerator.process_index}.json"), "w") as file:
    json.dump(facts, file)
