"""`from smdistributed.dataparallel import DistributedDataParallel`: imported lazily, and the only name of its kind."""

import os
import subprocess

import pytest

from clary.agent.environments.train_library import library_folder, write_train_library
from clary.contract.ml_tree import MlTree
from needs import python_of


@pytest.fixture
def run(tmp_path):
    """Run Python code in the environment of programs, with the library folder that jobs get."""
    tree = MlTree(tmp_path / "ml")
    write_train_library(tree)

    def run_words(words):
        return subprocess.run(
            [str(python_of("train")), "-c", words],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(library_folder(tree)), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run_words


@pytest.mark.needs("train")
def test_the_package_alone_imports_no_torch_and_has_no_other_name(run):
    done = run(
        "import smdistributed.dataparallel as sdp, sys\n"
        "print('torch' in sys.modules, hasattr(sdp, 'DistributedOptimizer'), sdp.__version__)"
    )
    assert done.stdout == "False False 2.6.0\n", done.stderr


@pytest.mark.needs("train")
def test_the_class_is_that_of_smddp_and_its_refusal_names_the_distribution_that_starts_ranks(run):
    done = run(
        "from smdistributed.dataparallel import DistributedDataParallel as DDP\n"
        "from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel as Of\n"
        "import torch\n"
        "print(issubclass(DDP, Of) and issubclass(DDP, torch.nn.parallel.DistributedDataParallel))\n"
        "DDP(torch.nn.Linear(1, 1))"
    )
    assert done.stdout == "True\n", done.stderr
    assert 'distribution={"smdistributed": {"dataparallel": {"enabled": True}}}' in done.stderr.splitlines()[-1]
