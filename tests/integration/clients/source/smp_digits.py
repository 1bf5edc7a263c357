"""Training script for SMP v1 as in AWS's examples: a pipeline, on drawn digits. Its model holds facts of every rank."""

import argparse
import json
import os

import smdistributed.modelparallel.torch as smp
import torch
import torch.nn.functional as functional
from smddp_digits import digits
from torch import nn

NUMBERS = ("rank", "size", "local_rank", "mp_rank", "dp_rank", "pp_size", "dp_size")

smp.init()


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(1, 8, 3)
        self.normal = nn.BatchNorm2d(8)

    def forward(self, images):
        return functional.max_pool2d(functional.relu(self.normal(self.convolution(images))), 2).flatten(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = Features()
        self.hidden = nn.Linear(8 * 5 * 4, 64)
        self.output = nn.Linear(64, 10)

    def forward(self, images):
        return functional.log_softmax(self.output(functional.relu(self.hidden(self.features(images)))), dim=1)


@smp.step
def train_step(model, images, labels):
    scores = model(images)
    loss = functional.nll_loss(scores, labels)
    model.backward(loss)
    return scores, loss


@smp.step
def test_step(model, images, labels):
    return (model(images).argmax(dim=1) == labels).sum()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mp_parameters", default="")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    args, _ = parser.parse_known_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    train, test = digits(2048, torch.Generator().manual_seed(2)), digits(512, torch.Generator().manual_seed(3))
    share = slice(smp.dp_rank(), None, smp.dp_size())  # from every replica
    images, labels = (tensor[share] for tensor in train.tensors)

    model = smp.DistributedModel(Net())
    optimizer = smp.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.003))
    losses = []
    for _ in range(args.epochs):
        model.train()
        for begin in range(0, len(images), args.batch_size):
            batch = slice(begin, begin + args.batch_size)
            optimizer.zero_grad()
            _, loss = train_step(model, images[batch], labels[batch])
            optimizer.step()
            losses.append(loss.reduce_mean().item())
    model.eval()
    with torch.no_grad():
        correct = test_step(model, *test.tensors).reduce_sum().item()

    folder = os.environ["SM_MODEL_DIR"]
    smp.save_checkpoint(os.path.join(folder, "checkpoint"), tag="last", partial=True, model=model, optimizer=optimizer)
    whole = model.state_dict()
    if smp.rank() == 0:
        torch.save(whole, os.path.join(folder, "whole.pt"))
    local = {name: value.double().sum().item() for name, value in model.local_named_parameters()}
    facts = {
        "accuracy": correct / len(test),
        "first": losses[0],
        "last": losses[-1],
        "local": local,
        "whole": sorted(whole),
        "mp_parameters": args.mp_parameters,
        "partitions": smp.state.cfg.partitions,
        **{
            name: getattr(smp, name)()
            for name in ("rank", "size", "local_rank", "mp_rank", "dp_rank", "pp_size", "dp_size")
        },
    }
    with open(os.path.join(folder, f"rank-{smp.rank()}.json"), "w", encoding="utf-8") as file:
        json.dump(facts, file)
    smp.barrier()


if __name__ == "__main__":
    main()
