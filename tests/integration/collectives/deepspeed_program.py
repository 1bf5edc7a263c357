"""One rank of DeepSpeed training under ZeRO, on the CPU: `deepspeed_program.py BACKEND STAGE FOLDER`.

Writes losses and a digest of the trained weights to FOLDER/RANK.json.
"""

import hashlib
import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import deepspeed
import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 - registers the backend
import torch

STEPS, BATCH, WIDTH, CLASSES = 10, 4, 32, 3
LIMIT_S = 60


def main(backend, stage, folder):
    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend=backend, timeout=timedelta(seconds=LIMIT_S))
    rank = torch.distributed.get_rank()
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, CLASSES),
    )
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config={
            "train_micro_batch_size_per_gpu": BATCH,
            "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
            "zero_optimization": {"stage": stage},
        },
    )
    losses = []
    generator = torch.Generator().manual_seed(rank)
    features, wanted = torch.randn(BATCH, WIDTH, generator=generator), torch.randn(BATCH, CLASSES, generator=generator)
    for _ in range(STEPS):
        loss = torch.nn.functional.mse_loss(engine(features), wanted)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    parameters = list(engine.module.parameters())
    with deepspeed.zero.GatheredParameters(parameters, enabled=stage == 3):
        digest = hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in parameters)).hexdigest()
    found = {"backend": torch.distributed.get_backend(), "losses": losses, "weights": digest}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may abort the process at a normal exit
