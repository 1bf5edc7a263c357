"""DeepSpeed in jobs of two hosts: its launcher, ZeRO stages, offloading, and checkpoints for other numbers of ranks.

Results are compared with one process of plain torch that trains on the same batches.
"""

import json
import os
import resource
import shutil
import subprocess

import pytest
from boto3_clients import Clients, job_request, log_of, unique
from library_jobs import EXTENSIONS, INSTANCE_TYPE, PROGRAMS, facts_of, library_service, request_of, run_ranks
from program_jobs import archive_of, channel, model_of, put, run

from needs import VENVS, python_of
from sweeps import SEED

PROGRAM = "deepspeed_job_program.py"
TORCH = {"sagemaker_torch_distributed_enabled": "true"}
VARIABLES = {
    "DS_ACCELERATOR": "cpu",
    "DEEPSPEED_EXTENSIONS": str(VENVS / "deepspeed/extensions"),  # otherwise each job compiles for 90 s
}
SAVED_STEP = 4
HIDDEN = 736  # a hidden x hidden matrix split on two ranks exceeds 1 MiB, below which DeepSpeed keeps tensors in memory
IO_EXTENSIONS = VENVS / "deepspeed/extensions-nvme"  # jobs see this environment folder, and later runs reuse it
COMPILE_LIMIT_S = 900  # takes two to four minutes on an idle machine

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
    """The losses of one process of plain torch."""
    (found,) = run_ranks("deepspeed", PROGRAM, "--plain=yes", num_ranks=1, folder=tmp_path_factory.mktemp("alone"))
    return found["losses"]


def check(found, alone, *, backend, stage, first_step=0):
    """Assert that ranks of both hosts have trained like one process."""
    assert {facts["host"] for facts in found} == {"algo-1", "algo-2"}
    for rank, facts in enumerate(found):
        assert (facts["rank"], facts["size"], facts["backend"]) == (rank, len(found), backend)
        assert (facts["stage"], facts["first_step"]) == (stage, first_step)
        assert facts["losses"] == pytest.approx(alone[first_step:], rel=1e-4)
        assert facts["checksum"] == pytest.approx(found[0]["checksum"], rel=1e-6)


def run_job(aws, *, num_ranks=4, checkpoints=None, **hyperparameters):
    """Run the program under torch_distributed on two hosts."""
    request = job_of(aws, num_ranks=num_ranks, checkpoints=checkpoints, **hyperparameters)
    return facts_of(aws, request, num_ranks=num_ranks)


def job_of(aws, *, num_ranks=4, checkpoints=None, variables=None, **hyperparameters):
    """Return the request of `run_job`, with these variables in its environment."""
    members = {"CheckpointConfig": {"S3Uri": checkpoints}} if checkpoints else {}
    given = {**TORCH, **{name: str(value) for name, value in hyperparameters.items()}}
    environment = {**VARIABLES, **(variables or {})}
    request = request_of(aws, "deepspeed", PROGRAM, given, Environment=environment, **members)
    request["ResourceConfig"]["InstanceType"] = INSTANCE_TYPE if num_ranks == 4 else "ml.m5.large"
    return request


@pytest.mark.long(30)
def test_deepspeed_initialize_trains_under_torch_distributed(aws, alone):
    check(run_job(aws, stage=2, backend="smddp"), alone, backend="smddp", stage=2)


@pytest.mark.parametrize("offload", ["none", "cpu"])
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("backend", ["smddp", "gloo"])
@pytest.mark.sweep("backend", "stage", "offload")
@pytest.mark.long(200)
def test_each_stage_trains_with_its_optimizer_on_either_device(aws, alone, backend, stage, offload):
    found = run_job(aws, stage=stage, backend=backend, offload=offload)
    check(found, alone, backend=backend, stage=stage)


def run_command(aws, command):
    """Run a command on both hosts; the program is in a channel."""
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


@pytest.mark.long(45)
def test_the_deepspeed_command_starts_the_ranks_of_all_hosts(aws, alone):
    found = run_command(aws, "deepspeed train.py --backend=smddp --stage=1")
    check(found, alone, backend="smddp", stage=1)
    assert [facts["local_rank"] for facts in found] == [0, 1, 0, 1]  # also as an argument


def run_shell_script(aws, lines, *, num_ranks):
    """Run a shell script as a job's entry point, as `entry_point="start.sh"` of an estimator."""
    files = {"start.sh": f"set -e\n{lines}\n"}
    request = request_of(aws, "deepspeed", PROGRAM, {}, files=files, Environment=VARIABLES)
    request["HyperParameters"]["sagemaker_program"] = '"start.sh"'
    return facts_of(aws, request, num_ranks=num_ranks)


@pytest.mark.long(25)
def test_a_shell_script_as_entry_point_calls_deepspeed_with_options(aws, alone):
    line = "deepspeed --num_gpus 1 --num_nodes 2 --no_local_rank --module train --backend gloo --stage 3"
    found = run_shell_script(aws, line, num_ranks=2)
    check(found, alone, backend="gloo", stage=3)
    assert [facts["local_rank"] for facts in found] == [-1, -1]


@pytest.mark.long(60)
def test_hosts_excluded_by_the_command_line_run_no_rank(aws, alone):
    found = run_shell_script(aws, "deepspeed --include algo-2 train.py --stage 2", num_ranks=2)
    assert [facts["host"] for facts in found] == ["algo-2", "algo-2"]
    assert found[0]["losses"] == pytest.approx(alone, rel=1e-4)


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.long(60)
def test_checkpoints_in_s3_are_restored_on_another_number_of_ranks(aws, alone, stage):
    place = f"s3://clary/checkpoints/{unique('deepspeed')}"
    saved = run_job(aws, stage=stage, checkpoint="save", checkpoints=place)
    check(saved, alone, backend="smddp", stage=stage)
    resumed = run_job(aws, stage=stage, checkpoint="resume", checkpoints=place)
    check(resumed, alone, backend="smddp", stage=stage, first_step=SAVED_STEP)
    converted = run_job(aws, num_ranks=2, stage=stage, checkpoint="universal", checkpoints=place)
    check(converted, alone, backend="smddp", stage=stage, first_step=SAVED_STEP)
    weights = run_job(aws, num_ranks=2, stage=stage, checkpoint="weights", checkpoints=place)
    assert weights[0]["losses"][0] == pytest.approx(alone[SAVED_STEP], rel=1e-4)  # with a new optimizer


def compiled(part):
    """Compile DeepSpeed's extension for asynchronous file access; return the folder that holds it."""
    if os.environ.get(SEED):
        pytest.skip("compiling DeepSpeed's access to files takes six minutes of a processor: make test-all does it")
    shutil.copytree(VENVS / "deepspeed/extensions", IO_EXTENSIONS, dirs_exist_ok=True)
    for lock in IO_EXTENSIONS.glob("*/lock"):  # lock of a killed run, for which the next run would wait forever
        lock.unlink()
    python = python_of("deepspeed")
    subprocess.run(
        [str(python), "-c", f"from deepspeed.ops.op_builder.cpu import {part} as part; part().load(verbose=False)"],
        env={
            **os.environ,
            "DS_ACCELERATOR": "cpu",
            "TORCH_EXTENSIONS_DIR": str(IO_EXTENSIONS),
            "PATH": f"{python.parent}:{os.environ['PATH']}",
        },
        timeout=COMPILE_LIMIT_S,
        check=True,
    )
    return {"DEEPSPEED_EXTENSIONS": str(IO_EXTENSIONS)}


@pytest.mark.parametrize("place", ["/tmp/nvme", "/opt/ml/nvme"])
@pytest.mark.sweep("place")
@pytest.mark.needs("compiler", "libaio")
@pytest.mark.timeout(2 * COMPILE_LIMIT_S)
@pytest.mark.long(60)
def test_parameters_and_optimizer_state_are_offloaded_to_files_of_the_host(aws, place, tmp_path):
    hidden = f"--hidden={HIDDEN}"
    (alone,) = run_ranks("deepspeed", PROGRAM, "--plain=yes", hidden, num_ranks=1, folder=tmp_path / "alone")
    given = {"stage": 3, "offload": "nvme", "nvme_path": place, "hidden": HIDDEN, "sub_group_size": 1}
    found = run_job(aws, num_ranks=2, variables=compiled("AsyncIOBuilder"), **given)
    check(found, alone["losses"], backend="smddp", stage=3)
    num_bytes = HIDDEN**2 // 2 * 4  # size of a rank's part of the greatest weight
    for facts in found:  # the weight, the optimizer's copy of it, its gradient, and two moments
        assert sum(size >= num_bytes for size in facts["swapped"].values()) == 5, facts["swapped"]


@pytest.mark.needs("compiler", "libaio")
@pytest.mark.timeout(2 * COMPILE_LIMIT_S)
@pytest.mark.long(60)
def test_gradients_misaligned_for_the_disk_fail_the_job_instead_of_becoming_zero(aws, tmp_path):
    hidden = f"--hidden={HIDDEN}"
    (alone,) = run_ranks("deepspeed", PROGRAM, "--plain=yes", hidden, num_ranks=1, folder=tmp_path / "alone")
    given = {"stage": 3, "offload": "nvme", "hidden": HIDDEN}  # a bias and a weight form one group
    request = job_of(aws, num_ranks=2, variables=compiled("AsyncIOBuilder"), **given)
    described = run(aws, request, timeout_s=240)
    if described["TrainingJobStatus"] == "Completed":  # disks that can read to any address
        files = model_of(aws, described)
        assert json.loads(files["rank-0.json"])["losses"] == pytest.approx(alone["losses"], rel=1e-4)
    else:
        assert "into a memory address that its disk refuses" in described["FailureReason"]
        assert '"sub_group_size": 1' in described["FailureReason"]


@pytest.mark.needs("compiler", "libaio")
@pytest.mark.timeout(2 * COMPILE_LIMIT_S)
@pytest.mark.long(60)
def test_offload_to_nvme_beyond_the_lock_limit_fails_with_the_reason(aws):
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if not 0 < limit < 1 << 30:
        pytest.skip(f"this machine lets a process lock {limit} bytes, which no buffer of a test reaches")
    given = {"stage": 3, "offload": "nvme", "nvme_buffer": limit // 4}
    request = job_of(aws, num_ranks=2, variables=compiled("AsyncIOBuilder"), **given)
    described = run(aws, request, timeout_s=240)
    assert described["TrainingJobStatus"] == "Failed"
    assert f"a process of this host may lock {limit:,} bytes" in described["FailureReason"]
    assert "where `ulimit -l` is unlimited" in described["FailureReason"]


@pytest.mark.needs("compiler")
@pytest.mark.timeout(2 * COMPILE_LIMIT_S)
@pytest.mark.long(60)
def test_offload_to_nvme_without_libaio_fails_and_names_the_package(aws):
    # DeepSpeed links a small program to detect libaio; with this flag the link fails, as on a machine without libaio.
    variables = {**compiled("PinMemoryBuilder"), "LDFLAGS": "-lnowhere"}
    request = job_of(aws, num_ranks=2, variables=variables, stage=3, offload="nvme")
    described = run(aws, request, timeout_s=240)
    assert described["TrainingJobStatus"] == "Failed"
    assert "offload to nvme needs libaio" in described["FailureReason"]
    assert "apt-get install libaio-dev" in described["FailureReason"]
    log = "\n".join(log_of(aws, request["TrainingJobName"]))
    assert "Unable to JIT load the async_io op" in log  # DeepSpeed's own message
