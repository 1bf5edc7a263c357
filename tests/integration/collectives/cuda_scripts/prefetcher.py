"""Script in old style: a prefetcher on its own stream, events, `torch.cuda.amp`, types by name. No mention of Clary."""

import contextlib
import warnings

import torch
import torch.nn as nn

warnings.filterwarnings("ignore", category=FutureWarning)  # `torch.cuda.amp` has a newer name


class Prefetcher:
    def __init__(self, batches):
        self.batches = iter(batches)
        self.stream = torch.cuda.Stream()
        self.mean = torch.tensor([0.5]).cuda().view(1, 1)
        self.preload()

    def preload(self):
        try:
            self.next = next(self.batches)
        except StopIteration:
            self.next = None
            return
        with torch.cuda.stream(self.stream):
            self.next = self.next.cuda(non_blocking=True).float().sub_(self.mean)

    def take(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        batch = self.next
        if batch is not None:
            batch.record_stream(torch.cuda.current_stream())
            self.preload()
        return batch


torch.set_num_threads(1)
torch.cuda.manual_seed_all(3)
model = nn.Linear(8, 1).to("cuda:0")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.cuda.amp.GradScaler()
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record()
fetch = Prefetcher([torch.rand(16, 8).pin_memory() for _ in range(5)])
batch, num = fetch.take(), 0
while batch is not None:
    with torch.cuda.amp.autocast(), torch.cuda.device(0), contextlib.suppress(StopIteration):
        loss = model(batch).pow(2).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    batch, num = fetch.take(), num + 1
end.record()
torch.cuda.synchronize()
assert start.elapsed_time(end) > 0
zeros = torch.cuda.FloatTensor(3).fill_(0)
assert zeros.type(torch.cuda.LongTensor).sum().item() == 0
print(torch.cuda.get_device_name(0), torch.cuda.max_memory_allocated() >> 20, "MB")
print(f"{num} batches, loss {loss.item():.4f}")
