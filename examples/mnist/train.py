"""Train a small network on MNIST digits with DistributedDataParallel, as it would in SageMaker's PyTorch container."""

import argparse
import json
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def digits(folder):
    with np.load(os.path.join(folder, "digits.npz")) as data:
        images = torch.from_numpy(data["images"]).float().div(255).sub(0.13).div(0.31).reshape(-1, 1, 28, 28)
        labels = torch.from_numpy(data["labels"]).long()
        held_out = torch.from_numpy(data["held_out"])
    return (
        TensorDataset(images[~held_out], labels[~held_out]),
        TensorDataset(images[held_out], labels[held_out]),
    )


def network():
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 5 * 5, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def accuracy(model, dataset, device):
    model.eval()
    with torch.no_grad():
        images, labels = dataset.tensors
        found = model(images.to(device)).argmax(dim=1).cpu()
    model.train()
    return (found == labels).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=2e-3)
    options = parser.parse_args()

    has_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if has_gpu else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpu else torch.device("cpu")
    torch.set_num_threads(1)
    torch.manual_seed(7)
    print(f"rank {rank} of {world_size} on {os.environ['SM_CURRENT_HOST']}", flush=True)

    training, held_out = digits(os.environ["SM_CHANNEL_TRAINING"])
    sampler = DistributedSampler(training, shuffle=True, seed=7)
    loader = DataLoader(training, batch_size=options.batch_size, sampler=sampler)
    model = DistributedDataParallel(network().to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    loss_function = nn.CrossEntropyLoss()

    started_at = time.monotonic()
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = loss_function(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        if rank == 0:
            seconds = time.monotonic() - started_at
            print(f"epoch {epoch + 1}: loss: {loss.item():.4f} after {seconds:.1f} s", flush=True)

    if rank == 0:
        result = accuracy(model.module, held_out, device)
        torch.save(model.module.state_dict(), os.path.join(os.environ["SM_MODEL_DIR"], "model.pt"))
        with open(os.path.join(os.environ["SM_OUTPUT_DATA_DIR"], "result.json"), "w") as file:
            json.dump({"accuracy": result, "world_size": world_size}, file)
        print(f"accuracy: {result:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
