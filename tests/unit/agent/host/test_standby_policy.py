"""Whether a standby can run a program, and which standby to make next."""

import dataclasses

import pytest

from clary.agent.host.sandbox import Bind, ProcessSpec, Sandbox
from clary.agent.host.standby_policy import MOST_AHEAD, PRELOAD, StandbyPlan, late_binds, plan_standby, why_not_run
from clary.agent.zygote.interpreter_start import RANK_SHIM
from clary.base.mapped_users import MappedUsers
from clary.contract.launch_plan import Isolation, Resources

ENVIRONMENT = Bind(source="/envs/torch", target="/envs/torch", overlay=True)
CHANNEL = Bind(source="/cache/snapshots/7", target="/opt/ml/input/data/training", overlay=True)
SANDBOX = Sandbox(
    isolation=Isolation.NAMESPACES,
    hostname="algo-1",
    host_folder="/slots/1/host",
    ml_folder="/slots/1/ml",
    hosts_file={"algo-1": "10.0.0.1"},
    resources=Resources(num_cpus=2, memory_bytes=1 << 30),
    cgroup_name="standby-1",
    binds=(ENVIRONMENT,),
)


def rank(**fields):
    values = {
        "argv": ("/envs/torch/bin/python", RANK_SHIM, "train.py"),
        "environment": {"PYTHONPATH": "/opt/ml/code", "AWS_SECRET_ACCESS_KEY": "s", "RANK": "0"},
        "working_folder": "/opt/ml/code",
        "rank": 0,
        "local_rank": 0,
    }
    return ProcessSpec(**(values | fields))


def why_not(processes=None, **changes):
    wanted = dataclasses.replace(SANDBOX, **changes)
    return why_not_run(SANDBOX, wanted, [rank()] if processes is None else processes, late_roots=("/cache",))


def test_a_standby_with_another_cgroup_can_run_the_program():
    assert why_not(cgroup_name="job-1-algo-1") == ""


def test_missing_binds_below_a_late_root_are_made_late():
    assert why_not(binds=(ENVIRONMENT, CHANNEL)) == ""
    assert late_binds(SANDBOX, dataclasses.replace(SANDBOX, binds=(CHANNEL, ENVIRONMENT))) == (CHANNEL,)


@pytest.mark.parametrize(
    "changes",
    [
        {"isolation": Isolation.PROCESSES},
        {"hostname": "algo-2"},
        {"host_folder": "/slots/2/host"},
        {"ml_folder": "/slots/2/ml"},
        {"network_namespace_path": "/proc/7/ns/net"},
        {"user_namespace_path": "/proc/7/ns/user"},
        {"hosts_file": {"algo-1": "10.0.0.9"}},
        {"resources": Resources(num_cpus=4, memory_bytes=1 << 30)},
        {"hidden_folders": ("/srv",)},
        {"visible_folders": ("/data",)},
        {"shows_whole_machine": True},
        {"mapped_users": MappedUsers(namespace_path="/proc/1/fd/9", first_id=1_879_048_192)},
    ],
)
def test_any_other_difference_is_a_reason_that_names_both_sides(changes):
    ((name, value),) = changes.items()
    assert why_not(**changes) == f"{name} is {value}, and the host stands by with {getattr(SANDBOX, name)}"


def test_every_field_of_a_host_is_compared_or_listed_as_ignored():
    compared = {field.name for field in dataclasses.fields(Sandbox)} - {"binds", "cgroup_name"}
    assert compared == {
        *("isolation", "hostname", "host_folder", "ml_folder", "network_namespace_path", "user_namespace_path"),
        *("hosts_file", "resources", "hidden_folders", "visible_folders", "shows_whole_machine", "mapped_users"),
    }


@pytest.mark.parametrize(
    ("bind", "words"),
    [
        (Bind(source="/data/x", target="/x"), "only what lies below /cache can be shown"),
        (Bind(source="/cache/../data", target="/x"), "only what lies below /cache can be shown"),
        (Bind(source="/cachet", target="/x"), "only what lies below /cache can be shown"),
        (Bind(source="/cache/x", target="/envs"), "it would cover /envs/torch, which the host shows already"),
        (Bind(source="/cache/x", target="/envs/torch"), "it would cover /envs/torch"),
        (Bind(source="/cache/x", target="/opt/ml"), "it would cover /opt/ml"),
        (Bind(source="/cache/x", target="/opt"), "it would cover /opt/ml"),
    ],
)
def test_binds_that_cannot_be_added_later_are_named(bind, words):
    assert words in why_not(binds=(ENVIRONMENT, bind))


def test_a_standby_with_an_additional_bind_is_refused():
    assert why_not(binds=(CHANNEL,)).startswith("the host shows /envs/torch already, from /envs/torch")


def test_plain_processes_have_no_binds():
    plain = dataclasses.replace(SANDBOX, isolation=Isolation.PROCESSES, binds=())
    wanted = dataclasses.replace(plain, binds=(CHANNEL,))
    assert "plain processes have no mounts" in why_not_run(plain, wanted, [rank()], late_roots=())


def test_programs_with_no_process_or_too_many_are_refused():
    assert why_not([]) == "a program needs at least one process"
    assert "201 processes are more than the 200" in why_not([rank()] * 201)


def test_the_next_interpreter_is_modelled_on_the_last_programs_first_rank():
    bash = rank(argv=("/bin/bash", "-c", "x"))
    assert plan_standby([bash, rank(), rank(argv=("/other", RANK_SHIM, "x"))]) == StandbyPlan(
        python="/envs/torch/bin/python", environment={"PYTHONPATH": "/opt/ml/code"}, preload=PRELOAD, num_ahead=2
    )


def test_as_many_ranks_are_forked_ahead_as_the_last_program_had_up_to_a_limit():
    assert plan_standby([rank()] * 8).num_ahead == 8
    assert plan_standby([rank()] * 100).num_ahead == MOST_AHEAD


def test_where_opt_ml_moves_a_standby_gets_the_next_programs_paths():
    last = rank(environment={"PYTHONPATH": "/slots/1/ml/code:/shims:/slots/1/ml/.clary/python", "LANG": "C.UTF-8"})
    planned = plan_standby([last], moved=("/slots/1/ml", "/slots/2/ml"))
    assert planned.environment == {
        "PYTHONPATH": "/slots/2/ml/code:/shims:/slots/2/ml/.clary/python",
        "LANG": "C.UTF-8",
    }


def test_no_standby_is_made_for_programs_that_are_not_python():
    assert plan_standby([rank(argv=("/bin/bash", "-c", "x"))]) is None
    assert plan_standby([]) is None
