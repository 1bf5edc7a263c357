"""Both SageMaker SDKs, unmodified, each in its own environment, against a running service."""

import json

import pytest
from running_service import SDK2_PYTHON, SDK3_PYTHON

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600), pytest.mark.xdist_group("clients-sdk")]

SCENARIOS = [
    (SDK2_PYTHON, "v2_pytorch.py"),
    (SDK2_PYTHON, "v2_huggingface.py"),
    (SDK2_PYTHON, "v2_tensorflow.py"),
    (SDK2_PYTHON, "v2_generic.py"),
    (SDK2_PYTHON, "v2_remote.py"),
    (SDK2_PYTHON, "v2_model_trainer.py"),
    (SDK2_PYTHON, "v2_execution_role.py"),
    (SDK3_PYTHON, "v3_execution_role.py"),
    (SDK3_PYTHON, "v3_remote.py"),
    (SDK3_PYTHON, "v3_model_trainer.py", "none"),
    (SDK3_PYTHON, "v3_model_trainer.py", "torchrun"),
    (SDK3_PYTHON, "v3_model_trainer.py", "mpi"),
    (SDK3_PYTHON, "v3_model_trainer.py", "mpi-two-hosts"),
    (SDK3_PYTHON, "v3_model_trainer.py", "command"),
    (SDK3_PYTHON, "v3_model_trainer.py", "local-data"),
]


@pytest.fixture(scope="module", autouse=True)
def _all_started(client_runs):
    for python, script, *arguments in SCENARIOS:
        client_runs.start(python, script, *arguments)


def facts_in(output):
    """Return the facts printed by facts.py, one entry for each host."""
    return [json.loads(line.split("facts: ", 1)[1]) for line in output.splitlines() if "facts: " in line]


def test_v2_pytorch_runs_ddp_on_two_hosts_and_streams_the_logs_of_both(client_runs):
    output, facts = client_runs.result("v2_pytorch.py")
    for rank in range(4):
        assert f"rank {rank} of 4 sum: 10" in output
    assert "Training job completed" in output
    assert len(facts["members"]) == 4, "every rank's file is in the merged model.tar.gz"
    assert {member.split("-", 2)[2] for member in facts["members"]} == {"algo-1.json", "algo-2.json"}
    assert json.loads(facts["attached_text"]) == 'it\'s "quoted" \u00fc\nline'
    assert facts["metrics"] == [0.375], "average of both values in one minute"


def test_v2_huggingface_with_smddp_gets_mpirun_ranks(client_runs):
    _, facts = client_runs.result("v2_huggingface.py")
    assert facts["model_data"].endswith("/output/model.tar.gz")


def test_v2_tensorflow_hosts_get_tf_config(client_runs):
    output, _ = client_runs.result("v2_tensorflow.py")
    configs = [facts["tf_config"] for facts in facts_in(output)]
    assert sorted(config["task"]["index"] for config in configs) == [0, 1]
    assert configs[0]["cluster"]["worker"] == ["algo-1:8890", "algo-2:8890"]


def test_v2_generic_estimator_shards_channels_and_reports_the_users_own_failure(client_runs):
    output, facts = client_runs.result("v2_generic.py")
    seen = facts_in(output)
    assert [sorted(item["hosts"]) for item in seen] == [["algo-1", "algo-2"]] * 2
    assert sorted(item["hostname"] for item in seen) == ["algo-1", "algo-2"]
    shards = [name for item in seen for name in item["channels"]["sharded"]]
    assert sorted(shards) == [f"part-{index}.csv" for index in range(5)], "no overlap, nothing missing"
    assert all(item["channels"]["single"] == ["part-3.csv"] for item in seen)
    assert all(item["arguments"] == ["--flag", "a b"] for item in seen)
    assert all(item["hyperparameters"] == {"x": "1", "flag": "True"} for item in seen)
    assert all(item["marker"] == "set by the user" for item in seen)
    assert all(item["channels"]["slashed"] == ["part-1.csv"] for item in seen)
    assert facts["uploaded"].endswith("/generic/slashed//part-1.csv"), "the SDK's own key, with an empty part"
    # S3Downloader.list joins bucket and key itself, and drops the second slash.
    assert (facts["listed"], facts["read"]) == ([facts["uploaded"].replace("slashed//", "slashed/")], "1\n")
    assert "my own words" in facts["failure"]
    assert "exit code: 7" in facts["failure"]


def test_v2_remote_function_returns_its_result_and_reads_both_configurations(client_runs):
    _, facts = client_runs.result("v2_remote.py")
    assert facts == {"result": 42, "own": "set by the user's file"}


def test_v3_remote_function_logs_to_the_run_that_it_is_called_within(client_runs):
    output, facts = client_runs.result("v3_remote.py")
    assert facts == {"result": 42, "metrics": {"product": 42.0}, "status": "Completed"}, output[-3000:]


def test_v2_model_trainer_brings_its_own_driver(client_runs):
    output, facts = client_runs.result("v2_model_trainer.py")
    assert facts["status"] == "Completed"
    assert "facts: " in output


@pytest.mark.parametrize("form", ["none", "torchrun", "mpi", "mpi-two-hosts", "command", "local-data"])
def test_v3_model_trainer_completes_and_its_logs_arrive(client_runs, form):
    output, facts = client_runs.result("v3_model_trainer.py", form)
    assert facts["status"] == "Completed"
    expected = {
        "none": "facts: ",
        "torchrun": "rank 3 of 4 sum: 10",
        "mpi": "rank 1 of 2 sum: 3",
        # The SDK's driver passes the number of processes of one host to mpirun as the number of all ranks.
        "mpi-two-hosts": "rank 1 of 2 sum: 3",
        "command": "command says set by the user",
        "local-data": '"local": ["a.txt"]',
    }
    assert expected[form] in output


def test_v2_execution_role_and_account_come_from_sts_over_tls(client_runs):
    _, facts = client_runs.result("v2_execution_role.py")
    assert facts["role"] == "arn:aws:iam::000000000000:role/ClaryExecutionRole"
    assert facts["account"] == "000000000000"
    assert facts["bucket"] == "sagemaker-us-west-2-000000000000"


def test_v3_makes_and_removes_an_execution_role_with_its_policies(client_runs):
    _, facts = client_runs.result("v3_execution_role.py")
    roles = "arn:aws:iam::000000000000:role"
    assert facts == {
        "made": f"{roles}/SageMaker-AutoRole-Training",
        "named": f"{roles}/service-role/AmazonSageMaker-ExecutionRole-mine",
        "validated": facts["named"],
        "found": [f"{roles}/service-role/AmazonSageMaker-ExecutionRole-clary"],
    }
