"""`clary run` with the launchers of Horovod, SMDDP and Open MPI: the ranks of each framework form a group."""

import os
import subprocess
import sys

import pytest

from needs import ROOT, python_of

pytestmark = pytest.mark.timeout(200)
LIMIT_S = 150
MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2")
TORCH = "import horovod.torch as hvd; hvd.init(); print('of', hvd.size(), flush=True)"
TENSORFLOW = "import horovod.tensorflow as hvd; hvd.init(); print('of', hvd.size(), flush=True)"
MXNET = "import horovod.mxnet as hvd; hvd.init(); print('of', hvd.size(), flush=True)"
SMDDP = "import smdistributed.dataparallel.tensorflow as d; d.init(); print('of', d.size(), flush=True)"
SMP = "import smdistributed.modelparallel.tensorflow as p; p.init({'partitions': 2}); print('of', p.size(), flush=True)"
NAMED = (
    "import os; print('of', os.environ['WORLD_SIZE'], os.environ['MASTER_PORT'] == os.environ[{port!r}], flush=True)"
)


def said(*command: object) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CLARY_", "SM_", "OMPI_"))}
    done = subprocess.run(
        [sys.executable, "-m", "clary.cli.main", "run", *map(str, command)],
        env={**kept, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.needs("train")
@pytest.mark.long(20)
def test_horovodrun_works_without_a_job():
    found = said("horovodrun", "-np", "2", python_of("train"), "-c", TORCH)
    assert sorted(found.splitlines()) == ["[0]<stdout>:of 2", "[1]<stdout>:of 2"]


@pytest.mark.parametrize(
    ("environment", "program"),
    [
        pytest.param("tensorflow", TENSORFLOW, marks=pytest.mark.needs("tensorflow"), id="horovod.tensorflow"),
        pytest.param("tensorflow", SMDDP, marks=pytest.mark.needs("tensorflow"), id="smddp"),
        pytest.param("tensorflow", SMP, marks=pytest.mark.needs("tensorflow"), id="smp"),
        pytest.param("mxnet", MXNET, marks=pytest.mark.needs("mxnet"), id="horovod.mxnet"),
    ],
)
@pytest.mark.needs("mpirun")
@pytest.mark.long(30)
def test_ranks_of_mpirun_without_torch_find_rank_0(environment, program):
    assert said(*MPIRUN, python_of(environment), "-c", program).count("of 2") == 2


@pytest.mark.needs("mpirun")
def test_smddprun_below_mpirun_forms_its_group_at_the_address_of_clary_run():
    program = NAMED.format(port="CLARY_RUN_MASTER_PORT")
    assert said(*MPIRUN, "smddprun", sys.executable, "-c", program).count("of 2 True") == 2
