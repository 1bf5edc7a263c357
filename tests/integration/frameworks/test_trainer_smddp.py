"""transformers' Trainer under smdistributed.dataparallel on hosts without a GPU, in three versions of transformers.

The script uses no name of Clary. Results are compared with one process that trains on the same batches.
"""

import json

import pytest
from boto3_clients import Clients
from library_jobs import facts_of, library_service, request_of, run_ranks

PROGRAM = "trainer_smddp_program.py"
ENVIRONMENTS = {"trainer": "4.28.", "trainer-4.46": "4.46.", "hf": "5.24."}
SMDDP = {"sagemaker_distributed_dataparallel_enabled": "true"}
NUM_SAMPLES = 16  # samples of a step, on all ranks together

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("trainer-smddp"),
    pytest.mark.needs(*ENVIRONMENTS),
]


@pytest.fixture(scope="module")
def aws(tmp_path_factory):
    with library_service(tmp_path_factory.mktemp("trainer") / "home", *ENVIRONMENTS) as service:
        yield Clients(service)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return a function that maps an environment to the facts of one process without a job."""
    found = {}

    def run_alone(environment):
        if environment not in found:
            folder = tmp_path_factory.mktemp("alone")
            (found[environment],) = run_ranks(
                environment, PROGRAM, f"--batch={NUM_SAMPLES}", num_ranks=1, folder=folder
            )
        return found[environment]

    return run_alone


def check(found, alone, *, version):
    """Assert that ranks over smddp on the CPU have trained and evaluated like one process."""
    assert alone["backend"] is None
    for facts in found:
        assert facts["version"].startswith(version)
        assert (facts["mode"], facts["backend"], facts["device"]) == ("SAGEMAKER_DATA_PARALLEL", "smddp", "cpu")
        assert (facts["ranks"], facts["wrapper"]) == (len(found), "DistributedDataParallel")
        assert facts["checksum"] == found[0]["checksum"]
        assert facts["checksum"] == pytest.approx(alone["checksum"], rel=1e-6)
        assert facts["evaluation"] == pytest.approx(alone["evaluation"], rel=1e-4)
    assert found[0]["losses"] == pytest.approx(alone["losses"], abs=2e-4)  # old versions round losses to four places
    assert found[0]["losses"][-1] < found[0]["losses"][0]


@pytest.mark.long(15)
@pytest.mark.parametrize("says_cpu", [False, True], ids=["says-nothing", "says-use-cpu"])
@pytest.mark.parametrize(("environment", "version"), ENVIRONMENTS.items())
@pytest.mark.sweep("environment", "version")
def test_two_ranks_train_like_one_process(environment, version, says_cpu, alone, tmp_path):
    found = run_ranks(
        environment,
        PROGRAM,
        f"--batch={NUM_SAMPLES // 2}",
        f"--use_cpu={str(says_cpu).lower()}",
        num_ranks=2,
        folder=tmp_path / "ranks",
        SM_FRAMEWORK_PARAMS=json.dumps({"sagemaker_distributed_dataparallel_enabled": True}),
    )
    check(found, alone(environment), version=version)


def run_job(aws, environment):
    """Run the program on two hosts with two ranks each."""
    request = request_of(aws, environment, PROGRAM, {**SMDDP, "batch": str(NUM_SAMPLES // 4)})
    return facts_of(aws, request, num_ranks=4)


@pytest.mark.long(30)
def test_the_newest_version_trains_in_a_job_of_two_hosts(aws, alone):
    check(run_job(aws, "hf"), alone("hf"), version=ENVIRONMENTS["hf"])


@pytest.mark.parametrize("environment", ["trainer", "trainer-4.46"])
@pytest.mark.long(55)
def test_older_versions_train_in_a_job_of_two_hosts(aws, alone, environment):
    check(run_job(aws, environment), alone(environment), version=ENVIRONMENTS[environment])
