"""A training program for rehearsals: deterministic, with momentum and shuffled data; on demand it forgets parts.

`test_rehearsal` runs it in jobs and replaces FORGETS in its text.
"""

import os
import time

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

FORGETS = ""
STEPS, SAVE_EVERY, BATCH, SAMPLES = 32, 5, 4, 64
PAUSE_S = 0.15
PLACE = "/opt/ml/checkpoints/state.pt"


class Numbers(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(8, generator=generator), torch.tensor(float(index) / SAMPLES)


class Shuffled(Sampler):
    """Shuffles each epoch with its number as seed; starts after the samples already used."""

    def __init__(self):
        self.epoch, self.taken = 0, 0

    def __iter__(self):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        yield from order[self.taken :]
        self.epoch, self.taken = self.epoch + 1, 0


def main():
    torch.manual_seed(7)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sampler = Shuffled()
    step = 0
    if FORGETS != "checkpoint" and os.path.exists(PLACE):
        state = torch.load(PLACE)
        step = state["step"]
        model.load_state_dict(state["model"])
        if FORGETS != "optimizer":
            optimizer.load_state_dict(state["optimizer"])
        if FORGETS != "sampler":
            sampler.epoch, sampler.taken = divmod(step * BATCH, SAMPLES)
        print(f"resumed behind step {step}", flush=True)
    loader = DataLoader(Numbers(), batch_size=BATCH, sampler=sampler)
    while step < STEPS:
        for inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(model(inputs).squeeze(1), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            print(f"step {step} loss {loss.item():.6f}", flush=True)
            if step % SAVE_EVERY == 0:
                state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, PLACE + ".part")
                os.replace(PLACE + ".part", PLACE)
            time.sleep(PAUSE_S)
            if step == STEPS:
                break


main()
