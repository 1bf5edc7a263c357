"""`clary run --cuda-on-cpu`: FSDP, transformers, Lightning and DeepSpeed run unchanged in scripts for CUDA."""

from pathlib import Path

import pytest
from cuda_on_cpu_running import LIMIT_S, NOTICE, SCRIPTS, run

from needs import python_of

pytestmark = pytest.mark.timeout(2 * LIMIT_S)


def rehearse(environment: str, script: str, folder: Path, *arguments: str, num_ranks: int = 0) -> str:
    """Return the output of a script of `cuda_scripts`, started by torchrun if a number of ranks is given."""
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={num_ranks}") if num_ranks else ()
    program = (python_of(environment), *launcher, SCRIPTS / script, *arguments)
    done = run("--cuda-on-cpu", *program, SM_MODEL_DIR=str(folder), HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stderr.count(NOTICE) >= max(num_ranks, 1)
    return done.stdout


@pytest.mark.needs("hf")
def test_transformers_trains_saves_generates_and_resumes(tmp_path: Path) -> None:
    told = rehearse("hf", "trainer.py", tmp_path)
    assert "transformers 5." in told
    assert "4 words, step 2" in told


@pytest.mark.long
def test_fsdp_synchronises_ranks_and_gives_the_full_state_to_rank_0(tmp_path: Path) -> None:
    told = rehearse("train", "fsdp_states.py", tmp_path, num_ranks=2)
    assert told.count("the whole state was saved and loaded") == 1


@pytest.mark.needs("lightning")
def test_lightning_fits_on_one_gpu(tmp_path: Path) -> None:
    assert "rank 0 of 1: 8 steps" in rehearse("lightning", "lightning_fit.py", tmp_path, "--precision=16-mixed")


@pytest.mark.needs("lightning")
@pytest.mark.long
def test_lightning_starts_a_process_for_each_gpu_that_a_script_asks_for(tmp_path: Path) -> None:
    told = rehearse("lightning", "lightning_fit.py", tmp_path, "--devices=2", "--strategy=ddp")
    assert "rank 0 of 2: 4 steps" in told
    assert "rank 1 of 2: 4 steps" in told


@pytest.mark.needs("deepspeed")
@pytest.mark.long
def test_deepspeed_shards_a_model_during_its_construction(tmp_path: Path) -> None:
    told = rehearse("deepspeed", "zero_init.py", tmp_path, num_ranks=2)
    assert "rank 0 of 2: loss" in told
    assert "rank 1 of 2: loss" in told
