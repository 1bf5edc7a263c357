"""Train a small network on MNIST digits and print its accuracy after each epoch: one trial of a tuning job."""

import argparse
import os

import numpy as np
import torch
from torch import nn


def digits(folder):
    with np.load(os.path.join(folder, "digits.npz")) as data:
        images = torch.from_numpy(data["images"]).float().div(255).sub(0.13).div(0.31).reshape(-1, 1, 28, 28)
        labels = torch.from_numpy(data["labels"]).long()
        held_out = torch.from_numpy(data["held_out"])
    return (images[~held_out], labels[~held_out]), (images[held_out], labels[held_out])


def network(channels, activation):
    made = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}[activation]
    return nn.Sequential(
        nn.Conv2d(1, channels, 5, stride=2),
        made(),
        nn.Conv2d(channels, 2 * channels, 3, stride=2),
        made(),
        nn.Flatten(),
        nn.Linear(2 * channels * 5 * 5, 10),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--channels", type=int, default=8)
    parser.add_argument("--activation", default="relu")
    options, _ = parser.parse_known_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    (images, labels), (held_out_images, held_out_labels) = digits(os.environ["SM_CHANNEL_TRAINING"])
    model = network(options.channels, options.activation)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    for epoch in range(options.epochs):
        model.train()
        for batch in torch.randperm(len(labels)).split(options.batch_size):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            accuracy = (model(held_out_images).argmax(dim=1) == held_out_labels).float().mean().item()
        print(f"epoch {epoch} accuracy: {accuracy:.4f}", flush=True)
    torch.save(model.state_dict(), os.path.join(os.environ["SM_MODEL_DIR"], "model.pt"))


if __name__ == "__main__":
    main()
