"""The program of the ranks in the benchmark of stragglers: a small model under DDP, its batches read from a file."""

import os
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

BATCH_BYTES = 256 * 1024
NUM_BATCHES = 64
WIDTH = 512
PLACE = "/opt/ml/input/batches"

torch.set_num_threads(1)


class Batches(Dataset):
    """Batches that are read from the disk each time: the page cache is told to drop them."""

    def __init__(self) -> None:
        with open(PLACE, "wb") as file:
            file.write(os.urandom(NUM_BATCHES * BATCH_BYTES))
            os.fsync(file.fileno())
        self._descriptor = os.open(PLACE, os.O_RDONLY)

    def __len__(self) -> int:
        return NUM_BATCHES

    def __getitem__(self, index: int) -> torch.Tensor:
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        data = os.pread(self._descriptor, BATCH_BYTES, index * BATCH_BYTES)
        return torch.frombuffer(bytearray(data[: 64 * WIDTH]), dtype=torch.uint8).float().reshape(64, WIDTH) / 255


def main() -> None:
    """Train until the time is over."""
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH // 4))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loader = DataLoader(Batches(), batch_size=None)
    end_s = time.monotonic() + float(os.environ["SECONDS_TO_TRAIN"])
    is_over = torch.zeros(1)
    step = 0
    while not is_over.item():
        for batch in loader:
            for _ in range(int(os.environ.get("PASSES", "1"))):
                with model.no_sync():
                    model(batch).pow(2).mean().backward()
            model(batch).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step == 3:
                print("trains", flush=True)
        is_over[0] = time.monotonic() > end_s
        dist.all_reduce(is_over, dist.ReduceOp.MAX)
    print(f"{step} steps", flush=True)


main()
