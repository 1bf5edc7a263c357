"""Script that trains a classifier of digits, written like SageMaker's PyTorch examples; it does not mention Clary."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 5)
        self.conv2 = nn.Conv2d(8, 8, 5)
        self.fc = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        return F.log_softmax(self.fc(x.view(-1, 128)), dim=1)


def make_loader(args, seed, **kwargs):
    images = torch.randn(256, 1, 28, 28, generator=torch.Generator().manual_seed(seed))
    labels = (images.mean((1, 2, 3)) > 0).long()
    return DataLoader(TensorDataset(images, labels), batch_size=args.batch_size, shuffle=True, **kwargs)


def evaluate(model, loader, device):
    model.eval()
    loss, correct = 0.0, 0
    with torch.no_grad():
        for data, target in loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            loss += F.nll_loss(output, target, reduction="sum").item()
            correct += output.max(1, keepdim=True)[1].eq(target.view_as(output.max(1)[1])).sum().item()
    print(f"Test set: Average loss: {loss / len(loader.dataset):.4f}, Accuracy: {correct}/{len(loader.dataset)}")


def train(args):
    use_cuda = args.num_gpus > 0
    kwargs = {"num_workers": 1, "pin_memory": True} if use_cuda else {}
    device = torch.device("cuda" if use_cuda else "cpu")
    is_distributed = int(os.environ.get("WORLD_SIZE", 1)) > 1
    if is_distributed:
        dist.init_process_group(backend=args.backend)
    torch.manual_seed(args.seed)
    if use_cuda:
        torch.cuda.manual_seed(args.seed)
    loader = make_loader(args, 1, **kwargs)
    model = Net().to(device)
    model = nn.parallel.DistributedDataParallel(model) if is_distributed and use_cuda else nn.DataParallel(model)
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.5)
    for epoch in range(1, args.epochs + 1):
        model.train()
        for data, target in loader:
            data, target = data.to(device, non_blocking=True), target.to(device, non_blocking=True)
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            loss.backward()
            optimizer.step()
        print(f"Train Epoch: {epoch} Loss: {loss.item():.6f}")
        evaluate(model, make_loader(args, 2, **kwargs), device)
    if is_distributed and dist.get_rank() != 0:
        return
    path = os.path.join(args.model_dir, "model.pth")
    torch.save(model.cpu().state_dict(), path)
    again = nn.DataParallel(Net())
    with open(path, "rb") as f:
        again.load_state_dict(torch.load(f, map_location=device))
    again.to(device)
    print("saved and loaded")


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", type=str, default="nccl")
    parser.add_argument("--model-dir", type=str, default=os.environ["SM_MODEL_DIR"])
    parser.add_argument("--num-gpus", type=int, default=torch.cuda.device_count())
    train(parser.parse_args())
