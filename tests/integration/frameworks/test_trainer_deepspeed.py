"""transformers' Trainer with DeepSpeed, and `accelerate launch` in a job's command, on two hosts without a GPU.

Results are compared with one process of Trainer that trains on the same batches.
"""

import pytest
from boto3_clients import Clients
from library_jobs import facts_of, library_service, request_of, run_ranks

from needs import VENVS

PROGRAM = "trainer_deepspeed_program.py"
ENVIRONMENT = "trainer-deepspeed"
TORCH = {"sagemaker_torch_distributed_enabled": "true"}
VARIABLES = {
    "DS_ACCELERATOR": "cpu",
    "DEEPSPEED_EXTENSIONS": str(VENVS / "deepspeed/extensions"),  # otherwise each job compiles for 90 s
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
# As users write it: each host of the job passes its own rank and the address of the first host.
LAUNCH = (
    "accelerate launch {form} --num_machines 2 --num_processes 4 --machine_rank $SM_CURRENT_HOST_RANK "
    "--main_process_ip algo-1 --main_process_port 29501 --mixed_precision no --dynamo_backend no train.py {arguments}"
)

pytestmark = [
    pytest.mark.timeout(500),
    pytest.mark.xdist_group("trainer-deepspeed"),
    pytest.mark.needs(ENVIRONMENT, "deepspeed", "hf"),
]


@pytest.fixture(scope="module")
def aws(tmp_path_factory):
    with library_service(tmp_path_factory.mktemp("trainer-deepspeed") / "home", ENVIRONMENT) as service:
        yield Clients(service)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the losses of one process."""
    folder = tmp_path_factory.mktemp("alone")
    (found,) = run_ranks(ENVIRONMENT, PROGRAM, "--plain=yes", "--batch=16", num_ranks=1, folder=folder)
    assert found["kind"] == "NO"
    return found["losses"]


def check(found, alone, *, kind):
    """Assert that ranks of both hosts have trained like one process."""
    assert {facts["host"] for facts in found} == {"algo-1", "algo-2"}
    for rank, facts in enumerate(found):
        assert (facts["rank"], facts["ranks"], facts["backend"], facts["kind"]) == (rank, 4, "gloo", kind)
        assert facts["wrapper"] == ("DeepSpeedEngine" if kind == "DEEPSPEED" else "DistributedDataParallel")
        assert facts["losses"] == pytest.approx(alone, abs=2e-4)


def run_shell_script(aws, lines):
    """Run a shell script as a job's entry point on both hosts."""
    request = request_of(aws, ENVIRONMENT, PROGRAM, {}, files={"start.sh": lines}, Environment=VARIABLES)
    request["HyperParameters"]["sagemaker_program"] = '"start.sh"'
    return facts_of(aws, request, num_ranks=4)


@pytest.mark.long(35)
@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.sweep("stage")
def test_training_arguments_with_deepspeed_train_under_torch_distributed(aws, alone, stage):
    request = request_of(aws, ENVIRONMENT, PROGRAM, {**TORCH, "stage": str(stage)}, Environment=VARIABLES)
    check(facts_of(aws, request, num_ranks=4), alone, kind="DEEPSPEED")


@pytest.mark.long(10)
def test_the_deepspeed_command_starts_a_trainer_with_deepspeed(aws, alone):
    check(run_shell_script(aws, "deepspeed train.py --stage 2\n"), alone, kind="DEEPSPEED")


@pytest.mark.long(40)
def test_accelerate_launch_starts_ranks_on_all_hosts(aws, alone):
    """The option is named after GPUs; accelerate has no other that starts several processes per host without mpirun."""
    line = LAUNCH.format(form="--multi_gpu", arguments="")
    check(run_shell_script(aws, f"{line}\n"), alone, kind="MULTI_CPU")


@pytest.mark.long(60)
def test_accelerate_launch_starts_ranks_with_deepspeed(aws, alone):
    form = "--use_deepspeed --zero_stage 2 --deepspeed_multinode_launcher standard"
    line = LAUNCH.format(form=form, arguments="--stage 2")
    check(run_shell_script(aws, f"{line}\n"), alone, kind="DEEPSPEED")
