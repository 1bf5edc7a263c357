"""Program of one rank: an elastic training loop that is killed in one attempt and resumes in the next."""

import os
import signal

import horovod.torch as hvd
import torch
from torch import nn

torch.set_num_threads(1)
hvd.init()
torch.manual_seed(hvd.rank())
model = nn.Linear(4, 1)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), model.named_parameters()
)
sampler = hvd.elastic.ElasticSampler(range(32), shuffle=True)


@hvd.elastic.run
def train(state):
    while state.epoch < 2:
        for index in list(state.sampler)[: len(state.sampler)]:
            x = torch.full((1, 4), float(index))
            optimizer.zero_grad()
            (model(x) / 100).sum().backward()
            optimizer.step()
            state.sampler.record_batch(0, 1)
            state.step += 1
            print(f"step {state.step} epoch {state.epoch} weight {model.weight.sum().item():.6f}", flush=True)
            state.commit()
            if state.step == int(os.environ.get("DIE_AT", -1)) and hvd.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)
    return state.step


state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, step=0, epoch=0)
print("finished", train(state), flush=True)
