"""One member of a gang dies: the job ends, and every process of it on every host is gone.

The figures are printed (`pytest -s`); `python -m benchmarks failfast` measures them. Here the bound is a generous one,
for machines that do other things meanwhile.
"""

import asyncio
import os
import signal
import time

import pytest
from fail_fast_jobs import DEAF_SCRIPT, INSTANCE_SETTINGS, INSTANCE_TYPE, Gang, isolation_of
from running_service import SETTINGS, start_service
from test_clients_boto3 import Clients

from clary.contract.launch_plan import Isolation
from clary.control.engines.local.network_faults import partition
from clary.testing.launch_plans import make_hosts, make_plan

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("fail_fast")]

BOUND_S = 20.0
FAR = "ml.two.ranks.far"
FAR_SETTINGS = f'\n[instance_types."{FAR}"]\nprocesses = 2\ndelay_ms = 0.2\n'


@pytest.fixture(scope="module")
def own_service(tmp_path_factory):
    home = tmp_path_factory.mktemp("fail-fast") / "home"
    service = start_service(home, SETTINGS + INSTANCE_SETTINGS + FAR_SETTINGS)
    yield service
    service.clary("down", check=False)
    assert "left behind" not in service.clary("doctor", check=False).stdout


@pytest.fixture
def gang(own_service):
    aws = Clients(own_service)

    def start(**options):
        return Gang(own_service, aws, "fail-fast", **options)

    return start


def needs_namespaces(service):
    if isolation_of(service) is not Isolation.NAMESPACES:
        pytest.skip("hosts are plain processes here: they have no first process and no network of their own")


def ends_fast(gang, what, *, since_s):
    """Assert that the gang fails and goes within the bound; return why it failed."""
    terminal_s, gone_s, facts = gang.watch_the_end(since_s)
    print(f"\n{len(gang.processes)} processes and {len(gang.cgroups_at_start)} cgroups of hosts before", end="")
    print(f"\n{what}: Failed after {terminal_s:.2f} s, everything gone after {gone_s:.2f} s: {facts['FailureReason']}")
    assert facts["TrainingJobStatus"] == "Failed"
    assert max(terminal_s, gone_s) < BOUND_S
    assert gang.cgroups() == []
    return facts["FailureReason"]


def test_a_rank_that_is_killed_takes_the_whole_gang_with_it(gang):
    running = gang()
    victim = running.ranks["algo-2"][1]
    died_at_s = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    assert "signal 9" in ends_fast(running, "a rank", since_s=died_at_s)


def test_a_rank_that_ignores_its_end_does_not_keep_the_gang_that_lost_another(gang):
    running = gang(script=DEAF_SCRIPT)
    victim = running.ranks["algo-2"][1]
    died_at_s = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    assert "signal 9" in ends_fast(running, "a rank, the others ignore SIGTERM", since_s=died_at_s)


def test_a_host_whose_first_process_is_killed_takes_the_whole_gang_with_it(gang, own_service):
    needs_namespaces(own_service)
    running = gang()
    victim = running.init("algo-2")
    died_at_s = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    ends_fast(running, "a host", since_s=died_at_s)


@pytest.mark.parametrize("host", ["algo-1", "algo-2"])
def test_an_agent_that_is_killed_takes_the_whole_gang_with_it(gang, host):
    running = gang()
    victim = running.agent(host)
    died_at_s = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    assert f"{host} was lost: its agent ended" in ends_fast(running, f"the agent of {host}", since_s=died_at_s)


def test_an_agent_that_hangs_is_lost_like_one_that_died(gang):
    running = gang()
    victim = running.agent("algo-2")
    died_at_s = time.monotonic()
    os.kill(victim.pid, signal.SIGSTOP)
    assert "algo-2 was lost: its agent has been silent" in ends_fast(running, "a frozen agent", since_s=died_at_s)


@pytest.mark.parametrize("instance_type", [INSTANCE_TYPE, FAR])
def test_a_link_that_is_cut_takes_the_whole_gang_with_it(gang, own_service, instance_type):
    needs_namespaces(own_service)
    if instance_type == FAR and not os.access("/dev/net/tun", os.W_OK):
        pytest.skip("delay needs /dev/net/tun")
    running = gang(instance_type=instance_type)
    plan = make_plan(job_name=running.name, hosts=make_hosts(2), work_folder=str(running.folder))
    died_at_s = time.monotonic()
    asyncio.run(partition(plan, "algo-2", up=False))
    reason = ends_fast(running, f"a link of {instance_type}", since_s=died_at_s)
    assert "algo-2 was lost: its link" in reason
