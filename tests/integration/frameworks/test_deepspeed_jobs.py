"""DeepSpeed in jobs of two hosts: its launcher, ZeRO stages, offloading, and checkpoints for other numbers of ranks.

Shown against one process of torch alone that trains on the same batches.
"""

import pytest
from boto3_clients import Clients, job_request, unique
from library_jobs import EXTENSIONS, INSTANCE_TYPE, PROGRAMS, facts_of, library_service, request_of, run_ranks
from program_jobs import archive_of, channel, put

from needs import VENVS

PROGRAM = "deepspeed_job_program.py"
TORCH = {"sagemaker_torch_distributed_enabled": "true"}
VARIABLES = {
    "DS_ACCELERATOR": "cpu",
    "DEEPSPEED_EXTENSIONS": str(VENVS / "deepspeed/extensions"),  # or each job compiles for a minute and a half
}
SAVED_STEP = 4

pytestmark = [
    pytest.mark.timeout(500),
    pytest.mark.xdist_group("deepspeed-jobs"),
    pytest.mark.needs("deepspeed"),
]


@pytest.fixture(scope="module")
def aws(tmp_path_factory):
    with library_service(tmp_path_factory.mktemp("deepspeed") / "home", "deepspeed") as service:
        yield Clients(service)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the losses of one process of torch."""
    (found,) = run_ranks("deepspeed", PROGRAM, "--plain=yes", num_ranks=1, folder=tmp_path_factory.mktemp("alone"))
    return found["losses"]


def check(found, alone, *, backend, stage, first_step=0):
    """Assert that ranks of both hosts have trained as one process does."""
    assert {facts["host"] for facts in found} == {"algo-1", "algo-2"}
    for rank, facts in enumerate(found):
        assert (facts["rank"], facts["size"], facts["backend"]) == (rank, len(found), backend)
        assert (facts["stage"], facts["first_step"]) == (stage, first_step)
        assert facts["losses"] == pytest.approx(alone[first_step:], rel=1e-4)
        assert facts["checksum"] == pytest.approx(found[0]["checksum"], rel=1e-6)


def run_job(aws, *, num_ranks=4, checkpoints=None, **hyperparameters):
    """Run the program under torch_distributed on two hosts."""
    members = {"CheckpointConfig": {"S3Uri": checkpoints}} if checkpoints else {}
    given = {**TORCH, **{name: str(value) for name, value in hyperparameters.items()}}
    request = request_of(aws, "deepspeed", PROGRAM, given, Environment=VARIABLES, **members)
    request["ResourceConfig"]["InstanceType"] = INSTANCE_TYPE if num_ranks == 4 else "ml.m5.large"
    return facts_of(aws, request, num_ranks=num_ranks)


def test_deepspeed_initialize_trains_under_torch_distributed(aws, alone):
    check(run_job(aws, stage=2, backend="smddp"), alone, backend="smddp", stage=2)


@pytest.mark.parametrize("offload", ["none", "cpu"])
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("backend", ["smddp", "gloo"])
@pytest.mark.sweep("backend", "stage", "offload")
@pytest.mark.long
def test_each_stage_trains_with_its_optimizer_on_either_device(aws, alone, backend, stage, offload):
    found = run_job(aws, stage=stage, backend=backend, offload=offload)
    check(found, alone, backend=backend, stage=stage)


def run_command(aws, command):
    """Run a command on both hosts, which find the program in a channel."""
    name = unique("deepspeed")
    archive = archive_of({"train.py": (PROGRAMS / PROGRAM).read_text(), **EXTENSIONS})
    source = put(aws, f"commands/{name}/source.tar.gz", archive)
    request = job_request(
        name,
        f"cd /tmp && tar xf /opt/ml/input/data/source/source.tar.gz && {command}",
        Environment=VARIABLES,
        InputDataConfig=[channel("source", source)],
        ResourceConfig={"InstanceType": INSTANCE_TYPE, "InstanceCount": 2, "VolumeSizeInGB": 10},
    )
    request["AlgorithmSpecification"]["TrainingImage"] = "team/deepspeed:1"
    return facts_of(aws, request, num_ranks=4)


def test_the_deepspeed_command_starts_the_ranks_of_all_hosts(aws, alone):
    found = run_command(aws, "deepspeed train.py --backend=smddp --stage=1")
    check(found, alone, backend="smddp", stage=1)
    assert [facts["local_rank"] for facts in found] == [0, 1, 0, 1]  # as an argument, too


def run_shell_script(aws, lines, *, num_ranks):
    """Run a shell script as a job's entry point, as `entry_point="start.sh"` of an estimator."""
    files = {"start.sh": f"set -e\n{lines}\n"}
    request = request_of(aws, "deepspeed", PROGRAM, {}, files=files, Environment=VARIABLES)
    request["HyperParameters"]["sagemaker_program"] = '"start.sh"'
    return facts_of(aws, request, num_ranks=num_ranks)


@pytest.mark.long
def test_a_shell_script_as_entry_point_calls_deepspeed_with_options(aws, alone):
    line = "deepspeed --num_gpus 1 --num_nodes 2 --no_local_rank --module train --backend gloo --stage 3"
    found = run_shell_script(aws, line, num_ranks=2)
    check(found, alone, backend="gloo", stage=3)
    assert [facts["local_rank"] for facts in found] == [-1, -1]


@pytest.mark.long
def test_hosts_that_the_command_line_leaves_out_run_nothing(aws, alone):
    found = run_shell_script(aws, "deepspeed --include algo-2 train.py --stage 2", num_ranks=2)
    assert [facts["host"] for facts in found] == ["algo-2", "algo-2"]
    assert found[0]["losses"] == pytest.approx(alone, rel=1e-4)


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.long
def test_checkpoints_go_through_s3_to_another_number_of_ranks(aws, alone, stage):
    place = f"s3://clary/checkpoints/{unique('deepspeed')}"
    saved = run_job(aws, stage=stage, checkpoint="save", checkpoints=place)
    check(saved, alone, backend="smddp", stage=stage)
    resumed = run_job(aws, stage=stage, checkpoint="resume", checkpoints=place)
    check(resumed, alone, backend="smddp", stage=stage, first_step=SAVED_STEP)
    converted = run_job(aws, num_ranks=2, stage=stage, checkpoint="universal", checkpoints=place)
    check(converted, alone, backend="smddp", stage=stage, first_step=SAVED_STEP)
    weights = run_job(aws, num_ranks=2, stage=stage, checkpoint="weights", checkpoints=place)
    assert weights[0]["losses"][0] == pytest.approx(alone[SAVED_STEP], rel=1e-4)  # the optimizer begins anew
