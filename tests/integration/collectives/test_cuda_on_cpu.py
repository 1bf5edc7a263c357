"""`clary run --cuda-on-cpu`: scripts that require CUDA run unchanged, and their output has a notice."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cuda_on_cpu_running import CLARY, LIMIT_S, NOTICE, PROGRAM, SCRIPTS, UNIT_RUNNER, environment, run, torchrun
from torch_ranks import TRAIN_PYTHON, names

pytestmark = pytest.mark.timeout(2 * LIMIT_S)


@pytest.mark.long(11)
def test_a_script_for_one_gpu_runs_unchanged(tmp_path: Path) -> None:
    done = run("--cuda-on-cpu", TRAIN_PYTHON, SCRIPTS / "mnist.py", SM_MODEL_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "Train Epoch: 1" in done.stdout
    assert "saved and loaded" in done.stdout
    assert done.stderr.count(NOTICE) == 1, done.stderr


def test_a_script_in_old_style_runs_unchanged() -> None:
    done = run("--cuda-on-cpu", "--", TRAIN_PYTHON, SCRIPTS / "prefetcher.py")
    assert done.returncode == 0, done.stderr
    assert "5 batches" in done.stdout
    assert "CPU (CLARY_CUDA_ON_CPU=1) 0 MB" in done.stdout


@pytest.mark.parametrize("script", ["mnist.py", "ddp_amp.py"])
@pytest.mark.long
def test_a_script_for_one_gpu_per_process_runs_unchanged(script: str, tmp_path: Path) -> None:
    done = run("--cuda-on-cpu", *torchrun(script, 2), SM_MODEL_DIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count(NOTICE) >= 2
    if script == "ddp_amp.py":
        assert "rank 0 of 2" in done.stdout
        assert "rank 1 of 2" in done.stdout


@pytest.mark.long(13)
@pytest.mark.needs("mpirun")
@pytest.mark.parametrize(
    "words",
    [
        "import smdistributed.dataparallel.torch.distributed as d; d.init_process_group(); r, s = d.get_rank(), "
        "d.get_world_size()",
        "import smdistributed.modelparallel.torch as smp; smp.init(); r, s = smp.rank(), smp.size()",
    ],
    ids=["smddp", "smp"],
)
def test_ranks_of_mpirun_find_each_other(words: str) -> None:
    program = f"{words}; print(f'rank {{r}} of {{s}}', flush=True)"
    mpirun = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", 2)
    done = run("--cuda-on-cpu", *mpirun, TRAIN_PYTHON, "-c", program)
    assert done.returncode == 0, done.stdout + done.stderr
    # mpirun may insert a line of one rank into a line of another.
    assert sorted(re.findall("rank . of .", done.stdout)) == ["rank 0 of 2", "rank 1 of 2"]


def test_without_the_option_the_same_script_demands_a_gpu(tmp_path: Path) -> None:
    done = run(*torchrun("ddp_amp.py", 1), SM_MODEL_DIR=str(tmp_path), CUDA_VISIBLE_DEVICES="")
    assert done.returncode != 0
    assert "this script needs a GPU" in done.stderr
    assert NOTICE not in done.stderr


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str | None]:
    done = run("--cuda-on-cpu", TRAIN_PYTHON, UNIT_RUNNER, PROGRAM, LOCAL_WORLD_SIZE="2")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", names(PROGRAM))
def test_cuda_means_the_cpu(name: str, outcomes: dict[str, str | None]) -> None:
    assert outcomes[name] is None, outcomes[name]


def test_smddp_is_available_and_not_replaced() -> None:
    words = "import torch, torch.distributed as d; print(d.is_nccl_available(), hasattr(d.Backend, 'SMDDP'))"
    done = run("--cuda-on-cpu", TRAIN_PYTHON, "-c", words)
    assert done.stdout.split() == ["True", "True"], done.stderr


def test_the_exit_code_is_that_of_the_program() -> None:
    assert run(sys.executable, "-c", "raise SystemExit(7)").returncode == 7
    assert run(sys.executable, "-c", "import os; os.kill(os.getpid(), 9)").returncode == 128 + signal.SIGKILL
    missing = run("no-such-program")
    assert missing.returncode == 2
    assert "no-such-program cannot be run: No such file" in missing.stderr
    assert run().returncode == 2


def test_sigterm_is_forwarded() -> None:
    words = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n"
        "print('ready', flush=True)\n"
        f"time.sleep({LIMIT_S})"
    )
    process = subprocess.Popen(
        [*CLARY, sys.executable, "-c", words], env=environment(), stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.wait(LIMIT_S) == 9
