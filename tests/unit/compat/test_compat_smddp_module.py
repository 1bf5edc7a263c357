"""`smdistributed.dataparallel.torch.distributed`: calls of programs of SMDDP 1.0 to 1.3 before and after they join."""

import os
import socket
import subprocess

import pytest

from clary.agent.environments.train_library import library_folder, write_train_library
from clary.contract.ml_tree import MlTree
from needs import python_of

IMPORT = "import smdistributed.dataparallel.torch.distributed as dist, torch\n"


@pytest.fixture
def run(tmp_path):
    """Run Python code in the environment of programs, with the library folder that jobs get."""
    tree = MlTree(tmp_path / "ml")
    write_train_library(tree)

    def run_words(words, **variables):
        return subprocess.run(
            [str(python_of("train")), "-c", IMPORT + words],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(library_folder(tree)),
                "OMP_NUM_THREADS": "1",
                **variables,
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run_words


def one_rank():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    return {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


@pytest.mark.needs("train")
def test_before_a_rank_joins_the_launchers_variables_say_which_rank_it_is(run):
    done = run(
        "print(dist.is_initialized(), dist.get_rank(), dist.get_world_size(), dist.get_local_rank(), "
        "dist.get_rank(dist.group.WORLD))",
        RANK="5",
        LOCAL_RANK="1",
        WORLD_SIZE="8",
    )
    assert done.stdout == "False 5 8 1 5\n", done.stderr


@pytest.mark.needs("train")
@pytest.mark.parametrize("name", ["get_rank", "get_world_size"])
def test_without_a_launcher_and_a_group_there_is_no_rank(run, name):
    done = run(f"dist.{name}()")
    assert "Default process group has not been initialized" in done.stderr
    assert "RANK" not in run(f"dist.{name}(dist.group.WORLD)", RANK="x", WORLD_SIZE="").stdout


@pytest.mark.needs("train")
def test_without_a_launcher_the_error_of_the_local_rank_names_the_variable(run):
    done = run("dist.get_local_rank()")
    assert "LOCAL_RANK is missing" in done.stderr.splitlines()[-1]


@pytest.mark.needs("train")
def test_a_second_join_does_nothing_and_a_group_that_was_left_may_be_joined_again(run):
    done = run(
        "import logging; logging.basicConfig(level=logging.INFO)\n"
        "dist.init_process_group('smddp', rank=0, world_size=1)\n"
        "group = torch.distributed.group.WORLD\n"
        "dist.init_process_group()\n"
        "print(torch.distributed.group.WORLD is group, torch.distributed.get_backend())\n"
        "value = torch.ones(2)\n"
        "print(dist.reduce(value, 0), dist.reduce(value, dst=0, op=dist.ReduceOp.MAX, async_op=True).wait(), value)\n"
        "dist.destroy_process_group()\n"
        "print(dist.is_initialized())\n",
        **one_rank(),
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "True smddp"
    assert lines[1].startswith("None ")
    assert lines[1].endswith("tensor([1., 1.])")
    assert lines[2] == "False"
    assert "has joined already" in done.stderr


@pytest.mark.needs("train")
def test_another_group_than_that_of_all_ranks_is_neither_reduced_nor_left(run):
    for call in ("dist.reduce(torch.ones(1), 0, group='other')", "dist.destroy_process_group('other')"):
        done = run(f"dist.init_process_group()\n{call}", **one_rank())
        assert "knows group.WORLD only" in done.stderr, done.stderr
