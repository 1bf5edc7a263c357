"""One process or host of a job dies: the job ends, and all its processes on all hosts are gone.

The times are printed (`pytest -s`); `python -m benchmarks failfast` measures them. The limit here is generous, for busy
machines.
"""

import os

import pytest
from boto3_clients import Clients
from fail_fast_jobs import start_gang
from running_service import SETTINGS, start_service

from clary.testing.gangs import DEAF_SCRIPT, INSTANCE_SETTINGS, INSTANCE_TYPE, has_namespaces

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
        return start_gang(own_service, aws, "fail-fast", **options)

    return start


def needs_namespaces(service):
    if not has_namespaces(service.home):
        pytest.skip("hosts are plain processes here: they have no first process and no network of their own")


def ends_fast(gang, what, *, since_s):
    """Assert that the job fails and its processes are gone within the limit; return the failure reason."""
    end = gang.watch_the_end(since_s)
    reason = end.facts.get("FailureReason")
    print(f"\n{len(gang.processes)} processes and {len(gang.cgroups_at_start)} cgroups of hosts before", end="")
    print(f"\n{what}: Failed after {end.terminal_s:.2f} s, everything gone after {end.gone_s:.2f} s: {reason}")
    assert end.facts["TrainingJobStatus"] == "Failed"
    assert max(end.terminal_s, end.gone_s) < BOUND_S
    assert gang.cgroups() == []
    return reason


def test_a_killed_rank_ends_the_whole_job(gang):
    running = gang()
    died_at_s = running.kill_rank("algo-2", 1)
    assert "signal 9" in ends_fast(running, "a rank", since_s=died_at_s)


def test_a_rank_that_ignores_sigterm_does_not_delay_the_end_of_a_failed_job(gang):
    running = gang(script=DEAF_SCRIPT)
    died_at_s = running.kill_rank("algo-2", 1)
    assert "signal 9" in ends_fast(running, "a rank, the others ignore SIGTERM", since_s=died_at_s)


def test_a_host_whose_first_process_is_killed_ends_the_whole_job(gang, own_service):
    needs_namespaces(own_service)
    running = gang()
    died_at_s = running.kill_host("algo-2")
    ends_fast(running, "a host", since_s=died_at_s)


@pytest.mark.long(15)
@pytest.mark.parametrize("host", ["algo-1", "algo-2"])
def test_a_killed_agent_ends_the_whole_job(gang, host):
    running = gang()
    died_at_s = running.kill_agent(host)
    assert f"{host} was lost: its agent ended" in ends_fast(running, f"the agent of {host}", since_s=died_at_s)


@pytest.mark.long
def test_a_hanging_agent_counts_as_lost(gang):
    running = gang()
    died_at_s = running.freeze_agent("algo-2")
    assert "algo-2 was lost: its agent has been silent" in ends_fast(running, "a frozen agent", since_s=died_at_s)


@pytest.mark.parametrize("instance_type", [INSTANCE_TYPE, FAR])
@pytest.mark.long(10)
def test_a_cut_link_ends_the_whole_job(gang, own_service, instance_type):
    needs_namespaces(own_service)
    if instance_type == FAR and not os.access("/dev/net/tun", os.W_OK):
        pytest.skip("delay needs /dev/net/tun")
    running = gang(instance_type=instance_type)
    died_at_s = running.cut_link("algo-2")
    reason = ends_fast(running, f"a link of {instance_type}", since_s=died_at_s)
    assert "algo-2 was lost: its link" in reason
