"""The launcher that the SDK's requests select, refusals and warnings."""

import json
from pathlib import Path

import pytest

from clary.contract.settings.distribution import (
    DistributionKind,
    ServerStyle,
    read_distribution,
    refusals,
    server_style,
    warnings,
)
from clary.contract.settings.mpi_options import parse_mpi_options

REQUESTS = Path(__file__).parents[3] / "assets" / "requests"
KINDS = {
    "pt-none": DistributionKind.PLAIN,
    "pt-torchdist": DistributionKind.TORCH_DISTRIBUTED,
    "pt-smddp": DistributionKind.PYTORCHDDP_OR_SMDDP,
    "pt-ddp": DistributionKind.PYTORCHDDP_OR_SMDDP,
    "pt-smddp-torchdist": DistributionKind.TORCH_DISTRIBUTED,
    "pt-smpv2-torchdist": DistributionKind.TORCH_DISTRIBUTED,
    "pt-mpi": DistributionKind.MPI,
    "tf-horovod": DistributionKind.MPI,
    "pt-smp": DistributionKind.MODELPARALLEL,
    "pt-smp-nompi": DistributionKind.PLAIN,
    "tf-ps": DistributionKind.PARAMETER_SERVER,
    "tf-mwms": DistributionKind.MULTI_WORKER_MIRRORED,
    "pt-trcomp": DistributionKind.XLA,
    "pt-pytorchx": DistributionKind.PLAIN,
    "pt-top-smddp": DistributionKind.PLAIN,
}


def of_request(name: str) -> dict[str, str]:
    request = json.loads((REQUESTS / f"{name}.CreateTrainingJob.json").read_text())
    return request.get("HyperParameters") or {}


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_requests_of_the_sdk_choose_the_launcher_that_sagemaker_chooses(name: str, kind: DistributionKind) -> None:
    assert read_distribution(of_request(name)).kind is kind


def test_huggingfaces_pytorch_ddp_key_comes_before_torch_distributed_and_after_mpi() -> None:
    ddp = {"sagemaker_pytorch_ddp_enabled": "true", "sagemaker_torch_distributed_enabled": "true"}
    assert read_distribution(ddp).kind is DistributionKind.PYTORCHDDP_OR_SMDDP
    assert read_distribution({**ddp, "sagemaker_mpi_enabled": "true"}).kind is DistributionKind.MPI


def test_processes_options_and_groups_are_read() -> None:
    mpi = read_distribution(of_request("pt-mpi"))
    assert (mpi.processes_per_host, mpi.custom_mpi_options) == (8, "--NCCL_DEBUG INFO -x FOO=bar")
    assert mpi.mpi_options.variables == {"NCCL_DEBUG": "INFO", "FOO": "bar"}
    assert read_distribution(of_request("pt-smddp-mpiopts")).custom_mpi_options != ""
    hetero = read_distribution(of_request("pt-hetero"))
    assert hetero.includes("g1")
    assert not hetero.includes("g2")
    assert read_distribution({}).includes("anything")


def test_every_recorded_request_but_those_with_xla_is_accepted() -> None:
    refused = {}
    for path in sorted(REQUESTS.glob("*.CreateTrainingJob.json")):
        request = json.loads(path.read_text())
        algorithm = request.get("AlgorithmSpecification") or {}
        reasons = refusals(request.get("HyperParameters") or {}, has_command="ContainerEntrypoint" in algorithm)
        if reasons:
            refused[path.name.split(".")[0]] = reasons
    assert set(refused) == {"pt-trcomp", "hf-trcomp-dist"}
    assert all("'pytorchxla' is not supported" in reason for reasons in refused.values() for reason in reasons)


@pytest.mark.parametrize(
    ("hyperparameters", "words"),
    [
        (
            {"sagemaker_training_compiler_enabled": "true", "sagemaker_distributed_dataparallel_enabled": "true"},
            "not compatible with SageMaker Training Compiler",
        ),
        (
            {"sagemaker_training_compiler_enabled": "true", "mp_parameters": '{"ddp": true}'},
            "not compatible with SageMaker Training Compiler",
        ),
        ({"sagemaker_pytorch_xla_multi_worker_enabled": "true"}, "only supported with SageMaker Training Compiler"),
        ({"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "0"}, "above 0, got '0'"),
        ({"sagemaker_mpi_num_of_processes_per_host": '"many"'}, "above 0, got 'many'"),
        ({"mp_parameters": '"ddp"'}, "expected a JSON object"),
        ({"sagemaker_distribution_instance_groups": "g1"}, "expected a JSON list"),
        ({"sagemaker_distribution_instance_groups": '["g9"]'}, "names 'g9'"),
        ({"sagemaker_mpi_enabled": "true", "sagemaker_mpi_custom_mpi_options": "--magic 3"}, "--magic is not an"),
        ({"sagemaker_torch_distributed_enabled": "true", "sagemaker_program": '"run.sh"'}, "Python scripts only"),
        ({"sagemaker_program": '"../train.py"'}, "leaves the source folder"),
        ({"sagemaker_program": "/bin/sh"}, "absolute path"),
        ({"x": '"\\u0000"'}, "NUL character"),
    ],
)
def test_invalid_distributions_are_refused_by_name(hyperparameters: dict[str, str], words: str) -> None:
    reasons = refusals(hyperparameters, instance_groups=["g1"])
    assert len([reason for reason in reasons if words in reason]) == 1


def test_the_variable_of_the_program_is_refused_by_its_own_name() -> None:
    torchrun = {"sagemaker_torch_distributed_enabled": "true", "sagemaker_program": '"train.py"'}
    (reason,) = refusals(torchrun, environment={"SAGEMAKER_PROGRAM": "run.sh"})
    assert reason.startswith("Environment's SAGEMAKER_PROGRAM: torch_distributed starts Python scripts only")
    (reason,) = refusals({}, environment={"SAGEMAKER_PROGRAM": "/bin/sh"})
    assert reason.startswith("Environment's SAGEMAKER_PROGRAM: the entry point '/bin/sh' is an absolute path")
    assert refusals({}, environment={"SAGEMAKER_PROGRAM": "/bin/sh"}, has_command=True) == ()
    assert refusals({"sagemaker_program": "../train.py"}, environment={"SAGEMAKER_PROGRAM": "train.py"}) == ()


def test_a_variable_that_hides_another_program_is_warned_of() -> None:
    told = {"SAGEMAKER_PROGRAM": "other.py"}
    (warning,) = warnings({"sagemaker_program": '"train.py"'}, num_hosts=1, environment=told)
    assert "SAGEMAKER_PROGRAM is 'other.py' and wins over hyperparameter sagemaker_program 'train.py'" in warning
    assert warnings({"sagemaker_program": '"train.py"'}, num_hosts=1, environment=told, has_command=True) == ()
    assert warnings({"sagemaker_program": "other.py"}, num_hosts=1, environment=told) == ()
    assert warnings({}, num_hosts=1, environment=told) == ()


def test_hyperparameters_choose_nothing_where_a_command_runs() -> None:
    assert refusals({"sagemaker_pytorch_xla_multi_worker_enabled": "true"}, has_command=True) == ()
    assert refusals({"x": '"\\u0000"'}, has_command=True)
    assert warnings({}, num_hosts=4, has_command=True) == ()


def test_several_hosts_without_distribution_are_warned_of_with_the_likely_cause() -> None:
    (warning,) = warnings(of_request("pt-pytorchx"), num_hosts=2)
    assert "2 hosts and no distribution" in warning
    assert "misspelt" in warning
    assert warnings(of_request("pt-torchdist"), num_hosts=2) == ()
    assert warnings({}, num_hosts=1) == ()


def test_other_warnings() -> None:
    assert "mp_parameters are set, but" in warnings(of_request("pt-smp-nompi"), num_hosts=2)[0]
    assert "FI_PROVIDER" in warnings(of_request("pt-mpi"), num_hosts=2, instance_types=["ml.p4d.24xlarge"])[0]
    assert "compiled by torch.compile" in warnings(of_request("hf-trcomp"), num_hosts=1)[0]
    compiler = {"sagemaker_training_compiler_enabled": "true"}
    assert "no effect" in warnings(compiler, num_hosts=1, image="example/mxnet-training:1.9.0-gpu-py38")[0]
    (of_tensorflow,) = warnings(compiler, num_hosts=1, image="example/tensorflow-training:2.11-gpu-py39")
    assert "XLA" in of_tensorflow
    assert "On hosts without a GPU it has no effect" in of_tensorflow
    assert "torch.compile" not in of_tensorflow
    assert warnings({"sagemaker_training_compiler_enabled": "false"}, num_hosts=1) == ()
    assert "under autocast" in warnings({"sagemaker_amp": "true"}, num_hosts=1, has_command=True)[0]
    assert "no effect" in warnings({"sagemaker_amp": "true"}, num_hosts=1, image="e/tensorflow-training:2.19.0")[0]
    assert "without TF_CONFIG" in warnings(of_request("tf-ps"), num_hosts=1)[0]


@pytest.mark.parametrize(
    ("image", "style", "num_warnings"),
    [
        ("registry.example/tensorflow-training:2.19-cpu-py312", ServerStyle.TENSORFLOW, 1),
        ("registry.example/team/bring-your-own:1", ServerStyle.TENSORFLOW, 1),
        ("registry.example/pytorch-training:2.8-cpu-py312", ServerStyle.NONE, 0),
        ("registry.example/smdistributed-modelparallel:2.4.1-gpu-py311", ServerStyle.NONE, 0),
        ("registry.example/torch-mine@sha256:0", ServerStyle.NONE, 0),
        ("registry.example/pytorch/mxnet-training:1.9.0", ServerStyle.MXNET, 0),
    ],
)
def test_the_warning_on_parameter_servers_of_one_host_depends_on_the_image(
    image: str, style: ServerStyle, num_warnings: int
) -> None:
    assert server_style(image) is style
    assert len(warnings(of_request("tf-ps"), num_hosts=1, image=image)) == num_warnings


def test_understood_mpi_options() -> None:
    options = parse_mpi_options("-verbose -x A=1=2 -x B --mca btl_tcp_links 2 --bind-to=core --NCCL_DEBUG=WARN -v")
    assert options.problems == ()
    assert options.variables == {"A": "1=2", "B": None, "NCCL_DEBUG": "WARN"}
    assert options.mca == (("mca", "btl_tcp_links", "2"),)
    assert options.flags == ("-verbose", "--bind-to", "core", "-v")
    assert options.only_mpirun == ("-mca btl_tcp_links 2", "-verbose", "--bind-to", "core", "-v")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("-np 3", "number of ranks comes from"),
        ("--hostfile x", "hosts come from instance_count"),
        ("-mca plm_rsh_agent evil", "reaches the other hosts itself"),
        ("-mca one", "needs a name and a value"),
        ("-x", "needs a value"),
        ("-x 1A=2", "not a name of an environment variable"),
        ("words", "not an option of mpirun"),
        ("- --", "not an option of mpirun"),
        ("--magic", "not an option that Clary understands"),
    ],
)
def test_mpi_options_that_are_refused_by_name(text: str, words: str) -> None:
    assert words in parse_mpi_options(text).problems[0]
