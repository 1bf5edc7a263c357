"""Tunes examples/tuning/source/train.py by somebody else's means: `python tuning_peers.py ORDER`, ORDER is JSON.

Where: `bench_tuning` starts it in the interpreter of the peer. It prints one line of JSON: wall time, best value, and
the times from each start of a trial to its first line.

    {"peer": "optuna" | "ray", "num_trials", "parallel", "folder": of digits.npz, "python": of trials, "train": path}
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

ACCURACY = re.compile(r"accuracy: ([0-9.]+)")
BATCHES, CHANNELS, ACTIVATIONS = (16, 128), (2, 16), ["relu", "gelu", "tanh"]
RATES = (1e-5, 1e-1)


def by_optuna(order: dict[str, Any]) -> dict[str, Any]:
    """Let Optuna propose, and run each trial as a process of its own."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=1))

    def one(_: int) -> float:
        trial = study.ask()
        options = {
            "lr": trial.suggest_float("lr", *RATES, log=True),
            "batch-size": trial.suggest_int("batch-size", *BATCHES),
            "channels": trial.suggest_int("channels", *CHANNELS),
            "activation": trial.suggest_categorical("activation", ACTIVATIONS),
        }
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
            process = subprocess.Popen(
                [order["python"], "-u", order["train"], "--epochs", "1", *arguments],
                env={**os.environ, "SM_CHANNEL_TRAINING": order["folder"], "SM_MODEL_DIR": folder},
                stdout=subprocess.PIPE,
                text=True,
            )
            assert process.stdout is not None
            said = process.stdout.readline()
            first_line_s = time.monotonic() - began_s
            said += process.stdout.read()
            if process.wait() != 0:
                raise SystemExit(f"a trial failed: {said}")
        study.tell(trial, float(ACCURACY.findall(said)[-1]))
        return first_line_s

    began_s = time.monotonic()
    with ThreadPoolExecutor(order["parallel"]) as pool:
        first_lines = list(pool.map(one, range(order["num_trials"])))
    return {"wall_s": time.monotonic() - began_s, "best": study.best_value, "first_lines": first_lines}


def by_ray(order: dict[str, Any]) -> dict[str, Any]:
    """Let Ray Tune run trials in workers that it keeps, with Optuna's search."""
    import ray
    from ray import tune
    from ray.tune.search.optuna import OptunaSearch

    sys.path.insert(0, os.path.dirname(order["train"]))
    ray.init(num_cpus=order["parallel"], include_dashboard=False, log_to_driver=False, logging_level="ERROR")

    def trainable(config: dict[str, Any]) -> dict[str, float]:
        sys.path.insert(0, os.path.dirname(order["train"]))
        import torch
        from train import digits, network  # the example's own

        torch.set_num_threads(1)
        torch.manual_seed(0)
        (images, labels), (held_images, held_labels) = digits(order["folder"])
        model = network(config["channels"], config["activation"])
        optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
        for batch in torch.randperm(len(labels)).split(config["batch-size"]):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            return {"accuracy": (model(held_images).argmax(dim=1) == held_labels).float().mean().item()}

    space = {
        "lr": tune.loguniform(*RATES),
        "batch-size": tune.randint(BATCHES[0], BATCHES[1] + 1),
        "channels": tune.randint(CHANNELS[0], CHANNELS[1] + 1),
        "activation": tune.choice(ACTIVATIONS),
    }
    began_s = time.monotonic()
    tuner = tune.Tuner(
        tune.with_resources(trainable, {"cpu": 1}),
        param_space=space,
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            num_samples=order["num_trials"],
            max_concurrent_trials=order["parallel"],
            search_alg=OptunaSearch(seed=1),
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(verbose=0, storage_path=tempfile.mkdtemp()),
    )
    found = tuner.fit()
    wall_s = time.monotonic() - began_s
    return {"wall_s": wall_s, "best": found.get_best_result().metrics["accuracy"], "first_lines": []}


if __name__ == "__main__":
    ordered = json.loads(sys.argv[1])
    print(json.dumps({"optuna": by_optuna, "ray": by_ray}[ordered["peer"]](ordered)), flush=True)
    os._exit(0)
