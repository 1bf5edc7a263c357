"""The tool that compares scripts with the names of SMP that Clary provides."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from torch_programs import ROOT, TRAIN_PYTHON

GOOD = """
import smdistributed.modelparallel.torch as smp
import torch.sagemaker as tsm
from smdistributed.modelparallel.torch.nn.huggingface.gpt2 import translate_state_dict_to_hf_gpt2 as translate

@smp.step(detach_outputs=True)
def step(model, batch):
    model.backward(model(batch))

smp.init({"ddp": True})
print(smp.state.cfg.fp16, smp.RankType.TP_RANK, tsm.state.hybrid_shard_degree)
model = smp.DistributedModel(net, backward_passes_per_step=4)
optimizer = smp.DistributedOptimizer(inner, static_loss_scale=None)
optimizer.add_param_group({}), optimizer.overflow, model.get_module().anything
smp.save(translate(model.state_dict(), max_seq_len=8), *arguments)
with smp.model_creation(tensor_parallelism=True, anything=1):
    pass
"""
BAD = """
import smdistributed.modelparallel.torch as smp
from smdistributed.modelparallel.torch.elsewhere import something
import smdistributed.unknown

model = smp.DistributedModel(net, overlaps=True)
model.redistribute()
smp.dp_rank(3)
smp.state.cfg.fp17
"""


NOTEBOOK = (
    ["import smdistributed.modelparallel.torch as smp\n", "!pip install x\n", "%matplotlib inline"],
    ["%%bash\n", "echo not Python"],
    ["%%writefile train.py\n", "import smdistributed.modelparallel.torch as smp\n", "smp.rank_of_written()"],
    "if smp:\n    !ls\nsmp.rank_of_notebook()",
    "s3://bucket/0123",
)
PARAMETERS = """
import smdistributed.modelparallel.torch as smp

@smp.step
def step(model, batch):
    model.retrograde(model(batch))

def save(model, optimizer):
    model.anything(), optimizer.local_state_dict(), optimizer.zero_grad(), optimizer.shrink()

smp.init({"ddp": True, "pipeline_parallel_degree": 2, "_own": 1, "microbatch": 4, **others})
"""


def test_notebooks_function_parameters_and_keys_are_searched(tmp_path: Path) -> None:
    cells = [{"cell_type": "code", "source": source} for source in NOTEBOOK]
    notes = {"cell_type": "markdown", "source": "smp.nothing()"}
    (tmp_path / "one.ipynb").write_text(json.dumps({"cells": [notes, *cells]}))
    (tmp_path / "none.ipynb").write_text("{}")
    (tmp_path / "two.py").write_text(PARAMETERS)
    told = looked_at(tmp_path)
    places = {one["name"].removeprefix("smdistributed.modelparallel.torch."): one["places"] for one in told["findings"]}
    assert places == {
        "DistributedModel.retrograde": ["two.py:6"],
        "DistributedOptimizer.shrink": ["two.py:9"],
        "init[microbatch]": ["two.py:11"],
        "rank_of_notebook": ["one.ipynb:11"],
        "rank_of_written": ["one.ipynb:8"],
    }
    assert told["unread"] == ["none.ipynb", "one.ipynb"], "the second in one cell"


def test_missing_names_and_wrong_calls_are_reported_with_their_places(tmp_path: Path) -> None:
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "one.py").write_text(GOOD)
    (tmp_path / "bad.py").write_text(BAD)
    (tmp_path / "old.py").write_text("print 'Python 2'")
    told = looked_at(tmp_path)
    found = {one["name"].removeprefix("smdistributed."): one for one in told["findings"]}
    assert {name: one["reason"].partition(" ")[0] for name, one in found.items()} == {
        "DistributedModel.redistribute": "missing",
        "modelparallel.torch.DistributedModel": "called",
        "modelparallel.torch.dp_rank": "called",
        "modelparallel.torch.elsewhere.something": "missing",
        "modelparallel.torch.state.cfg.fp17": "missing",
        "unknown": "missing",
    }
    assert found["modelparallel.torch.dp_rank"]["places"] == ["bad.py:8"]
    assert "unexpected keyword argument 'overlaps'" in found["modelparallel.torch.DistributedModel"]["reason"]
    assert told["unread"] == ["old.py"]
    assert told["uses"]["smdistributed.modelparallel.torch.DistributedModel"] == 2


def test_names_of_a_framework_that_is_not_installed_are_not_reported_as_missing(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        "import smdistributed.modelparallel.tensorflow as smp\nimport smdistributed.dataparallel.tensorflow as sdp\n"
        "smp.CheckpointManager(), sdp.allreduce(1)"
    )
    told = looked_at(tmp_path, expected=0)
    assert {one["reason"] for one in told["findings"]} == {"not looked at (this Python has no tensorflow)"}
    assert len(told["findings"]) == 4


def looked_at(folder: Path, *, expected: int = 1) -> dict[str, Any]:
    """Return the tool's report on a folder, and check the tool's exit status."""
    done = subprocess.run(
        [str(TRAIN_PYTHON), str(ROOT / "tools/find_smp_calls.py"), str(folder), "--json"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'src/clary/compat'}", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == expected, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told
