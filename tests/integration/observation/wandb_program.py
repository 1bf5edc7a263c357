"""A training that logs to W&B as usual scripts do; it contains no setting for Clary."""

import sys

import wandb

if "login" in sys.argv:
    wandb.login(key="0123456789abcdef0123456789abcdef01234567")
with wandb.init(project="digits", config={"lr": 0.1}) as run:
    for step in range(1, 6):
        run.log({"loss": 1 / step, "eval": {"accuracy": step / 5}, "best": float("nan"), "note": "text"}, step=step)
print("run", run.id, flush=True)
