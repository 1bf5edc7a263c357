"""A hook without a change to the program, in a separate process; this process reads the saved tensors."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from torch_programs import ROOT, TRAIN_PYTHON

LIMIT_S = 50.0
CONFIGURATION: dict[str, Any] = {
    "S3OutputPath": "s3://bucket/prefix",
    "HookParameters": {"save_interval": "2"},
    "CollectionConfigurations": [
        {"CollectionName": "gradients"},
        {"CollectionName": "weights", "CollectionParameters": {"reductions": "mean,abs_max", "save_steps": "1"}},
        {"CollectionName": "relus", "CollectionParameters": {"include_regex": ".*relu_output, nothing"}},
    ],
}
PROGRAM = """
import sys
from clary.train.debugger import install_from_config

print("installs", install_from_config())
assert "torch" not in sys.modules
import torch
from torch.nn.functional import cross_entropy

assert "importlib" in type(torch.__spec__.loader).__module__
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
frozen = torch.nn.Linear(4, 4).requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    cross_entropy(model(frozen(torch.randn(8, 4))), torch.zeros(8, dtype=torch.long)).backward()
    optimizer.step()
print("trained")
"""
LATER = """
from clary.compat.smdebug import pytorch as smd
print("same", smd.Hook.create_from_json_file() is smd.get_hook())
"""


def run(program: str, configuration: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(TRAIN_PYTHON), "-c", program],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=environment(configuration),
    )


def environment(configuration: Path) -> dict[str, str]:
    ours = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "SMDEBUG_CONFIG_FILE_PATH": str(configuration)}
    return {**os.environ, **ours}


def test_an_unchanged_program_is_recorded_and_its_end_is_written(tmp_path: Path) -> None:
    from clary.train import debugger

    file = tmp_path / "hook.json"
    file.write_text(json.dumps(CONFIGURATION | {"LocalPath": str(tmp_path / "tensors")}))
    done = run(PROGRAM + LATER, file)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n") == ["installs True", "trained", "same True", ""]
    trial = debugger.create_trial(tmp_path / "tensors")
    assert trial.steps() == [0, 1, 2]
    assert trial.has_ended
    assert trial.tensor("CrossEntropyLoss_output_0").steps() == [0, 2]
    assert trial.tensor("Sequential_0.weight").steps() == [0, 1, 2]
    assert trial.tensor_names(collection="relus") == ["1_output_0"]
    assert trial.tensor_names(collection="gradients", step=2) == [
        f"gradient/Sequential_{name}" for name in ("0.bias", "0.weight", "2.bias", "2.weight")
    ]


def test_an_invalid_configuration_is_reported_and_the_program_runs(tmp_path: Path) -> None:
    file = tmp_path / "hook.json"
    file.write_text(json.dumps({"LocalPath": str(tmp_path / "tensors"), "HookParameters": {"save_intervall": "2"}}))
    done = run(PROGRAM, file)
    assert done.returncode == 0
    assert "HookParameters has 'save_intervall'; it may have" in done.stderr
    assert done.stdout.split("\n") == ["installs False", "trained", ""]
    assert not (tmp_path / "tensors").exists()


DISTRIBUTED = """
import os, sys
from clary.train.debugger import install_from_config

assert install_from_config()
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank = int(sys.argv[1])
torch.manual_seed(3)
store = dist.FileStore(sys.argv[2], 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(torch.full((2, 4), rank + 1.0)), torch.tensor([0, 1])).backward()
    optimizer.step()
"""  # the group is not destroyed: the program simply ends


def test_ranks_that_end_without_cleanup_have_written_all_steps(tmp_path: Path) -> None:
    from clary.train import debugger

    file = tmp_path / "hook.json"
    hook = {"save_interval": "1", "include_workers": "all"}
    collections = [{"CollectionName": "gradients"}, {"CollectionName": "weights"}]
    document = {"LocalPath": str(tmp_path / "tensors"), "HookParameters": hook, "CollectionConfigurations": collections}
    file.write_text(json.dumps(document))
    ranks = [
        subprocess.Popen(
            [str(TRAIN_PYTHON), "-c", DISTRIBUTED, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(file),
        )
        for rank in range(2)
    ]
    try:
        told = [rank.communicate(timeout=LIMIT_S)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    # gloo's threads may end a program that does not destroy its group by SIGABRT, after everything of Python has ended.
    crashed = [
        rank.returncode == -signal.SIGABRT and "terminate called" in text
        for rank, text in zip(ranks, told, strict=True)
    ]
    assert all(rank.returncode == 0 or by_gloo for rank, by_gloo in zip(ranks, crashed, strict=True)), told
    trial = debugger.create_trial(tmp_path / "tensors")
    assert trial.steps() == [0, 1, 2, 3]
    assert trial.has_ended
    assert trial.workers() == ["worker_0", "worker_1"]
    assert trial.tensor("Sequential_0.weight").steps() == [0, 1, 2, 3]
    assert trial.tensor("gradient/Sequential_0.weight").workers(3) == ["worker_0", "worker_1"]
