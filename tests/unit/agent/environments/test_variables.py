"""SM_* variables compared with the values of AWS's own launchers, and the service's own variables."""

import json
from pathlib import Path

import pytest

from clary.agent.environments.variables import program_variables, service_variables, sm_variables
from clary.base.plain import to_plain
from clary.contract.launch_plan import Channel, Environment, HostPlan, Isolation, LaunchPlan, NetworkPlan, Resources
from clary.contract.ml_tree import OPT_ML, MlTree
from clary.contract.settings.hyperparameters import cli_arguments
from clary.testing.launch_plans import make_hosts, make_plan

GOLDENS = Path(__file__).parents[3] / "assets" / "sm_variables"
TOOLKIT_GOLDENS = sorted(path.stem for path in GOLDENS.glob("*.json") if not path.stem.startswith("v3-"))
V3_GOLDENS = sorted(path.stem for path in GOLDENS.glob("v3-*.json"))
INSIDE = MlTree(OPT_ML)


def golden(name: str) -> tuple[LaunchPlan, HostPlan, dict[str, str]]:
    document = json.loads((GOLDENS / f"{name}.json").read_text())
    job = document["job"]
    hosts = tuple(
        HostPlan(
            name=host,
            index=index,
            address=f"10.0.0.{index + 1}",
            instance_type=instance_type,
            instance_group=group,
            processes_per_host=1,
            resources=Resources(num_cpus=job["num_cpus"], memory_bytes=None, gpu_indices=tuple(range(job["num_gpus"]))),
        )
        for index, (host, group, instance_type) in enumerate(job["hosts"])
    )
    channels = [Channel(name=c["name"], s3_uri="s3://b/p", content_type=c["content_type"]) for c in job["channels"]]
    plan = make_plan(
        hosts=hosts, hyperparameters=job["hyperparameters"], channels=channels, user_environment=job["environment"]
    )
    return plan, plan.host(job["current_host"]), document["variables"]


@pytest.mark.parametrize("name", TOOLKIT_GOLDENS)
def test_sm_variables_equal_those_of_the_toolkit(name: str) -> None:
    plan, host, expected = golden(name)
    ours = sm_variables(plan, host, INSIDE)
    assert {key: ours.get(key) for key in expected} == expected
    extra = set(ours) - set(expected)
    only_v3 = {"SM_INPUT_DATA_DIR", "SM_OUTPUT_FAILURE", "SM_HOST_COUNT", "SM_CURRENT_HOST_RANK", "SM_MASTER_ADDR"}
    only_v3 |= {"SM_MASTER_PORT", "SM_SOURCE_DIR", "SM_ENTRY_SCRIPT"}
    assert {key for key in extra if not key.startswith("SM_HP_")} == only_v3


@pytest.mark.parametrize("name", V3_GOLDENS)
def test_variables_that_only_sdk_v3_sets_have_its_values(name: str) -> None:
    plan, host, expected = golden(name)
    ours = sm_variables(plan, host, INSIDE)
    assert set(expected) <= set(ours)
    only_v3 = ("SM_HOST_COUNT", "SM_CURRENT_HOST_RANK", "SM_MASTER_ADDR", "SM_MASTER_PORT", "SM_HP_MY_PARAM")
    only_v3 += ("SM_INPUT_DATA_DIR", "SM_OUTPUT_FAILURE")
    assert {key: ours[key] for key in only_v3} == {key: expected[key] for key in only_v3}


def test_every_variable_of_a_trial_of_tensorflow_names_its_own_model_dir() -> None:
    parameters = {"_tuning_objective_metric": '"loss"', "model_dir": '"s3://b/tuning/model"', "epochs": "3"}
    image = "763104351884.dkr.ecr.us-west-2.amazonaws.com/tensorflow-training:2.16.2-cpu-py310"
    environment = Environment(name="default", python="/env/bin/python", image=image)
    plan = make_plan(hyperparameters=parameters, environment=environment)
    variables, own = sm_variables(plan, plan.hosts[0], INSIDE), "s3://b/tuning/model/job-1/model"
    assert variables["SM_HP_MODEL_DIR"] == own
    assert json.loads(variables["SM_HPS"]) == {"model_dir": own, "epochs": 3}
    assert json.loads(variables["SM_USER_ARGS"]) == ["--epochs", "3", "--model_dir", own]
    assert json.loads(variables["SM_TRAINING_ENV"])["hyperparameters"] == {"model_dir": own, "epochs": 3}
    assert not [name for name, text in variables.items() if "s3://b/tuning/model" in text and own not in text]
    assert plan.hyperparameters == parameters


def test_golden_files_exist() -> None:
    assert len(TOOLKIT_GOLDENS) >= 16
    assert len(V3_GOLDENS) >= 4


def service(plan: LaunchPlan, machine: dict[str, str] | None = None, inside: MlTree = INSIDE) -> dict[str, str]:
    return service_variables(
        plan, plan.hosts[0], inside, python="/env/bin/python", shims_folder="/shims/bin", machine=machine or {}
    )


def test_user_environment_wins_except_for_reserved_names() -> None:
    plan = make_plan(
        user_environment={
            "NCCL_SOCKET_IFNAME": "eth7",
            "HOME": "/elsewhere",
            "TRAINING_JOB_NAME": "other",
            "AWS_ENDPOINT_URL": "https://aws.example",
            "MINE": "1",
        }
    )
    variables = service(plan)
    assert variables["NCCL_SOCKET_IFNAME"] == "eth7"
    assert variables["HOME"] == "/elsewhere"
    assert variables["MINE"] == "1"
    assert variables["TRAINING_JOB_NAME"] == "job-1"
    assert variables["AWS_ENDPOINT_URL"] == "http://10.0.0.254:4570"


def test_libraries_that_do_not_read_aws_endpoint_url_find_the_service() -> None:
    variables = service(make_plan())
    assert variables["S3_ENDPOINT"] == variables["S3_ENDPOINT_URL"] == "http://10.0.0.254:4570"
    assert variables["S3_USE_HTTPS"] == variables["S3_VERIFY_SSL"] == "0"
    assert variables["AWS_ALLOW_HTTP"] == "true"


def test_a_store_of_the_users_own_is_not_reached_without_tls() -> None:
    variables = service(make_plan(user_environment={"S3_ENDPOINT": "minio.corp:9000", "S3_ENDPOINT_URL": "other"}))
    assert variables["S3_ENDPOINT"] == "minio.corp:9000"
    assert not {"S3_USE_HTTPS", "S3_VERIFY_SSL"} & set(variables)
    assert variables["S3_ENDPOINT_URL"] == "http://10.0.0.254:4570"
    assert service(make_plan(user_environment={"AWS_ALLOW_HTTP": "false"}))["AWS_ALLOW_HTTP"] == "false"


def test_programs_get_the_path_of_the_stop_notice_and_the_grace_period(tmp_path: Path) -> None:
    plan = make_plan(stop_grace_s=90.0, user_environment={"CLARY_STOP_NOTICE": "/mine", "CLARY_STOP_GRACE_S": "5"})
    variables = service(plan)
    assert variables["CLARY_STOP_NOTICE"] == "/opt/ml/.clary/stop-notice.json"
    assert variables["CLARY_STOP_GRACE_S"] == "90"
    variables = service(make_plan(isolation=Isolation.PROCESSES), inside=MlTree(tmp_path))
    assert variables["CLARY_STOP_NOTICE"] == str(tmp_path / ".clary" / "stop-notice.json")


def test_step_hooks_are_on_in_jobs_with_checkpoints_unless_the_user_disables_them() -> None:
    variable, uri = "CLARY_STEP_COUNTS_FOLDER", "s3://b/checkpoints"
    assert variable not in service(make_plan())
    assert service(make_plan(checkpoint_s3_uri=uri))[variable] == "/opt/ml/.clary/step-counts"
    assert service(make_plan(checkpoint_s3_uri=uri, user_environment={variable: ""}))[variable] == ""


def test_path_has_the_shims_then_the_environment_then_the_users() -> None:
    plan = make_plan(user_environment={"PATH": "/mine/bin"})
    assert service(plan, {"PATH": "/usr/bin"})["PATH"] == "/shims/bin:/env/bin:/mine/bin"
    assert service(make_plan(), {"PATH": "/usr/bin"})["PATH"] == "/shims/bin:/env/bin:/usr/bin"


def test_secrets_of_the_machine_do_not_reach_the_program() -> None:
    machine = {"AWS_SECRET_ACCESS_KEY": "real", "AWS_PROFILE": "real", "CLARY_TOKEN": "real", "PIP_INDEX_URL": "u"}
    variables = service(make_plan(), machine)
    assert "real" not in variables.values()
    assert variables["PIP_INDEX_URL"] == "u"
    assert variables["AWS_SECRET_ACCESS_KEY"] == "job-secret"
    assert "token-of-the-attempt" not in variables.values()


def test_of_the_owners_pip_and_uv_the_program_gets_settings_and_logins_of_indexes_alone() -> None:
    secrets = [
        "UV_PUBLISH_TOKEN",
        "UV_PUBLISH_USERNAME",
        "UV_PUBLISH_URL",
        "UV_GITHUB_TOKEN",
        "UV_KEYRING_PROVIDER",
        "PIP_KEYRING_PROVIDER",
        "UV_PUBLISH_PASSWORD",
        "PIP_PROXY_PASSWORD",
        "UV_HF_API_KEY",
        "UV_S3_SECRET_ACCESS",
    ]
    kept = {"UV_INDEX_TEAM_USERNAME": "me", "UV_INDEX_TEAM_PASSWORD": "mine", "PIP_NO_INPUT": "1", "UV_OFFLINE": "1"}
    variables = service(make_plan(), {**dict.fromkeys(secrets, "real"), **kept})
    assert "real" not in variables.values()
    assert {name: variables.get(name) for name in kept} == kept


def test_only_ranks_of_one_attempt_share_its_collective_secret() -> None:
    hosts = make_hosts(2)
    plan = make_plan(hosts=hosts, user_environment={"CLARY_COLLECTIVE_SECRET": "chosen"})
    first, second = (
        service_variables(plan, host, INSIDE, python="/env/bin/python", shims_folder="/shims/bin", machine={})
        for host in hosts
    )
    secret = first["CLARY_COLLECTIVE_SECRET"]
    assert second["CLARY_COLLECTIVE_SECRET"] == secret
    assert len(bytes.fromhex(secret)) == 32
    strangers = [make_plan(attempt=2), make_plan(job_name="job-2"), make_plan(agent_token="another")]
    assert len({secret, *(service(stranger)["CLARY_COLLECTIVE_SECRET"] for stranger in strangers)}) == 4
    assert secret not in json.dumps(sm_variables(plan, hosts[0], INSIDE)), "launchers of AWS print SM_*"
    assert secret not in json.dumps(to_plain(plan))


def test_collectives_use_the_interface_on_which_hosts_meet() -> None:
    assert service(make_plan())["CLARY_COLLECTIVE_INTERFACE"] == "eth0"
    assert service(make_plan(isolation=Isolation.PROCESSES))["CLARY_COLLECTIVE_INTERFACE"] == "lo"
    plan = make_plan(user_environment={"CLARY_COLLECTIVE_INTERFACE": "eth7"})
    assert service(plan)["CLARY_COLLECTIVE_INTERFACE"] == "eth7"


def test_calls_to_the_service_pass_no_proxy_of_the_machine() -> None:
    machine = {"https_proxy": "http://proxy:3128", "NO_PROXY": "intern"}
    plan = make_plan(isolation=Isolation.PROCESSES)
    variables = service(plan, machine)
    endpoint = variables["AWS_ENDPOINT_URL"].split("/")[2].split(":")[0]
    assert variables["https_proxy"] == "http://proxy:3128"
    direct = ["localhost", "127.0.0.1", endpoint, "algo-1", *filter(None, [plan.host("algo-1").address])]
    assert variables["NO_PROXY"].split(",") == list(dict.fromkeys(["intern", *direct]))
    assert variables["no_proxy"].split(",") == list(dict.fromkeys(direct))
    assert "https_proxy" not in service(make_plan(), machine), "isolated hosts have no route to it"


def test_isolated_hosts_get_the_proxy_of_the_service_for_all_but_themselves() -> None:
    machine = {"https_proxy": "http://proxy:3128", "HTTP_PROXY": "http://proxy:3128"}
    plan = make_plan(proxy_url="http://127.0.0.1:4572", hosts=make_hosts(2))
    variables = service(plan, machine)
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
        assert variables[name] == "http://127.0.0.1:4572"
    for host in plan.hosts:
        assert {host.name, host.address} <= set(variables["NO_PROXY"].split(","))
    shut = service(make_plan(proxy_url="http://127.0.0.1:4572", network_isolation=True), machine)
    assert not [name for name in shut if name.lower().endswith("_proxy")], "EnableNetworkIsolation"


def test_isolated_hosts_use_eth0_and_plain_ones_loopback_and_their_own_tree(tmp_path: Path) -> None:
    variables = service(make_plan())
    assert variables["GLOO_SOCKET_IFNAME"] == "eth0"
    assert "SAGEMAKER_BASE_DIR" not in variables
    plan = make_plan(isolation=Isolation.PROCESSES, network=NetworkPlan(master_port=40001))
    variables = service(plan, inside=MlTree(tmp_path))
    assert variables["GLOO_SOCKET_IFNAME"] == "lo"
    assert variables["SAGEMAKER_BASE_DIR"] == str(tmp_path)
    ours = sm_variables(plan, plan.hosts[0], MlTree(tmp_path))
    assert ours["SM_MODEL_DIR"] == str(tmp_path / "model")
    assert (ours["SM_MASTER_ADDR"], ours["SM_MASTER_PORT"]) == ("127.0.0.1", "40001")


def test_gpus_of_the_host_are_the_only_ones_visible() -> None:
    plan = make_plan(hosts=make_hosts(gpu_indices=(2, 3)))
    assert service(plan)["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert service(plan)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID", "indices are the driver's"
    assert sm_variables(plan, plan.hosts[0], INSIDE)["SM_NUM_GPUS"] == "2"
    assert service(make_plan())["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize("text", ["true", "True", '"true"', "1"])
def test_a_cpu_rehearsal_is_passed_to_programs_as_a_variable_only(text: str) -> None:
    plan = make_plan(hyperparameters={"sagemaker_clary_cuda_on_cpu": text, "epochs": "3"})
    assert service(plan)["CLARY_CUDA_ON_CPU"] == "1"
    assert cli_arguments(plan.hyperparameters) == ("--epochs", "3")
    for other in ({}, {"sagemaker_clary_cuda_on_cpu": "false"}):
        assert "CLARY_CUDA_ON_CPU" not in service(make_plan(hyperparameters=other))


def test_programs_with_a_container_entrypoint_set_sm_variables_themselves() -> None:
    arguments = {"python": "/env/bin/python", "shims_folder": "/s", "machine": {}}
    plan = make_plan(hyperparameters={"epochs": "3"})
    assert program_variables(plan, plan.hosts[0], INSIDE, **arguments)["SM_HP_EPOCHS"] == "3"
    plan = make_plan(hyperparameters={"epochs": "3"}, command=("/bin/bash", "run.sh"))
    variables = program_variables(plan, plan.hosts[0], INSIDE, **arguments)
    assert not [name for name in variables if name.startswith("SM_")]
    assert variables["TRAINING_JOB_NAME"] == "job-1"


def test_hyperparameter_that_no_variable_can_carry_is_left_out_of_sm_hp_only() -> None:
    plan = make_plan(hyperparameters={"a=b": "1", "c": "2"})
    variables = sm_variables(plan, plan.hosts[0], INSIDE)
    assert "SM_HP_A=B" not in variables
    assert json.loads(variables["SM_HPS"]) == {"a=b": 1, "c": 2}
