"""The order that the first process of a host receives."""

import json

import pytest

from clary.agent.host.limits.cgroups import CgroupTree, HostCgroup
from clary.agent.host.program_order import host_order
from clary.agent.host.sandbox import Bind, ProcessSpec, Sandbox
from clary.contract.launch_plan import Isolation, Resources


def order(*, isolation=Isolation.NAMESPACES, network="/proc/7/ns/net", gpu_indices=(), environment=None):
    sandbox = Sandbox(
        isolation=isolation,
        hostname="algo-1",
        host_folder="/srv/host",
        ml_folder="/srv/ml",
        network_namespace_path=network,
        hosts_file={"algo-1": "10.0.0.1"},
        resources=Resources(num_cpus=1, memory_bytes=5, gpu_indices=gpu_indices),
        cgroup_name="j-1-algo-1",
        binds=(Bind(source="/env", target="/env", overlay=True),),
        hidden_folders=("/state",),
    )
    process = ProcessSpec(argv=("a",), environment=environment or {}, working_folder="/", rank=0, local_rank=0)
    cgroup = HostCgroup(CgroupTree())
    return host_order([process], sandbox, scratch_folder="/srv/host/s", cgroup=cgroup, output_fds=[9])


@pytest.mark.parametrize("value", ["", "it's", 'say "x"', "two\nlines", "\udcff", "\U0001f600", "\x7f"])
def test_environments_arrive_unchanged(value):
    plain = json.loads(json.dumps(order(environment={"SM_HP_X": value})).encode())
    assert plain["processes"][0]["environment"] == {"SM_HP_X": value}
    assert plain == order(environment={"SM_HP_X": value})


def test_plain_processes_report_that_nothing_is_isolated():
    (sentence,) = order(isolation=Isolation.PROCESSES)["not_isolated"]
    assert sentence.startswith("Nothing is kept apart")


def test_hosts_with_their_own_network_report_nothing_as_not_isolated():
    assert order()["not_isolated"] == []


def test_hosts_without_their_own_network_report_it_as_not_isolated():
    assert order(network=None)["not_isolated"] == ["Network: the program shares this machine's network and its ports."]


def test_gpu_devices_are_shown_to_hosts_that_own_a_gpu():
    assert (order()["with_gpus"], order(gpu_indices=(1,))["with_gpus"]) == (False, True)
