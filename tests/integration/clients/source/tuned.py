"""Training script of the tuner tests: prints a loss that depends on hyperparameters a few times."""

import argparse
import json
import os
import time

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--layers", type=int, default=1)
parser.add_argument("--opt", default="sgd")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--pause", type=float, default=0.0)
options, rest = parser.parse_known_args()
assert not rest, rest

loss = (options.lr - 0.03) ** 2 * 100 + abs(options.layers - 3) * 0.1 + (options.opt != "adam") * 0.05
for epoch in range(1, options.epochs + 1):
    print(f"validation loss: {loss + 1 / epoch:.6f}", flush=True)
    time.sleep(options.pause)
print(f"validation loss: {loss:.6f}", flush=True)
with open(os.path.join(os.environ["SM_MODEL_DIR"], "options.json"), "w") as file:
    json.dump(vars(options), file)
