"""Registration of backend smddp with torch, in fresh interpreters of training programs."""

import os
import subprocess
import tomllib
from pathlib import Path

import pytest
from torch_ranks import ROOT, TRAIN_PYTHON

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ENTRY_POINTS = [f"{name} = {place}" for name, place in _PROJECT["entry-points"]["torch.backends"].items()]
HEAVY = ("clary.train._native", "clary.train.collective.adapters.torch.process_group")


def run(source: str, *folders: Path, **variables: str) -> str:
    """Run a program and return its output; fail if it exits with an error."""
    path = os.pathsep.join(map(str, (*folders, ROOT / "src")))
    done = subprocess.run(
        [str(TRAIN_PYTHON), "-c", source],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **variables},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with a distribution that has the entry points of an installed Clary package."""
    metadata = tmp_path / "clary_smddp-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: clary-smddp\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("\n".join(["[torch.backends]", *ENTRY_POINTS, ""]))
    return tmp_path


def test_torch_registers_the_backend_at_its_import_when_it_is_installed(installed: Path) -> None:
    assert run("import torch; print(torch.distributed.Backend.SMDDP)", installed).strip() == "smddp"


def test_torch_sagemaker_can_be_imported_when_it_is_installed(installed: Path) -> None:
    source = "import torch, torch.sagemaker; print(torch.sagemaker.is_initialized(), torch.distributed.Backend.SMDDP)"
    assert run(source, installed).split() == ["False", "smddp"]


def test_registering_imports_no_heavy_module(installed: Path) -> None:
    loaded = run("import sys, torch; print(*sys.modules)", installed).split()
    assert "clary.train.collective.adapters.torch.registration" in loaded
    assert not [name for name in loaded if name.startswith(HEAVY)]


def test_without_registration_the_backend_is_unknown() -> None:
    source = "import torch.distributed as dist; print('smddp' in dist.Backend.backend_list)"
    assert run(source).strip() == "False"


def test_autoload_can_be_switched_off_as_for_every_backend(installed: Path) -> None:
    source = "import torch.distributed as dist; print('smddp' in dist.Backend.backend_list)"
    assert run(source, installed, TORCH_DEVICE_BACKEND_AUTOLOAD="0").strip() == "False"


def test_registering_twice_does_nothing() -> None:
    source = (
        "import warnings; warnings.simplefilter('error')\n"
        "from clary.train.collective.adapters.torch.registration import register\n"
        "register(); register()\n"
        "import torch.distributed as dist; print(dist.Backend.backend_list.count('smddp'))"
    )
    assert run(source).strip() == "1"


def test_gloo_stays_the_default_of_cpu_tensors(installed: Path) -> None:
    source = "import torch.distributed as dist; print(dist.get_default_backend_for_device('cpu'))"
    assert run(source, installed).strip() == "gloo"


def test_a_script_trains_alone_with_the_variables_of_a_launcher(installed: Path) -> None:
    source = (
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('smddp')\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))\n"
        "model(torch.ones(1, 2)).sum().backward()\n"
        "print(dist.get_backend(), dist.get_world_size(), model.module.weight.grad is not None, flush=True)\n"
        "os._exit(0)"
    )
    launcher = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    assert run(source, installed, **launcher).split() == ["smddp", "1", "True"]


def test_a_script_may_end_without_destroying_its_group(installed: Path) -> None:
    source = (
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('smddp')\n"
        "work = dist.all_reduce(torch.ones(10), async_op=True)\n"
        "work.get_future().wait()\n"
        "print('done')"
    )
    launcher = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    assert run(source, installed, **launcher).strip() == "done"
