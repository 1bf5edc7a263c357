"""A program of two ranks on two hosts for rehearsals: DistributedDataParallel over gloo, the data split over ranks.

`test_rehearsal` runs it in jobs.
"""

import os
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS, SAVE_EVERY, BATCH, SAMPLES = 36, 4, 2, 48
PAUSE_S = 0.15
PLACE = "/opt/ml/checkpoints/state.pt"


def main():
    torch.manual_seed(7)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    data = TensorDataset(torch.randn(SAMPLES, 8), torch.randn(SAMPLES))
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    step = 0
    if os.path.exists(PLACE):
        state = torch.load(PLACE)
        step = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    model = torch.nn.parallel.DistributedDataParallel(model)
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    while step < STEPS:
        sampler.set_epoch(step // len(loader))
        skipped = step % len(loader)
        for number, (inputs, targets) in enumerate(loader):
            if number < skipped:
                continue  # this batch was used before the interruption
            loss = torch.nn.functional.mse_loss(model(inputs).squeeze(1), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if dist.get_rank() == 0:
                print(f"{{'loss': {loss.item():.6f}, 'step': {step}}}", flush=True)
            # Rank 0's state serves all ranks: after a kill, files saved by each host could be of different steps.
            if step % SAVE_EVERY == 0 and dist.get_rank() == 0:
                state = {"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, PLACE + ".part")
                os.replace(PLACE + ".part", PLACE)
            time.sleep(PAUSE_S)
    dist.destroy_process_group()


main()
