"""Processes of each launcher: command lines, ranks and variables, as plain data."""

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest

from clary.agent.host.sandbox import ProcessSpec
from clary.agent.launchers import SHIMS_FOLDER, LaunchContext, make_context, select
from clary.agent.launchers.open_mpi import OpenMpi, find_open_mpi
from clary.agent.launchers.shim_files import MPI_SHIM, PARAMETER_SERVER_SHIM, RANK_SHIM
from clary.base.errors import AgentError, Fault
from clary.contract.launch_plan import Environment, HostPlan, Isolation, NetworkPlan
from clary.contract.ml_tree import OPT_ML, MlTree
from clary.contract.settings.entry_points import EntryKind, EntryPoint
from clary.testing.launch_plans import make_hosts, make_plan

SCRIPT = EntryPoint(name="train.py", kind=EntryKind.SCRIPT)
TORCH = {"sagemaker_torch_distributed_enabled": "true"}
SMDDP = {"sagemaker_distributed_dataparallel_enabled": "true", "sagemaker_instance_type": '"ml.p4d.24xlarge"'}
MPI = {"sagemaker_mpi_enabled": "true"}
LIBRARY = "/opt/ml/.clary/python"


def environment_of(image: str) -> Environment:
    return Environment(name="default", python="/env/bin/python", image=image)


def context_of(
    hyperparameters: dict[str, str] | None = None,
    *,
    host: str = "algo-1",
    num_hosts: int = 1,
    processes: int = 1,
    hosts: tuple[HostPlan, ...] | None = None,
    isolation: Isolation = Isolation.NAMESPACES,
    entry_point: EntryPoint | None = SCRIPT,
    variables: dict[str, str] | None = None,
    tree: MlTree | None = None,
    **fields: object,
) -> LaunchContext:
    hosts = hosts or make_hosts(num_hosts, processes_per_host=processes, isolation=isolation)
    plan = make_plan(hosts=hosts, hyperparameters=hyperparameters, isolation=isolation, **fields)
    context = make_context(
        plan,
        plan.host(host),
        inside=tree or MlTree(OPT_ML),
        python="/env/bin/python",
        library_folder=LIBRARY,
        variables={"PATH": "/nowhere", "SM_HOSTS": "x", **(variables or {})},
        entry_point=entry_point,
        ask=ask_nobody,
    )
    assert context.open_mpi is None
    return context


def test_plain_runs_the_program_once_on_every_host_without_ranks() -> None:
    context = context_of({"epochs": "3"}, num_hosts=2, host="algo-2")
    launcher = select(context)
    (process,) = launcher.build(context)
    assert launcher.name == "plain"
    assert process.argv == ("/env/bin/python", RANK_SHIM, "train.py", "--epochs", "3")
    assert process.working_folder == "/opt/ml/code"
    assert (process.rank, process.local_rank) == (None, 0)
    assert "RANK" not in process.environment
    assert process.environment["MASTER_ADDR"] == "algo-1"
    assert process.environment["MASTER_PORT"] == "7777"


def jax_variables(process: ProcessSpec) -> list[str | None]:
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    return [process.environment.get(name) for name in names]


def test_hosts_and_ranks_have_the_variables_of_jax() -> None:
    plain = context_of(num_hosts=2, host="algo-2")
    assert jax_variables(select(plain).build(plain)[0]) == ["algo-1:7778", "2", "1"]
    for ranks in (TORCH, SMDDP, MPI):
        context = context_of(ranks, num_hosts=2, processes=2, host="algo-2")
        found = [jax_variables(process) for process in select(context).build(context)]
        assert found == [["algo-1:7778", "4", "2"], ["algo-1:7778", "4", "3"]]


def test_hosts_that_share_an_address_have_jax_at_the_port_after_the_masters() -> None:
    network = NetworkPlan(master_port=40001)
    context = context_of(num_hosts=2, host="algo-2", isolation=Isolation.PROCESSES, network=network)
    assert jax_variables(select(context).build(context)[0]) == ["127.0.0.1:40002", "2", "1"]


def test_jax_variables_of_the_users_environment_stay() -> None:
    context = context_of(TORCH, num_hosts=2, variables={"JAX_COORDINATOR_ADDRESS": "algo-2:1234"})
    assert jax_variables(select(context).build(context)[0]) == ["algo-2:1234", "2", "0"]


def test_ranks_of_mpirun_get_jaxs_address_through_it_and_their_numbers_from_it() -> None:
    mpi = OpenMpi(mpirun="/usr/bin/mpirun", major=5)
    context = dataclasses.replace(context_of(MPI, num_hosts=2, processes=2), open_mpi=mpi)
    (leader,) = select(context).build(context)
    assert "-x JAX_COORDINATOR_ADDRESS" in " ".join(leader.argv)
    assert jax_variables(leader) == ["algo-1:7778", None, None]


def test_pythonpath_has_code_first_the_users_then_and_ours_last() -> None:
    context = context_of(variables={"PYTHONPATH": "/mine::/too"})
    (process,) = select(context).build(context)
    assert process.environment["PYTHONPATH"] == f"/opt/ml/code:/mine:/too:{SHIMS_FOLDER}:{LIBRARY}"


def test_a_trial_of_tensorflow_has_a_model_dir_of_its_own_among_its_arguments() -> None:
    parameters = {"_tuning_objective_metric": "loss", "model_dir": "s3://b/model"}
    made = context_of(parameters, environment=environment_of("tensorflow-training:2.16.2-cpu-py310"))
    assert made.arguments == ("--model_dir", f"s3://b/model/{made.plan.job_name}/model")


def test_packages_and_commands_are_started_as_the_toolkit_starts_them() -> None:
    package = context_of({"a": "1"}, entry_point=EntryPoint(name="pkg/train.py", kind=EntryKind.PACKAGE))
    assert select(package).build(package)[0].argv == ("/env/bin/python", RANK_SHIM, "-m", "pkg.train", "-a", "1")
    command = context_of({"a": "b c"}, entry_point=EntryPoint(name="run.sh", kind=EntryKind.COMMAND))
    argv = select(command).build(command)[0].argv
    assert argv == ("/bin/bash", "-c", 'exec "$0" "$@"', "./run.sh", "-a", "b c")


def test_torch_distributed_gives_every_rank_the_variables_of_torchrun() -> None:
    context = context_of(TORCH, num_hosts=2, processes=2, host="algo-2")
    launcher = select(context)
    first, second = launcher.build(context)
    assert launcher.name == "torch_distributed"
    assert (first.rank, first.local_rank, second.rank, second.local_rank) == (2, 0, 3, 1)
    expected = {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "4",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "algo-1",
        "MASTER_PORT": "7777",
        "TORCHELASTIC_RUN_ID": "job-1-1",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_ERROR_FILE": "/opt/ml/.clary/errors/rank-3.json",
        "OMP_NUM_THREADS": "1",
    }
    assert {name: second.environment[name] for name in expected} == expected


def test_omp_num_threads_is_the_users_and_unset_for_a_lone_rank() -> None:
    context = context_of(TORCH, processes=2, variables={"OMP_NUM_THREADS": "8"})
    assert select(context).build(context)[0].environment["OMP_NUM_THREADS"] == "8"
    context = context_of(TORCH, num_hosts=2)
    assert "OMP_NUM_THREADS" not in select(context).build(context)[0].environment


def test_ranks_follow_names_sorted_as_text_and_uneven_hosts() -> None:
    hosts = make_hosts(12, processes_per_host=1)
    hosts = tuple(dataclasses.replace(h, processes_per_host=3) if h.name == "algo-10" else h for h in hosts)
    context = context_of(TORCH, hosts=hosts, host="algo-2")
    # sorted as text: algo-1, algo-10 (three ranks), algo-11, algo-12, algo-2
    assert [process.rank for process in select(context).build(context)] == [6]
    context = context_of(TORCH, hosts=hosts, host="algo-10")
    assert [process.rank for process in select(context).build(context)] == [1, 2, 3]


def test_plain_hosts_meet_at_an_address_and_a_free_port() -> None:
    context = context_of(
        TORCH, num_hosts=2, isolation=Isolation.PROCESSES, network=NetworkPlan(master_port=40001), host="algo-2"
    )
    environment = select(context).build(context)[0].environment
    assert (environment["MASTER_ADDR"], environment["MASTER_PORT"]) == ("127.0.0.1", "40001")


def test_torch_distributed_refuses_programs_that_are_no_script() -> None:
    context = context_of(TORCH, entry_point=EntryPoint(name="run.sh", kind=EntryKind.COMMAND))
    with pytest.raises(AgentError, match=r"run\.sh is a command") as info:
        select(context).build(context)
    assert info.value.fault is Fault.USER


def test_smddp_ranks_have_both_kinds_of_variables() -> None:
    options = {"sagemaker_distributed_dataparallel_custom_mpi_options": '"-x FOO=bar --NCCL_DEBUG WARN -verbose"'}
    context = context_of({**SMDDP, **options}, num_hosts=2, processes=2, host="algo-2")
    launcher = select(context)
    environment = launcher.build(context)[1].environment
    expected = {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "OMPI_COMM_WORLD_NODE_RANK": "1",
        "SMDATAPARALLEL_LOCAL_RANK": "1",
        "SMDATAPARALLEL_USE_HOMOGENEOUS": "1",
        "SMDATAPARALLEL_SERVER_ADDR": "algo-1",
        "SMDATAPARALLEL_SERVER_PORT": "7592",
        "SAGEMAKER_INSTANCE_TYPE": "ml.p4d.24xlarge",
        "MASTER_ADDR": "algo-1",
        "MASTER_PORT": "7777",
        "WORLD_SIZE": "4",
        "RDMAV_FORK_SAFE": "1",
        "NCCL_DEBUG": "WARN",
        "FOO": "bar",
    }
    assert {name: environment[name] for name in expected} == expected
    assert "FI_PROVIDER" not in environment
    assert "-verbose" in launcher.notes(context)[0]
    context = context_of(SMDDP)
    environment = select(context).build(context)[0].environment
    assert (environment["RANK"], environment["LOCAL_RANK"], environment["WORLD_SIZE"]) == ("0", "0", "1")
    assert environment["NCCL_DEBUG"] == "INFO"
    assert environment["SMDATAPARALLEL_USE_SINGLENODE"] == "1"
    assert "SMDATAPARALLEL_SERVER_ADDR" not in environment


def test_accelerate_stays_on_the_cpu_where_a_host_of_smddp_has_no_gpu() -> None:
    names = ("ACCELERATE_TORCH_DEVICE", "ACCELERATE_BYPASS_DEVICE_MAP")

    def seen(**options: object) -> list[str | None]:
        context = context_of(SMDDP, **options)
        return [select(context).build(context)[0].environment.get(name) for name in names]

    assert seen() == ["cpu", "true"]
    assert seen(variables={names[0]: "xpu", names[1]: "false"}) == ["xpu", "false"]
    assert seen(hosts=make_hosts(gpu_indices=(0,))) == [None, None]


def test_mpi_without_open_mpi_starts_ranks_itself_with_a_note() -> None:
    options = {"sagemaker_mpi_custom_mpi_options": '"-x FOO=bar -mca btl_tcp_links 2"'}
    context = context_of({**MPI, **options}, num_hosts=2, processes=2, host="algo-2")
    launcher = select(context)
    processes = launcher.build(context)
    assert [process.rank for process in processes] == [2, 3]
    assert processes[0].environment["OMPI_COMM_WORLD_RANK"] == "2"
    assert processes[0].environment["FOO"] == "bar"
    assert processes[0].environment["NCCL_DEBUG"] == "INFO"
    assert "mpi4py need it" in launcher.notes(context)[0]
    assert "-mca btl_tcp_links 2" in launcher.notes(context)[1]


@pytest.mark.parametrize(("major", "agent_option"), [(4, "plm_rsh_agent"), (5, "plm_ssh_agent")])
def test_mpi_with_open_mpi_leads_from_the_first_host_and_serves_on_the_others(major: int, agent_option: str) -> None:
    options = {"sagemaker_mpi_custom_mpi_options": '"--NCCL_DEBUG WARN -x FOO=bar -mca btl_tcp_links 2"'}
    mpi = OpenMpi(mpirun="/usr/bin/mpirun", major=major)
    hosts = {}
    for name in ("algo-1", "algo-2"):
        context = dataclasses.replace(
            context_of({**MPI, **options, "a": "1"}, num_hosts=2, processes=2, host=name), open_mpi=mpi
        )
        (hosts[name],) = select(context).build(context)
    leader, other = hosts["algo-1"], hosts["algo-2"]
    assert leader.argv[:4] == ("/env/bin/python", MPI_SHIM, "lead", "/usr/bin/mpirun")
    assert leader.argv[-5:] == ("/env/bin/python", RANK_SHIM, "train.py", "-a", "1")
    text = " ".join(leader.argv)
    assert "--host algo-1:2,algo-2:2" in text
    assert "-np 4" in text
    assert f"{agent_option} {SHIMS_FOLDER}/bin/clary-mpi-rsh" in text
    assert "--mca btl_tcp_links 2" in text
    assert "-x FOO" in text
    assert leader.environment["FOO"] == "bar"
    assert leader.environment["NCCL_DEBUG"] == "WARN"
    assert json.loads(leader.environment["CLARY_MPI_PEERS"]) == {"algo-2": ["10.0.0.2", 7790]}
    assert other.argv == ("/env/bin/python", MPI_SHIM, "serve", "10.0.0.2:7790")
    assert other.environment["CLARY_MPI_SECRET"] == leader.environment["CLARY_MPI_SECRET"]
    assert "token-of-the-attempt" not in " ".join(leader.environment.values())


def test_mpirun_of_hosts_that_share_the_machine_starts_all_ranks_on_the_first() -> None:
    mpi = OpenMpi(mpirun="/usr/bin/mpirun", major=4)
    hosts = {}
    for name in ("algo-1", "algo-2"):
        context = context_of(MPI, num_hosts=2, processes=2, host=name, isolation=Isolation.PROCESSES)
        context = dataclasses.replace(context, open_mpi=mpi)
        (hosts[name],) = select(context).build(context)
        assert "starts the ranks of all" in select(context).notes(context)[0]
    assert hosts["algo-1"].argv[1:7] == (
        MPI_SHIM,
        "lead",
        "/usr/bin/mpirun",
        "--host",
        "localhost:4",
        "--oversubscribe",
    )
    assert hosts["algo-2"].argv[1] == "-c"


def test_modelparallel_is_mpi_with_its_nccl_settings() -> None:
    context = context_of({**MPI, "mp_parameters": '{"partitions": 2, "ddp": true}'}, processes=2)
    launcher = select(context)
    process = launcher.build(context)[0]
    assert launcher.name == "modelparallel"
    assert process.argv[-2:] == ("--mp_parameters", "ddp=True,partitions=2")
    assert process.environment["NCCL_PROTO"] == "simple"


def test_multi_worker_mirrored_writes_tf_config() -> None:
    context = context_of({"sagemaker_multi_worker_mirrored_strategy_enabled": "true"}, num_hosts=2, host="algo-2")
    (process,) = select(context).build(context)
    assert json.loads(process.environment["TF_CONFIG"]) == {
        "cluster": {"worker": ["algo-1:8890", "algo-2:8890"]},
        "environment": "cloud",
        "task": {"index": 1, "type": "worker"},
    }


def test_parameter_server_writes_tf_config_and_starts_a_server_beside_the_worker() -> None:
    hyperparameters = {"sagemaker_parameter_server_enabled": "true"}
    environment = environment_of("1.dkr.ecr.us-west-2.amazonaws.com/tensorflow-training:2.19.0-cpu-py312")
    context = context_of(hyperparameters, num_hosts=3, host="algo-3", environment=environment)
    (process,) = select(context).build(context)
    assert process.argv[:3] == ("/env/bin/python", PARAMETER_SERVER_SHIM, "/env/bin/python")
    assert json.loads(process.environment["TF_CONFIG"]) == {
        "cluster": {
            "master": ["algo-1:2222"],
            "ps": ["algo-1:2223", "algo-2:2223", "algo-3:2223"],
            "worker": ["algo-2:2222", "algo-3:2222"],
        },
        "environment": "cloud",
        "task": {"index": 1, "type": "worker"},
    }
    assert process.environment["CLARY_PS_MASTER"] == "algo-1:2222"
    lone = context_of(hyperparameters, environment=environment)
    assert "TF_CONFIG" not in select(lone).build(lone)[0].environment


@pytest.mark.parametrize("image", ["1.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.8.0-gpu-py312", "my-torch"])
def test_parameter_server_has_no_effect_with_pytorch_and_gets_a_note(image: str) -> None:
    context = context_of({"sagemaker_parameter_server_enabled": "true"}, num_hosts=2, environment=environment_of(image))
    launcher = select(context)
    (process,) = launcher.build(context)
    assert PARAMETER_SERVER_SHIM not in process.argv
    assert "TF_CONFIG" not in process.environment
    assert "no effect with PyTorch" in launcher.notes(context)[0]


def test_parameter_servers_of_mxnet_have_a_scheduler_on_the_first_host() -> None:
    hyperparameters = {"sagemaker_parameter_server_enabled": "true"}
    environment = environment_of("1.dkr.ecr.us-west-2.amazonaws.com/mxnet-training:1.9.0-cpu-py38")
    processes = []
    for host in ("algo-1", "algo-2"):
        context = context_of(hyperparameters, num_hosts=2, host=host, environment=environment)
        processes += select(context).build(context)
    assert [process.environment["CLARY_PS_ROLES"] for process in processes] == ["scheduler,server", "server"]
    for process in processes:
        assert "TF_CONFIG" not in process.environment
        names = ("DMLC_ROLE", "DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "DMLC_PS_ROOT_PORT", "PS_VERBOSE")
        assert [process.environment[name] for name in names] == ["worker", "2", "2", "8000", "0"]
    roots = {process.environment["DMLC_PS_ROOT_URI"] for process in processes}
    assert roots == {context.plan.hosts[0].address}
    lone = context_of(hyperparameters, environment=environment)
    assert select(lone).build(lone)[0].environment["CLARY_PS_ROLES"] == "scheduler,server"


def test_tensorflow_hosts_that_share_an_address_share_no_port() -> None:
    for key in ("sagemaker_parameter_server_enabled", "sagemaker_multi_worker_mirrored_strategy_enabled"):
        context = context_of(
            {key: "true"},
            num_hosts=2,
            isolation=Isolation.PROCESSES,
            network=NetworkPlan(master_port=40000),
            environment=environment_of("tensorflow-training:2.19.0-cpu-py312"),
        )
        cluster = json.loads(select(context).build(context)[0].environment["TF_CONFIG"])["cluster"]
        addresses = [address for addresses in cluster.values() for address in addresses]
        assert len(set(addresses)) == len(addresses)
        assert "127.0.0.1:40000" not in addresses


@pytest.mark.parametrize(
    "key", ["sagemaker_parameter_server_enabled", "sagemaker_multi_worker_mirrored_strategy_enabled"]
)
@pytest.mark.parametrize("image", ["tensorflow-training:2.19.0-cpu-py312", "mxnet-training:1.9.0-cpu-py38"])
def test_servers_without_authentication_on_a_shared_network_get_a_warning(key: str, image: str) -> None:
    plain = {"isolation": Isolation.PROCESSES, "network": NetworkPlan(master_port=40000)}
    on_a_node = {"network": NetworkPlan()}  # names and files of its own, but the network of the node
    alone = {"network": NetworkPlan(namespace_paths={"algo-1": "/proc/1/fd/3", "algo-2": "/proc/1/fd/4"})}
    for network, is_told in ((plain, True), (on_a_node, True), (alone, False)):
        context = context_of({key: "true"}, num_hosts=2, environment=environment_of(image), **network)
        notes = select(context).notes(context)
        assert ["ask for no proof" in note for note in notes] == [True] * is_told


def test_servers_of_mxnet_on_a_shared_network_default_to_loopback() -> None:
    hyperparameters = {"sagemaker_parameter_server_enabled": "true"}
    for own, expected in (({}, "127.0.0.1"), ({"DMLC_NODE_HOST": "192.0.2.7"}, "192.0.2.7")):
        context = context_of(
            hyperparameters,
            num_hosts=2,
            isolation=Isolation.PROCESSES,
            environment=environment_of("mxnet-training:1.9.0-cpu-py38"),
            variables=own,
        )
        assert select(context).build(context)[0].environment["DMLC_NODE_HOST"] == expected


def test_hosts_outside_the_distributions_groups_run_plainly() -> None:
    hosts = tuple(
        dataclasses.replace(host, instance_group=group, processes_per_host=2)
        for host, group in zip(make_hosts(3), ("g2", "g1", "g1"), strict=True)
    )
    hyperparameters = {**TORCH, "sagemaker_distribution_instance_groups": '["g1"]'}
    outside = context_of(hyperparameters, hosts=hosts, host="algo-1")
    assert select(outside).name == "plain"
    assert select(outside).build(outside)[0].environment["MASTER_ADDR"] == "algo-2"
    assert jax_variables(select(outside).build(outside)[0]) == [None, None, None]
    inside = context_of(hyperparameters, hosts=hosts, host="algo-3")
    processes = select(inside).build(inside)
    assert [process.rank for process in processes] == [2, 3]
    assert processes[0].environment["WORLD_SIZE"] == "4"


def test_xla_is_refused_by_name() -> None:
    context = context_of({"sagemaker_pytorch_xla_multi_worker_enabled": "true"})
    with pytest.raises(AgentError, match="'pytorchxla' is not supported") as info:
        select(context)
    assert info.value.fault is Fault.USER


def test_command_is_verbatim_in_a_namespace_and_relocated_without(tmp_path: Path) -> None:
    command = ("/bin/bash", "-c", "cat /opt/ml/input/x && echo '/opt/ml'")
    context = context_of(TORCH, command=command, entry_point=None)
    launcher = select(context)
    (process,) = launcher.build(context)
    assert launcher.name == "command"
    assert process.argv == command
    assert process.environment["PYTHONPATH"] == f"{SHIMS_FOLDER}:{LIBRARY}"
    assert launcher.notes(context) == ()
    context = context_of(
        command=command,
        entry_point=None,
        isolation=Isolation.PROCESSES,
        tree=MlTree(tmp_path),
        variables={"V": "/opt/ml/x"},
    )
    (process,) = select(context).build(context)
    assert process.argv[2] == f"cat {tmp_path}/input/x && echo '{tmp_path}'"
    assert process.environment["V"] == f"{tmp_path}/x"
    assert "share this machine's files" in launcher.notes(context)[0]


def test_image_without_program_runs_its_own_train(tmp_path: Path) -> None:
    train = tmp_path / "train"
    train.write_text("#!/bin/sh\n")
    train.chmod(0o755)
    context = context_of(entry_point=None, variables={"PATH": str(tmp_path), "SM_MODEL_DIR": "x"})
    launcher = select(context)
    (process,) = launcher.build(context)
    assert launcher.name == "toolkit"
    assert process.argv == (str(train),)
    assert not [name for name in process.environment if name.startswith("SM_")]
    asked = context_of(user_environment={"CLARY_LAUNCHER": "toolkit"}, variables={"PATH": str(tmp_path)})
    assert select(asked).name == "toolkit"


def test_a_job_without_any_program_is_the_users_error() -> None:
    context = context_of(entry_point=None)
    with pytest.raises(AgentError, match="says nowhere what to run") as info:
        select(context).build(context)
    assert info.value.fault is Fault.USER


def ask_here(process: ProcessSpec) -> str:
    done = subprocess.run(process.argv, env=dict(process.environment), capture_output=True, text=True, check=False)
    return done.stdout


def ask_nobody(process: ProcessSpec) -> str:
    return ""


@pytest.mark.parametrize(
    ("version", "major"),
    [("mpirun (Open MPI) 4.1.4", 4), ("mpirun (Open MPI) 5.0.11", 5), ("HYDRA build details:", None)],
)
def test_only_open_mpis_mpirun_counts(tmp_path: Path, version: str, major: int | None) -> None:
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(f"#!/bin/sh\necho '{version}'\n")
    mpirun.chmod(0o755)
    found = find_open_mpi({"PATH": str(tmp_path)}, working_folder="/", ask=ask_here)
    assert (found.major if found else None) == major
    assert found is None or found.mpirun == str(mpirun)
    assert find_open_mpi({"PATH": str(tmp_path / "empty")}, working_folder="/", ask=ask_here) is None


def test_the_agent_never_runs_the_jobs_own_mpirun_itself(tmp_path: Path) -> None:
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    mpirun.chmod(0o755)
    assert find_open_mpi({"PATH": str(tmp_path)}, working_folder="/", ask=ask_nobody) is None
    assert not (tmp_path / "ran").exists()


def test_a_program_that_only_the_variable_names_and_no_code_is_the_users_error() -> None:
    context = context_of(entry_point=None, user_environment={"SAGEMAKER_PROGRAM": "train.py"})
    with pytest.raises(AgentError, match=r"SAGEMAKER_PROGRAM names 'train.py', but there is no code") as info:
        select(context).build(context)
    assert info.value.fault is Fault.USER


@pytest.mark.parametrize(("tag", "options"), [("1.7-1", ()), ("1.2-2", ("--pickle",))])
def test_the_image_of_xgboost_brings_the_program_of_a_job_that_names_none(tag: str, options: tuple[str, ...]) -> None:
    image = f"683313688378.dkr.ecr.us-east-1.amazonaws.com/sagemaker-xgboost:{tag}"
    context = context_of({"num_round": "5"}, entry_point=None, environment=environment_of(image))
    launcher = select(context)
    (process,) = launcher.build(context)
    assert launcher.name == "built_in"
    program = ("/env/bin/python", RANK_SHIM, "-m", "clary.train.boosting", "/opt/ml")
    assert process.argv == (*program, *options)
    assert launcher.notes(context) == ("the job names no program: SageMaker's built-in algorithm XGBoost runs",)


def test_a_tracker_of_xgboost_that_others_reach_is_told() -> None:
    own = NetworkPlan(namespace_paths={"algo-1": "/proc/1/fd/3", "algo-2": "/proc/1/fd/4"})
    image = environment_of("r/sagemaker-xgboost:1.7-1")
    for num_hosts, network, is_told in ((2, NetworkPlan(), True), (1, NetworkPlan(), False), (2, own, False)):
        context = context_of(entry_point=None, environment=image, num_hosts=num_hosts, network=network)
        assert any("tracker asks for no proof" in note for note in select(context).notes(context)) is is_told


def test_a_script_or_a_program_called_train_precedes_the_algorithm_of_the_image(tmp_path: Path) -> None:
    environment = environment_of("r/sagemaker-xgboost:1.7-1")
    assert select(context_of(environment=environment)).name == "plain"
    assert select(context_of(entry_point=None, environment=environment, command=("true",))).name == "command"
    (tmp_path / "train").write_text("#!/bin/sh\n")
    (tmp_path / "train").chmod(0o755)
    own = context_of(entry_point=None, environment=environment, variables={"PATH": str(tmp_path)})
    assert select(own).name == "toolkit"
