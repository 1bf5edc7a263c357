"""SMP v1 on TensorFlow in jobs: AWS's example, with the hyperparameters that SDKs send for modelparallel and mpi."""

import json

import pytest
from boto3_clients import Clients, log_of, unique
from framework_jobs import PROGRAMS, digits_channel, framework_service
from program_jobs import model_of, run, script_request

pytestmark = [
    pytest.mark.clients,
    pytest.mark.needs("tensorflow", "sdk2"),
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("smp-tensorflow-jobs"),
]

IMAGE = "tensorflow-training:2.6.3-gpu-py38-cu112-ubuntu20.04"
# those of distribution={"smdistributed": {"modelparallel": {"enabled": True, "parameters": {...}}}, "mpi": {...}}
MODEL_PARALLEL = {
    "sagemaker_mpi_enabled": "true",
    "sagemaker_mpi_num_of_processes_per_host": "2",
    "sagemaker_mpi_custom_mpi_options": '""',
}


@pytest.fixture(scope="module")
def aws(tmp_path_factory):
    home = tmp_path_factory.mktemp("smp-tensorflow") / "home"
    with framework_service(home, "tensorflow", image=IMAGE) as service:
        yield Clients(service)


def train(aws, label, parameters, *, num_hosts):
    request = script_request(
        aws,
        unique(label),
        {"train.py": (PROGRAMS / "smp_tensorflow_digits.py").read_text()},
        hyperparameters={**MODEL_PARALLEL, "mp_parameters": json.dumps(parameters)},
        instance_count=num_hosts,
        ResourceConfig={"InstanceType": "ml.p4d.24xlarge", "VolumeSizeInGB": 10},
        InputDataConfig=[digits_channel(aws)],
    )
    request["AlgorithmSpecification"]["TrainingImage"] = f"763104351884.dkr.ecr.us-west-2.amazonaws.com/{IMAGE}"
    described = run(aws, request, timeout_s=400)
    lines = log_of(aws, request["TrainingJobName"])
    assert described["TrainingJobStatus"] == "Completed", "\n".join([described.get("FailureReason", ""), *lines[-60:]])
    files = model_of(aws, described)
    return [json.loads(files[f"rank-{rank}.json"]) for rank in range(2 * num_hosts)], set(files), lines


@pytest.mark.long(15)
def test_two_partitions_on_one_host_train_the_example(aws):
    ranks, files, lines = train(
        aws, "smp-tf", {"partitions": 2, "microbatches": 2, "pipeline": "interleaved", "optimize": "speed"}, num_hosts=1
    )
    for rank, facts in enumerate(ranks):
        assert facts["rank"] == [rank, 2, rank, 0, rank]
        assert json.loads(facts["mp_parameters"])["partitions"] == facts["partitions"] == 2
        assert facts["losses"] == ranks[0]["losses"]
        assert facts["losses"][-1] < facts["losses"][0] / 3
        assert facts["accuracy"] > 0.8
    assert sum(len(facts["variables"]) for facts in ranks) == 6
    assert {"checkpoints/mp_rank_0/checkpoint", "checkpoints/mp_rank_1/checkpoint", "1/saved_model.pb"} <= files
    assert sum("Partition assignments:" in line for line in lines) == 1, lines


@pytest.mark.long(25)
def test_replicas_on_two_hosts_hold_the_same_values(aws):
    ranks, files, _ = train(aws, "smp-tf-ddp", {"partitions": 2, "microbatches": 2, "ddp": True}, num_hosts=2)
    for rank, facts in enumerate(ranks):
        assert facts["rank"] == [rank, 4, rank % 2, rank // 2, rank % 2]
        assert facts["accuracy"] > 0.8
        assert facts["losses"] == ranks[rank // 2 * 2]["losses"], "ranks of one model know other losses"
    assert ranks[0]["losses"] != ranks[2]["losses"], "replicas shuffle by their rank"
    assert "1/saved_model.pb" in files
