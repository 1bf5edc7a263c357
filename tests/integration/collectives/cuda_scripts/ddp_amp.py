"""Script of data parallelism in mixed precision, one GPU per process; it does not mention Clary."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main():
    torch.set_num_threads(1)
    if not torch.cuda.is_available():
        raise RuntimeError("this script needs a GPU")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl", init_method="env://", device_id=device)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    assert torch.cuda.current_device() == local_rank < torch.cuda.device_count()
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 4)).cuda(local_rank)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = DDP(model, device_ids=[local_rank], output_device=local_rank)
    loss_fn = nn.CrossEntropyLoss().cuda(local_rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cuda")

    inputs = torch.randn(256, 32, generator=torch.Generator().manual_seed(1))
    dataset = TensorDataset(inputs, inputs[:, :4].argmax(1))
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler, num_workers=1, pin_memory=True)
    losses = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        total = torch.zeros(1, device=device)
        for x, y in loader:
            x, y = x.cuda(non_blocking=True), y.cuda(local_rank, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device_type="cuda", dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            total += loss.detach()
        torch.cuda.synchronize()
        dist.all_reduce(total)
        losses.append(total.item())
        torch.cuda.empty_cache()
    dist.barrier(device_ids=[local_rank])

    path = os.path.join(os.environ["SM_MODEL_DIR"], "checkpoint.pt")
    if local_rank == 0:
        torch.save(
            {"model": model.state_dict(), "scaler": scaler.state_dict(), "rng": torch.cuda.get_rng_state()}, path
        )
    dist.barrier()
    state = torch.load(path, map_location={"cuda:0": f"cuda:{local_rank}"})
    model.load_state_dict(state["model"])
    torch.cuda.set_rng_state(state["rng"])
    checks = [None] * world_size
    dist.all_gather_object(checks, sum(p.double().sum().item() for p in model.parameters()))
    assert len(set(checks)) == 1, checks
    print(f"rank {rank} of {world_size}: first loss {losses[0]:.4f}, last {losses[-1]:.4f}")
    assert losses[-1] < losses[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
