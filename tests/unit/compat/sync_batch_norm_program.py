"""Compares synchronised batch norm of two ranks with plain batch norm of their whole batch; prints JSON."""

import copy
import json
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from clary_cuda_on_cpu.batch_norm import synchronise_batch_norm
from torch import multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

LENGTHS = (3, 5)  # ranks may have different numbers of samples
STEPS = 3


def make(momentum, affine):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4, momentum=momentum, affine=affine),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 1),
    )


def batches(rank=None):
    generator = torch.Generator().manual_seed(7)
    for _ in range(STEPS):
        whole = torch.randn(sum(LENGTHS), 2, 6, 6, generator=generator) * 3 + 1
        yield whole if rank is None else whole.split(LENGTHS)[rank]


def trained(model, given, *, weigh):
    outputs = []
    for batch in given:
        model.zero_grad()
        output = model(batch)
        outputs.append(output.detach())
        (output.square().sum() * weigh).backward()
        with torch.no_grad():
            for one in model.parameters():
                one -= 0.01 * one.grad
    return torch.cat(outputs)


def rank_of(rank, store, results):
    torch.set_num_threads(1)
    synchronise_batch_norm(torch)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    found = []
    for momentum, affine in ((0.1, True), (None, True), (0.3, False)):
        reference = make(momentum, affine)
        model = DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(reference)))
        # DDP averages gradients over ranks; the whole batch adds them up.
        own = trained(model, batches(rank), weigh=1.0)
        expected = trained(reference, batches(), weigh=0.5)
        parts = [step.split(LENGTHS)[rank] for step in expected.split(sum(LENGTHS))]
        far = [(own - torch.cat(parts)).abs().max().item()]
        states = model.module.state_dict(), reference.state_dict()
        far += [(states[0][name].double() - states[1][name].double()).abs().max().item() for name in states[1]]
        model.eval(), reference.eval()
        far.append((model(next(batches(rank))) - reference(next(batches(rank)))).abs().max().item())
        halves = nn.SyncBatchNorm(4)(torch.randn(2, 4, 3).bfloat16())
        found.append({"far": max(far), "dtype": str(halves.dtype), "tracked": int(states[0]["1.num_batches_tracked"])})
    alone = nn.SyncBatchNorm(4, process_group=dist.new_group([rank], use_local_synchronization=True))
    flat = alone(torch.arange(8.0).view(2, 4) * (rank + 1))
    with open(f"{results}/{rank}", "w") as file:
        json.dump({"found": found, "alone": flat.abs().mean().item(), "refused": refused(alone)}, file)
    sys.stdout.flush()
    os._exit(0)


def refused(layer):
    try:
        layer(torch.zeros(4))
    except ValueError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(rank_of, args=(f"{folder}/store", folder), nprocs=2)
        results = [json.loads(Path(folder, str(rank)).read_text()) for rank in range(2)]
    print(json.dumps(results))
