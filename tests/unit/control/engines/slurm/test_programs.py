"""Programs run with only the variables that they need, and end at their deadline."""

import time

import pytest

from clary.base.errors import EngineError
from clary.control.engines.slurm.programs import NEEDED, SlurmPrograms


def make_program(folder, name, text):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def programs(tmp_path):
    for name in NEEDED:
        make_program(tmp_path / "bin", name, "env; cat")
    variables = {"SECRET": "x", "SBATCH_PARTITION": "x", "SQUEUE_FORMAT": "x", "SLURM_CONF": "/c", "HOME": "/home/ml"}
    return SlurmPrograms({"PATH": f"{tmp_path}/bin:/usr/bin:/bin"} | variables)


async def test_programs_have_a_clean_environment_in_utc(programs, tmp_path):
    done = await programs.run("squeue", text="given")
    lines = set(done.output.splitlines())
    assert {"TZ=UTC0", "SLURM_CONF=/c", "HOME=/home/ml", "LC_ALL=C.UTF-8", "given"} <= lines
    assert not any(line.startswith(("SECRET", "SBATCH_", "SQUEUE_")) for line in lines)
    assert programs.run_now("unmunge", text="given", limit_s=5).output.endswith("given")


async def test_the_variables_of_sbatch_are_those_of_the_job(programs, tmp_path):
    lines = (await programs.run("sbatch")).output.splitlines()
    assert not any(line.startswith("TZ=") for line in lines)
    (path,) = [line for line in lines if line.startswith("PATH=")]
    assert path == f"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{tmp_path}/bin"


def test_programs_that_are_missing_are_named(programs, tmp_path):
    programs.require()
    (tmp_path / "bin/sbatch").unlink()
    (tmp_path / "bin/unmunge").unlink()
    with pytest.raises(EngineError, match="engine slurm needs sbatch, unmunge in PATH") as caught:
        SlurmPrograms({"PATH": f"{tmp_path}/bin"}).require()
    assert not caught.value.retryable


async def test_a_program_that_hangs_is_killed(programs, tmp_path):
    make_program(tmp_path / "bin", "squeue", "exec sleep 60")
    started = time.monotonic()
    with pytest.raises(EngineError, match=r"squeue gave no answer in 0\.2 s") as caught:
        await programs.run("squeue", limit_s=0.2)
    assert caught.value.retryable
    with pytest.raises(EngineError, match=r"squeue gave no answer in 0\.2 s"):
        programs.run_now("squeue", text="", limit_s=0.2)
    assert time.monotonic() - started < 20


async def test_failures_contain_the_programs_message(programs, tmp_path):
    make_program(tmp_path / "bin", "sbatch", "echo 'sbatch: error:  no' >&2; exit 3")
    done = await programs.run("sbatch")
    assert (done.code, done.words) == (3, "sbatch: error: no")


async def test_a_program_that_prints_without_end_is_ended(programs, tmp_path):
    make_program(tmp_path / "bin", "squeue", "exec yes")
    with pytest.raises(EngineError, match="squeue printed more than 16777216 bytes, and was ended") as caught:
        await programs.run("squeue")
    assert caught.value.retryable
    with pytest.raises(EngineError, match="squeue printed more than 16777216 bytes, and was ended"):
        programs.run_now("squeue", text="", limit_s=60)
