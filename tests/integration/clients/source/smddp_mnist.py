"""Training script as in the documentation of SMDDP 1.3, with SMDDP's own `dist` and DDP, on drawn digits."""

import argparse
import json
import os

import smdistributed.dataparallel.torch.distributed as dist
import torch
import torch.nn.functional as functional
from smddp_digits import digits
from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel as DDP
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(1, 8, 3)
        self.normal = nn.BatchNorm2d(8)
        self.output = nn.Linear(8 * 5 * 4, 10)

    def forward(self, images):
        hidden = functional.relu(self.normal(self.convolution(images)))
        return functional.log_softmax(self.output(functional.max_pool2d(hidden, 2).flatten(1)), dim=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--model-dir", default=os.environ["SM_MODEL_DIR"])
    args = parser.parse_args()
    args.batch_size //= dist.get_world_size()
    rank, local_rank = dist.get_rank(), dist.get_local_rank()
    torch.set_num_threads(1)
    if not torch.cuda.is_available():
        device = torch.device("cpu")
    else:
        torch.cuda.set_device(local_rank)
        device = torch.device("cuda", local_rank)

    training = digits(1200, torch.Generator().manual_seed(3))
    held_out = digits(300, torch.Generator().manual_seed(4))
    sampler = DistributedSampler(training, num_replicas=dist.get_world_size(), rank=rank)
    loader = DataLoader(training, batch_size=args.batch_size, sampler=sampler)
    torch.manual_seed(rank)  # models of the ranks differ until DDP broadcasts one
    model = DDP(Net().to(device), device_ids=[local_rank], broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for step, (images, labels) in enumerate(loader):
            loss = functional.nll_loss(model(images.to(device)), labels.to(device))
            if step % 2 == 0:
                with model.no_sync():
                    loss.backward()
                continue
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVERAGE)
        if rank == 0:
            print(f"epoch {epoch} loss: {mean.item():.4f}", flush=True)

    model.eval()
    images, labels = held_out.tensors
    accuracy = (model(images.to(device)).argmax(dim=1).cpu() == labels).float().mean()
    handle = dist.all_reduce(accuracy, dist.ReduceOp.MIN, async_op=True)
    handle.wait()
    weights = torch.cat([parameter.detach().flatten() for parameter in model.module.parameters()])
    everyones = [torch.zeros_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, weights, group=dist.group.WORLD)
    word = torch.tensor([rank + 5.0])
    dist.broadcast(word, src=0)
    sent, received = torch.full((dist.get_world_size(),), float(rank)), torch.zeros(dist.get_world_size())
    dist.all_to_all_single(received, sent)
    facts = {
        "available": dist.is_available(),
        "initialized": dist.is_initialized(),
        "accuracy": accuracy.item(),
        "equal": all(torch.equal(weights, other) for other in everyones),
        "broadcast": word.item(),
        "all_to_all": received.tolist(),
        "handle of a synchronous call": repr(dist.barrier()),
        "local_rank": local_rank,
        "backend": torch.distributed.get_backend(),
    }
    with open(os.path.join(args.model_dir, f"rank-{rank}.json"), "w") as file:
        json.dump(facts, file)


if __name__ == "__main__":
    main()
